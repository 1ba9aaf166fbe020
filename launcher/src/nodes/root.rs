//! Where nodes have their own directories.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use nix::unistd::{User, geteuid};
use serde::{Deserialize, Serialize};

/// A folder in which each node has its own directory, named by its number.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NodeRoot {
    /// The same path on every host.
    Path(OsString),
    /// This folder in the user's state folder of each host, whose path that host alone knows.
    State(String),
}

/// Before the folder's name, in a job file. All other values are paths; none of ours that are not absolute has this beginning.
const STATE: &str = "state:";

/// Our folder in the user's state folder, and where that lies by default in the home directory (XDG base directory specification).
const OURS: &str = "stillwire";
const BY_DEFAULT: &str = ".local/state";

/// A host has no state folder for this user.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "there is no place for this node's images: neither XDG_STATE_HOME nor HOME is an absolute path here, and this user has no home directory. Begin the job with --node-dir PATH, a folder on each host's own disk"
)]
pub struct NoState;

impl NodeRoot {
    /// Reads it from a job file's setting; `directory` is the job's.
    pub fn parse(text: &str, directory: &Path) -> NodeRoot {
        match text.strip_prefix(STATE) {
            Some(folder) => NodeRoot::State(folder.to_owned()),
            None => NodeRoot::Path(directory.join(text).into()),
        }
    }

    /// As a job file has it.
    pub fn emit(&self) -> String {
        match self {
            NodeRoot::Path(path) => path.to_string_lossy().into_owned(),
            NodeRoot::State(folder) => format!("{STATE}{folder}"),
        }
    }

    /// A path that is relative is one in the job's directory.
    pub fn below(&self, directory: &Path) -> NodeRoot {
        match self {
            NodeRoot::Path(path) => NodeRoot::Path(directory.join(path).into()),
            NodeRoot::State(_) => self.clone(),
        }
    }

    /// The number of the layout of ranks to nodes in it: 1, until a restart has changed that.
    pub fn layout(&self) -> u32 {
        self.numbered().1
    }

    /// The root of another layout of the same job: a crash while images move leaves the former one untouched.
    pub fn with_layout(&self, layout: u32) -> NodeRoot {
        let name = |name: &str| if layout > 1 { format!("{name}.{layout}") } else { name.to_owned() };
        let (name, is_state) = (name(&self.numbered().0), matches!(self, NodeRoot::State(_)));
        if is_state { NodeRoot::State(name) } else { NodeRoot::Path(name.into()) }
    }

    /// The roots of all layouts up to this one.
    pub fn layouts(&self) -> impl Iterator<Item = NodeRoot> {
        (1..=self.layout()).map(|layout| self.with_layout(layout))
    }

    /// The root of the first layout, and the number of this one.
    fn numbered(&self) -> (String, u32) {
        let text = match self {
            NodeRoot::Path(path) => path.to_string_lossy().into_owned(),
            NodeRoot::State(folder) => folder.clone(),
        };
        let number = |digits: &str| {
            digits.parse().ok().filter(|layout: &u32| *layout > 1 && layout.to_string() == digits)
        };
        match text.rsplit_once('.').and_then(|(first, digits)| Some((first.to_owned(), number(digits)?))) {
            Some(numbered) => numbered,
            None => (text, 1),
        }
    }

    /// Whether it lies in the job's directory.
    pub fn is_in(&self, directory: &Path) -> bool {
        matches!(self, NodeRoot::Path(path) if Path::new(path).starts_with(directory))
    }

    /// Its path on this host, for the user of this process.
    ///
    /// # Errors
    /// [`NoState`]
    pub fn here(&self) -> Result<PathBuf, NoState> {
        match self {
            NodeRoot::Path(path) => Ok(path.into()),
            NodeRoot::State(folder) => {
                let home = || User::from_uid(geteuid()).ok().flatten().map(|user| user.dir);
                Ok(state(|name| std::env::var_os(name), home).ok_or(NoState)?.join(OURS).join(folder))
            }
        }
    }
}

impl fmt::Display for NodeRoot {
    /// For people; of a state folder, the place by default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeRoot::Path(path) => write!(f, "{}", path.display()),
            NodeRoot::State(folder) => write!(f, "~/{BY_DEFAULT}/{OURS}/{folder}"),
        }
    }
}

/// The user's state folder. Values that are not absolute do not count, as the specification says.
fn state(
    variable: impl Fn(&str) -> Option<OsString>,
    home: impl FnOnce() -> Option<PathBuf>,
) -> Option<PathBuf> {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let in_home = || {
        let home = absolute("HOME").or_else(|| home().filter(|path| path.is_absolute()))?;
        Some(home.join(BY_DEFAULT))
    };
    absolute("XDG_STATE_HOME").or_else(in_home)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_folder_is_the_user_s_own_on_each_host() {
        let found = |state_home: Option<&str>, home: Option<&str>, user: Option<&str>| {
            let value = |name: &str| if name == "HOME" { home } else { state_home };
            state(|name| value(name).map(OsString::from), || user.map(PathBuf::from))
        };
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(found(Some("/fast/state"), Some("/home/a"), None), path("/fast/state"));
        assert_eq!(found(None, Some("/home/a"), Some("/home/b")), path("/home/a/.local/state"));
        for odd in ["", "state", "~/state"] {
            assert_eq!(found(Some(odd), Some(odd), Some("/home/b")), path("/home/b/.local/state"), "{odd}");
            assert_eq!(found(Some(odd), Some(odd), Some(odd)), None, "{odd}");
        }
        assert_eq!(found(None, None, None), None);
    }

    #[test]
    fn each_layout_has_a_root_of_its_own() {
        for (first, second) in [
            (NodeRoot::State("00ff".to_owned()), "state:00ff.2"),
            (NodeRoot::Path("/a.b/stillwire-00ff".into()), "/a.b/stillwire-00ff.2"),
        ] {
            assert_eq!(first.layout(), 1);
            let other = first.with_layout(2);
            assert_eq!((other.emit().as_str(), other.layout()), (second, 2));
            assert_eq!((other.with_layout(3).layout(), other.with_layout(1)), (3, first.clone()));
            assert_eq!(other.layouts().collect::<Vec<_>>(), [first, other.clone()]);
        }
        for first in ["/a.2/nodes", "/jobs/x.02", "/jobs/x.1", "nodes."] {
            assert_eq!(NodeRoot::Path(first.into()).layout(), 1, "{first}");
        }
    }

    #[test]
    fn a_job_file_keeps_the_place_and_not_the_path_of_one_host() {
        let job = Path::new("/jobs/one");
        let state = NodeRoot::State("00ff".to_owned());
        assert_eq!(NodeRoot::parse(&state.emit(), job), state);
        assert_eq!((state.below(job), state.is_in(job)), (state.clone(), false));
        assert_eq!(state.to_string(), "~/.local/state/stillwire/00ff");
        // Jobs of before have the path of the older default; on one host, a path in the job's directory.
        let older = NodeRoot::parse("/var/tmp/stillwire-00ff", job);
        assert_eq!(older.here(), Ok("/var/tmp/stillwire-00ff".into()));
        assert_eq!((older.emit().as_str(), older.is_in(job)), ("/var/tmp/stillwire-00ff", false));
        let inside = NodeRoot::parse("nodes", job);
        assert_eq!((inside.here(), inside.is_in(job)), (Ok("/jobs/one/nodes".into()), true));
    }
}
