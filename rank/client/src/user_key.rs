//! The key of processes that `stillwire run` has not started: one for each user and host, or one for all hosts of a launcher's job.
//!
//! Each candidate path is checked before use, because the fallback lies in `/tmp`, where other users can create names first.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

/// Names the key file; it goes before every default.
pub const KEY_FILE_VARIABLE: &str = "STILLWIRE_KEY_FILE";

/// Bytes of a key.
pub const KEY_BYTES: usize = 16;

const RUNTIME_VARIABLE: &str = "XDG_RUNTIME_DIR";

/// Why a process takes the key from this file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeySource {
    /// `STILLWIRE_KEY_FILE` names it.
    Variable,
    /// It lies in the home directory, which hosts share as a rule: the launcher may have started ranks on other hosts.
    Home,
    /// It lies in the user's runtime directory on this host.
    Runtime,
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A system call failed.
    #[error(
        "cannot use the key file {}: {source}; set {KEY_FILE_VARIABLE} to a file in a directory of your own",
        .path.display()
    )]
    File {
        /// The file, or its directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another user owns it, or could read it.
    #[error(
        "{0} belongs to user {owner} and has mode {mode:o}; the key needs user {user} and mode {expected:o}: run `chmod {expected:o} {0}` if it is yours, remove it, or set {KEY_FILE_VARIABLE}",
        .path.display()
    )]
    Exposed {
        /// The file, or its directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user that needs it.
        user: u32,
        /// Its permissions.
        mode: u32,
        /// The permissions that it is created with.
        expected: u32,
    },
    /// A link, a pipe, or the like.
    #[error("{} is {found}; the key needs {expected}: remove it, or set {KEY_FILE_VARIABLE}", .path.display())]
    Kind {
        /// The file, or its directory.
        path: PathBuf,
        /// The kind that was found.
        found: &'static str,
        /// The kind that is needed.
        expected: &'static str,
    },
    /// It holds something else.
    #[error("the key file {} has {found} bytes, expected {KEY_BYTES}: remove it, and the next process makes a new one", .path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Bytes in it, at most one more than a key has.
        found: usize,
    },
    /// The system gives no random numbers.
    #[error("the system gives no random numbers, so no key can be made")]
    Random,
}

/// The file in which a process finds its key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyFile {
    path: PathBuf,
    source: KeySource,
    user: u32,
}

/// The inputs that decide the place of the key.
#[derive(Default)]
struct Surroundings {
    named: Option<OsString>,
    home: Option<PathBuf>,
    /// Candidates for the user's runtime directory, best first.
    runtime: Vec<PathBuf>,
    spans_hosts: bool,
    user: u32,
}

impl KeyFile {
    /// The file for this process. `spans_hosts`: its launcher may have started ranks on other hosts, which need the same key.
    #[must_use]
    pub fn find(spans_hosts: bool) -> KeyFile {
        let user = geteuid().as_raw();
        let session = std::env::var_os(RUNTIME_VARIABLE).map(PathBuf::from);
        // A shell without a login session (su, cron) lacks the variable; it meets the others where the directory exists.
        let usual = PathBuf::from(format!("/run/user/{user}"));
        KeyFile::choose(Surroundings {
            named: std::env::var_os(KEY_FILE_VARIABLE),
            home: std::env::var_os("HOME").map(PathBuf::from),
            runtime: session.into_iter().chain([usual]).collect(),
            spans_hosts,
            user,
        })
    }

    fn choose(surroundings: Surroundings) -> KeyFile {
        let Surroundings { named, home, runtime, spans_hosts, user } = surroundings;
        if let Some(named) = named {
            return KeyFile { path: named.into(), source: KeySource::Variable, user };
        }
        let home = home.filter(|home| spans_hosts && home.is_absolute() && home.is_dir());
        if let Some(home) = home {
            return KeyFile { path: home.join(".stillwire").join("key"), source: KeySource::Home, user };
        }
        let directory = runtime.into_iter().find(|directory| is_private(directory, user));
        let directory = match directory {
            Some(directory) => directory.join("stillwire"),
            None => PathBuf::from(format!("/tmp/stillwire-{user}")),
        };
        KeyFile { path: directory.join("key"), source: KeySource::Runtime, user }
    }

    /// Where the key lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Why it lies there.
    #[must_use]
    pub fn source(&self) -> KeySource {
        self.source
    }

    /// The key; makes it if there is none. Of several processes that do so at once, one wins and all read the same key.
    ///
    /// # Errors
    /// [`KeyError`], also if the file exists and is not safe to use.
    pub fn read_or_make(&self) -> Result<[u8; KEY_BYTES], KeyError> {
        if let Some(key) = self.read()? {
            return Ok(key);
        }
        self.make()?;
        self.read()?.ok_or_else(|| self.failed(ErrorKind::NotFound.into()))
    }

    /// The key; `None` if nobody has made it yet.
    ///
    /// # Errors
    /// [`KeyError`] if the file exists and is not safe to use.
    pub fn read(&self) -> Result<Option<[u8; KEY_BYTES]>, KeyError> {
        if !self.check_directory()? {
            return Ok(None);
        }
        // A named file may be a link: `stillwire run` names one in /proc.
        let strict = match self.source {
            KeySource::Variable => OFlag::empty(),
            KeySource::Home => OFlag::O_NONBLOCK,
            KeySource::Runtime => OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW,
        };
        let file = match OpenOptions::new().read(true).custom_flags(strict.bits()).open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) if error.raw_os_error() == Some(nix::Error::ELOOP as i32) => {
                return Err(self.not_a_file("a symbolic link"));
            }
            Err(error) => return Err(self.failed(error)),
        };
        self.check_file(&file.metadata().map_err(|error| self.failed(error))?)?;
        let mut bytes = Vec::new();
        file.take(KEY_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|error| self.failed(error))?;
        let found = bytes.len();
        let key = bytes.try_into().map_err(|_| KeyError::Length { path: self.path.clone(), found })?;
        Ok(Some(key))
    }

    /// Whether the directory is there. One that this module makes in a place that all users share has to be this user's.
    fn check_directory(&self) -> Result<bool, KeyError> {
        let Some(directory) = self.path.parent().filter(|_| self.source == KeySource::Runtime) else {
            return Ok(true);
        };
        let path = || directory.to_owned();
        let found = match fs::symlink_metadata(directory) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(source) => return Err(KeyError::File { path: path(), source }),
        };
        if !found.is_dir() {
            let found = if found.is_symlink() { "a symbolic link" } else { "not a directory" };
            return Err(KeyError::Kind { path: path(), found, expected: "a directory" });
        }
        self.check_owner(directory, &found, 0o700)?;
        Ok(true)
    }

    fn check_file(&self, found: &Metadata) -> Result<(), KeyError> {
        if self.source != KeySource::Variable && !found.is_file() {
            return Err(self.not_a_file(if found.is_dir() { "a directory" } else { "a special file" }));
        }
        self.check_owner(&self.path, found, 0o600)
    }

    fn check_owner(&self, path: &Path, found: &Metadata, expected: u32) -> Result<(), KeyError> {
        let (owner, user, mode) = (found.uid(), self.user, found.mode() & 0o777);
        if owner != user || mode & 0o077 != 0 {
            return Err(KeyError::Exposed { path: path.to_owned(), owner, user, mode, expected });
        }
        Ok(())
    }

    fn make(&self) -> Result<(), KeyError> {
        let (mut key, mut suffix) = ([0; KEY_BYTES], [0; 8]);
        getrandom::fill(&mut key)
            .and_then(|()| getrandom::fill(&mut suffix))
            .map_err(|_| KeyError::Random)?;
        self.make_directory()?;
        let draft = self.path.with_extension(format!("{:016x}", u64::from_le_bytes(suffix)));
        let written = write_new(&draft, &key);
        // A link appears whole or not at all, and never replaces a file.
        let linked = written.and_then(|()| match fs::hard_link(&draft, &self.path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            other => other,
        });
        let _ = fs::remove_file(&draft);
        linked.map_err(|error| self.failed(error))
    }

    fn make_directory(&self) -> Result<(), KeyError> {
        let Some(directory) = self.path.parent() else { return Ok(()) };
        let recursive = self.source != KeySource::Runtime;
        match DirBuilder::new().recursive(recursive).mode(0o700).create(directory) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(self.failed(error)),
            // Another user may have been first.
            _ => self.check_directory().map(drop),
        }
    }

    fn failed(&self, source: io::Error) -> KeyError {
        KeyError::File { path: self.path.clone(), source }
    }

    fn not_a_file(&self, found: &'static str) -> KeyError {
        KeyError::Kind { path: self.path.clone(), found, expected: "a regular file" }
    }
}

/// Whether nobody else can put names into this directory. After `su` the variable may still name another user's.
fn is_private(directory: &Path, user: u32) -> bool {
    let is_ours = |found: Metadata| found.is_dir() && found.uid() == user && found.mode() & 0o022 == 0;
    directory.is_absolute() && fs::metadata(directory).is_ok_and(is_ours)
}

fn write_new(path: &Path, key: &[u8; KEY_BYTES]) -> io::Result<()> {
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    // The umask may have taken permissions away.
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    file.write_all(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn file(path: PathBuf, source: KeySource) -> KeyFile {
        KeyFile { path, source, user: geteuid().as_raw() }
    }

    fn in_runtime_directory(root: &Path) -> KeyFile {
        file(root.join("stillwire").join("key"), KeySource::Runtime)
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn processes_that_start_together_get_one_key_that_only_their_user_can_read() {
        let folder = tempfile::tempdir().unwrap();
        let deep = file(folder.path().join("a").join("b").join("key"), KeySource::Variable);
        for key_file in [in_runtime_directory(folder.path()), deep] {
            let start = std::sync::Barrier::new(16);
            let keys: Vec<_> = std::thread::scope(|scope| {
                let make = || {
                    start.wait();
                    key_file.read_or_make().unwrap()
                };
                let threads: Vec<_> = (0..16).map(|_| scope.spawn(make)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(keys.iter().all(|key| *key == keys[0]) && keys[0] != [0; KEY_BYTES]);
            let directory = key_file.path().parent().unwrap();
            assert_eq!((mode(key_file.path()), mode(directory)), (0o600, 0o700));
            assert_eq!(fs::read_dir(directory).unwrap().count(), 1, "a draft stays");
        }
    }

    #[test]
    fn a_file_that_is_not_the_users_own_secret_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let key_file = in_runtime_directory(folder.path());
        key_file.read_or_make().unwrap();
        let stranger = KeyFile { user: key_file.user + 1, ..key_file.clone() };
        assert!(matches!(stranger.read(), Err(KeyError::Exposed { expected: 0o700, .. })));
        let named = KeyFile { source: KeySource::Variable, ..stranger };
        assert!(matches!(named.read(), Err(KeyError::Exposed { expected: 0o600, .. })));
        let permit = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        permit(key_file.path(), 0o640);
        assert!(matches!(key_file.read_or_make(), Err(KeyError::Exposed { mode: 0o640, .. })));
        permit(key_file.path(), 0o600);
        fs::write(key_file.path(), b"short").unwrap();
        assert!(matches!(key_file.read_or_make(), Err(KeyError::Length { found: 5, .. })));
        let elsewhere = folder.path().join("elsewhere");
        fs::rename(key_file.path(), &elsewhere).unwrap();
        fs::write(&elsewhere, [7; KEY_BYTES]).unwrap();
        symlink(&elsewhere, key_file.path()).unwrap();
        let linked = key_file.read_or_make();
        assert!(matches!(linked, Err(KeyError::Kind { found: "a symbolic link", .. })), "{linked:?}");
        // One that the user has named may be a link.
        let named = KeyFile { source: KeySource::Variable, ..key_file.clone() };
        assert_eq!(named.read().unwrap(), Some([7; KEY_BYTES]));
        fs::remove_file(key_file.path()).unwrap();
        nix::unistd::mkfifo(key_file.path(), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(matches!(key_file.read(), Err(KeyError::Kind { found: "a special file", .. })));
    }

    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let key_file = in_runtime_directory(folder.path());
        let directory = key_file.path().parent().unwrap().to_owned();
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(key_file.read_or_make(), Err(KeyError::Exposed { mode: 0o755, .. })));
        fs::remove_dir(&directory).unwrap();
        let own = folder.path().join("own");
        DirBuilder::new().mode(0o700).create(&own).unwrap();
        symlink(&own, &directory).unwrap();
        let linked = key_file.read_or_make();
        assert!(matches!(linked, Err(KeyError::Kind { found: "a symbolic link", .. })), "{linked:?}");
        assert_eq!(fs::read_dir(&own).unwrap().count(), 0, "something was made behind the link");
    }

    #[test]
    fn the_runtime_directory_has_the_key_unless_a_file_is_named_or_ranks_are_on_other_hosts() {
        let folder = tempfile::tempdir().unwrap();
        let (home, runtime) = (folder.path().join("home"), folder.path().join("run"));
        for directory in [&home, &runtime] {
            DirBuilder::new().mode(0o700).create(directory).unwrap();
        }
        let user = geteuid().as_raw();
        let chosen = |named: Option<&str>, spans_hosts| {
            let file = KeyFile::choose(Surroundings {
                named: named.map(OsString::from),
                home: Some(home.clone()),
                runtime: vec!["relative".into(), folder.path().join("gone"), runtime.clone()],
                spans_hosts,
                user,
            });
            (file.path().to_owned(), file.source())
        };
        let of_home = (home.join(".stillwire/key"), KeySource::Home);
        let of_runtime = (runtime.join("stillwire/key"), KeySource::Runtime);
        assert_eq!(chosen(Some("/a/key"), true), ("/a/key".into(), KeySource::Variable));
        assert_eq!(chosen(None, false), of_runtime);
        assert_eq!(chosen(None, true), of_home);
        // Two shells of a user may have different homes.
        file(of_home.0, KeySource::Home).read_or_make().unwrap();
        assert_eq!(chosen(None, false), of_runtime);
        fs::set_permissions(&runtime, fs::Permissions::from_mode(0o777)).unwrap();
        let fallback = PathBuf::from(format!("/tmp/stillwire-{user}/key"));
        assert_eq!(chosen(None, false), (fallback.clone(), KeySource::Runtime));
        let bare = KeyFile::choose(Surroundings { user, spans_hosts: true, ..Surroundings::default() });
        assert_eq!((bare.path(), bare.source()), (&*fallback, KeySource::Runtime));
    }
}
