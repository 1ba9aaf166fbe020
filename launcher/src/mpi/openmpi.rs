//! Open MPI's own launcher, with the provider selected.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Mpi;
use crate::error::LauncherError;

/// Folders above the library in which `bin/mpirun` is looked for: `/usr/lib/ARCH/openmpi/lib` is the deepest.
const ANCESTORS_MAX: usize = 5;

/// The mpirun that belongs to a library: another one's would start every process as a job of its own.
pub fn mpirun(mpi: &Mpi) -> Result<PathBuf, LauncherError> {
    let real = mpi.library.canonicalize().unwrap_or_else(|_| mpi.library.clone());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates = candidates([&mpi.library, &real], &path);
    let found = candidates.find(|file| file.is_file() && is_openmpi(file));
    found.ok_or_else(|| LauncherError::NoMpirun { library: mpi.library.clone() })
}

/// Where the mpirun of a library may be, the likeliest first: above the library, then in `search`, which is a PATH.
fn candidates(library: [&Path; 2], search: &OsStr) -> impl Iterator<Item = PathBuf> {
    // The root is above every library. Its /bin belongs to the system and not to a library in somebody's own folder.
    let above = |path: &Path| {
        let folders = path.ancestors().skip(1).take(ANCESTORS_MAX).filter(|folder| folder.parent().is_some());
        folders.map(|folder| folder.join("bin")).collect::<Vec<_>>()
    };
    // Near a library that a person has only named there is nothing.
    let near = library.map(|path| if path.is_absolute() { above(path) } else { Vec::new() }).concat();
    let far: Vec<PathBuf> = std::env::split_paths(search).collect();
    let folders = near.into_iter().chain(far);
    folders.flat_map(|folder| ["mpirun.openmpi", "mpirun"].map(|name| folder.join(name)))
}

fn is_openmpi(file: &Path) -> bool {
    major(file).is_some()
}

/// The first number of its version, or 0 if it gives none; `None`: it is not Open MPI's.
fn major(file: &Path) -> Option<u32> {
    let output = Command::new(file).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output();
    let text = String::from_utf8_lossy(&output.ok()?.stdout).into_owned();
    // Debian's calls itself by its program's name: "mpirun.openmpi (OpenRTE) 4.1.4".
    let after = ["Open MPI", "OpenRTE"].iter().find_map(|name| Some(text.split_once(name)?.1))?;
    let digits = after.trim_start_matches([')', ' ']).split(|symbol: char| !symbol.is_ascii_digit()).next();
    Some(digits.and_then(|digits| digits.parse().ok()).unwrap_or(0))
}

/// The options that it is given, before the program.
pub fn options(mpi: &Mpi, mpirun: &Path, ranks: u32, passed: &[String]) -> Vec<OsString> {
    let is_old = mpi.is_old_openmpi || (!mpi.is_seen() && matches!(major(mpirun), Some(1..=4)));
    let mut words: Vec<OsString> = ["--allow-run-as-root", "--oversubscribe"].map(OsString::from).into();
    // Each line names the rank that printed it.
    words.extend(
        if is_old { vec!["--tag-output"] } else { vec!["--output", "tag"] }.into_iter().map(Into::into),
    );
    for name in passed {
        words.push("-x".into());
        words.push(name.into());
    }
    words.push("-n".into());
    words.push(ranks.to_string().into());
    words
}

/// A line that mpirun has tagged: `[job,rank]<stdout>: text`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tagged<'a> {
    /// The rank that printed it.
    pub rank: u32,
    /// On standard error.
    pub is_error: bool,
    /// Without the tag.
    pub text: &'a [u8],
}

/// Takes a tag apart; `None`: a line of mpirun itself.
pub fn untag(line: &[u8]) -> Option<Tagged<'_>> {
    let rest = line.strip_prefix(b"[")?;
    let close = rest.iter().take(80).position(|byte| *byte == b']')?;
    let inside = std::str::from_utf8(&rest[..close]).ok()?;
    let (_, rank) = inside.rsplit_once(',')?;
    let rank = rank.trim().parse().ok()?;
    let rest = &rest[close + 1..];
    let (is_error, text) = match (rest.strip_prefix(b"<stdout>:"), rest.strip_prefix(b"<stderr>:")) {
        (Some(text), _) => (false, text),
        (_, Some(text)) => (true, text),
        (None, None) => return None,
    };
    Some(Tagged { rank, is_error, text: text.strip_prefix(b" ").unwrap_or(text) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mpirun_is_looked_for_above_the_library_and_then_in_path() {
        let of = |library: &str, search: &str| {
            let library = Path::new(library);
            let found = candidates([library, library], OsStr::new(search));
            found.filter(|file| file.ends_with("mpirun")).collect::<Vec<_>>()
        };
        let debian = of("/usr/lib/x86_64-linux-gnu/openmpi/lib/libmpi.so.40", "");
        assert!(debian.contains(&"/usr/bin/mpirun".into()), "{debian:?}");
        let own = of("/opt/mpi/lib/libmpi.so.40", "/elsewhere:/usr/bin");
        let place = |wanted: &str| own.iter().position(|file| file == Path::new(wanted));
        let order =
            ["/opt/mpi/lib/bin/mpirun", "/opt/mpi/bin/mpirun", "/elsewhere/mpirun", "/usr/bin/mpirun"]
                .map(place);
        assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{own:?}");
        assert_eq!(place("/bin/mpirun"), None, "the system's mpirun is not the library's");
    }

    #[test]
    fn tags_are_taken_apart() {
        let tagged =
            |rank, is_error, text: &'static str| Some(Tagged { rank, is_error, text: text.as_bytes() });
        assert_eq!(untag(b"[1,0]<stdout>: hello"), tagged(0, false, "hello"));
        assert_eq!(untag(b"[1,12]<stderr>:hello"), tagged(12, true, "hello"));
        assert_eq!(
            untag(b"[prterun-vm-29698@1,3]<stdout>: [1,2]<stdout>: x"),
            tagged(3, false, "[1,2]<stdout>: x")
        );
        for line in ["", "[", "[vm:1234] oops", "[1,x]<stdout>: a", "[1,2]<stddiag>: a", "prterun noticed"] {
            assert_eq!(untag(line.as_bytes()), None, "{line}");
        }
    }
}
