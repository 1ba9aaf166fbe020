//! The root of a tree: a descriptor that was opened once, and through which everything below is reached.
//!
//! Images are executed, so a directory that another user could fill or exchange is not used. [`Root::private`] goes to it component by component, each
//! from the descriptor of the one before, and checks each: nobody but us and root can put another directory in its place. So a path that was checked
//! stays what it is until we or root change it, and code that has to hand a path to others (a program's loader, another process) may do so.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, readlinkat};
use nix::libc;
use nix::sys::stat::{FileStat, Mode, fstat, mkdirat};
use nix::sys::statvfs::fstatvfs;
use nix::unistd::geteuid;

use super::super::{Operation, StorageError};

/// Images hold a program's memory, secrets included: only their owner may read them.
pub(super) const FILE_MODE: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);
pub(super) const DIRECTORY_MODE: Mode = Mode::S_IRWXU;

/// Symbolic links that a path may go through, as for the kernel.
const LINKS_MAX: u32 = 40;

/// Users who may own a component above a root: we ourselves, and this one.
const ROOT_USER: u32 = 0;

/// Group and others.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;
const PERMISSIONS: u32 = 0o7777;

/// The map of users in which all have their own numbers.
const ALL_USERS: [&str; 3] = ["0", "0", "4294967295"];

/// Opens a directory only to go on from it: the right to read it is not needed. `O_DIRECTORY` also has an automounter mount it.
const PASS: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// An open directory, and its path for messages.
#[derive(Debug)]
pub(super) struct Root {
    fd: OwnedFd,
    path: PathBuf,
    /// `O_NOFOLLOW`, unless links in it are somebody's who may have them.
    links: OFlag,
}

/// The part of a path that is not safe from other users.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExposedPart {
    /// The directory itself.
    Root,
    /// A directory above it.
    Above,
    /// A symbolic link on the way.
    Link,
}

/// Why other users could put files of their own into a job's directory, or another directory in its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exposure {
    /// The component that they can change.
    pub path: String,
    /// Its part in the whole path.
    pub part: ExposedPart,
    /// The user that it belongs to.
    pub owner: u32,
    /// Its permissions.
    pub mode: u32,
    /// The user of this process.
    pub user: u32,
}

impl Exposure {
    fn is_theirs(&self) -> bool {
        self.owner != self.user && (self.part == ExposedPart::Root || self.owner != ROOT_USER)
    }

    /// The change that makes it safe, if it is ours.
    #[must_use]
    pub fn cure(&self) -> String {
        match (self.part, self.is_theirs()) {
            (ExposedPart::Root, true) => format!(", or run as user {}", self.owner),
            (_, true) => String::new(),
            (_, false) => {
                format!(", or run `chmod go-w {}` if no other user has put anything there", self.path)
            }
        }
    }
}

impl fmt::Display for Exposure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Exposure { path, part, owner, mode, user } = self;
        let (expected, why) = match (part, self.is_theirs()) {
            (ExposedPart::Root, true) => {
                (format!("user {user}"), "its owner can put images there, which would be executed")
            }
            (ExposedPart::Root, false) => (
                "no write permission for group and others".to_owned(),
                "they can put images there, which would be executed",
            ),
            (ExposedPart::Above, true) => (
                format!("user {user} or root"),
                "its owner can put another directory in the place of one in it",
            ),
            (ExposedPart::Above, false) => (
                "no write permission for group and others, or the sticky bit".to_owned(),
                "they can put another directory in the place of one in it",
            ),
            (ExposedPart::Link, _) => (
                format!("user {user} or root"),
                "it is a symbolic link, and its owner can have it lead elsewhere",
            ),
        };
        write!(f, "{path} belongs to user {owner} and has mode {mode:04o}, expected {expected}: {why}")
    }
}

impl Root {
    /// A directory that only we and root can change.
    pub(super) fn private(path: &Path) -> Result<Root, StorageError> {
        Walk::to(path, false)
    }

    /// The same; it is made, with missing directories above it, durably.
    pub(super) fn make_private(path: &Path) -> Result<Root, StorageError> {
        Walk::to(path, true)
    }

    /// A directory that others may change as well.
    pub(super) fn shared(path: &Path) -> Result<Root, StorageError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let opened = open(path, flags, Mode::empty());
        let fd = opened.map_err(|errno| refused(path, Operation::List, errno))?;
        Ok(Root { fd, path: path.to_owned(), links: OFlag::empty() })
    }

    /// The same; it is made, with missing directories above it, durably.
    pub(super) fn make_shared(path: &Path) -> Result<Root, StorageError> {
        make_missing(path).map_err(|error| {
            refused(path, Operation::CreateDirectory, Errno::from_raw(error.raw_os_error().unwrap_or(0)))
        })?;
        Root::shared(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Whether links are followed below.
    pub(super) fn follows_links(&self) -> bool {
        self.links.is_empty()
    }

    /// Opens a file or directory below; the empty path is the root itself. Components between the two can be links only if we have made them.
    pub(super) fn open_at(&self, path: &str, flags: OFlag) -> io::Result<File> {
        let name = if path.is_empty() { "." } else { path };
        Ok(openat(&self.fd, name, flags | self.links | OFlag::O_CLOEXEC, FILE_MODE)?.into())
    }

    /// A path below, for messages.
    pub(super) fn shown(&self, path: &str) -> String {
        let whole = if path.is_empty() { self.path.clone() } else { self.path.join(path) };
        whole.display().to_string()
    }

    pub(super) fn free_bytes(&self) -> Result<u64, Errno> {
        let found = fstatvfs(&self.fd)?;
        Ok(found.blocks_available().saturating_mul(found.fragment_size()))
    }

    pub(super) fn failed(
        &self,
        operation: Operation,
        path: &str,
        wanted_bytes: u64,
        error: &io::Error,
    ) -> StorageError {
        let errno = Errno::from_raw(error.raw_os_error().unwrap_or(0));
        storage_error(self.shown(path), operation, errno, || (wanted_bytes, self.free_bytes().ok()))
    }
}

/// The way to a root.
struct Walk<'a> {
    /// The whole path, as it was asked for.
    wanted: &'a Path,
    user: u32,
    at: OwnedFd,
    /// Where that is.
    path: PathBuf,
    /// Components that follow.
    ahead: VecDeque<OsString>,
    links: u32,
}

impl Walk<'_> {
    fn to(wanted: &Path, makes: bool) -> Result<Root, StorageError> {
        let operation = if makes { Operation::CreateDirectory } else { Operation::List };
        let failed = |errno| refused(wanted, operation, errno);
        let absolute = std::path::absolute(wanted)
            .map_err(|error| failed(Errno::from_raw(error.raw_os_error().unwrap_or(Errno::ENOENT as i32))))?;
        let (at, path) = (from_the_top().map_err(failed)?, PathBuf::from("/"));
        let ahead = names(&absolute).collect();
        let mut walk = Walk { wanted, user: geteuid().as_raw(), at, path, ahead, links: 0 };
        while let Some(name) = walk.ahead.pop_front() {
            let found = fstat(&walk.at).map_err(failed)?;
            walk.check(&found, ExposedPart::Above)?;
            walk.enter(&name, makes).map_err(|stop| match stop {
                Stop::Failed(errno) => failed(errno),
                Stop::Exposed(error) => error,
            })?;
        }
        let found = fstat(&walk.at).map_err(failed)?;
        walk.check(&found, ExposedPart::Root)?;
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = openat(&walk.at, ".", flags, Mode::empty()).map_err(failed)?;
        Ok(Root { fd, path: wanted.to_owned(), links: OFlag::O_NOFOLLOW })
    }

    /// Goes into a directory, or to the beginning of a link's target.
    fn enter(&mut self, name: &OsStr, makes: bool) -> Result<(), Stop> {
        let next = match openat(&self.at, name, PASS, Mode::empty()) {
            Err(Errno::ENOENT) if makes => {
                self.make(name)?;
                openat(&self.at, name, PASS, Mode::empty())?
            }
            Err(Errno::ENOTDIR | Errno::ELOOP) => return self.follow(name),
            opened => opened?,
        };
        self.at = next;
        if name == ".." {
            self.path.pop();
        } else {
            self.path.push(name);
        }
        Ok(())
    }

    fn make(&self, name: &OsStr) -> Result<(), Errno> {
        match mkdirat(&self.at, name, DIRECTORY_MODE) {
            // Somebody else was first: whose it is, is checked like that of any other.
            Err(Errno::EEXIST) => return Ok(()),
            made => made?,
        }
        let above =
            openat(&self.at, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        nix::unistd::fsync(&above)
    }

    /// The name is no directory: a link is followed by its text.
    fn follow(&mut self, name: &OsStr) -> Result<(), Stop> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let link = openat(&self.at, name, flags, Mode::empty())?;
        let found = fstat(&link)?;
        if found.st_mode & libc::S_IFMT != libc::S_IFLNK {
            return Err(Errno::ENOTDIR.into());
        }
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Errno::ELOOP.into());
        }
        let above = self.path.clone();
        self.path.push(name);
        self.check(&found, ExposedPart::Link).map_err(Stop::Exposed)?;
        self.path = above;
        // Of the very link that was checked.
        let target = PathBuf::from(readlinkat(&link, "")?);
        if target.is_absolute() {
            (self.at, self.path) = (from_the_top()?, PathBuf::from("/"));
        }
        for name in names(&target).collect::<Vec<_>>().into_iter().rev() {
            self.ahead.push_front(name);
        }
        Ok(())
    }

    fn check(&self, found: &FileStat, part: ExposedPart) -> Result<(), StorageError> {
        let (owner, mode) = (found.st_uid, found.st_mode & PERMISSIONS);
        let is_ours = match part {
            ExposedPart::Root => owner == self.user,
            ExposedPart::Above | ExposedPart::Link => {
                owner == self.user || owner == ROOT_USER || is_hidden(owner)
            }
        };
        let is_closed = match part {
            ExposedPart::Root => mode & OTHERS_WRITE == 0,
            // In a sticky directory others can exchange their own entries only, and the next component has to be ours or root's.
            ExposedPart::Above => mode & OTHERS_WRITE == 0 || mode & STICKY != 0,
            // A link's mode means nothing.
            ExposedPart::Link => true,
        };
        if is_ours && is_closed {
            return Ok(());
        }
        let path = self.path.display().to_string();
        let exposure = Exposure { path, part, owner, mode, user: self.user };
        Err(StorageError::Exposed { path: self.wanted.display().to_string(), exposure })
    }
}

/// Why a walk has ended before its end.
enum Stop {
    Failed(Errno),
    Exposed(StorageError),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Failed(errno)
    }
}

fn from_the_top() -> Result<OwnedFd, Errno> {
    open("/", PASS, Mode::empty())
}

fn names(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

/// Whether this is the number that a user namespace shows for every user that it has no number for, real root among them: a rank with ids of its own, or a
/// container without root, cannot tell them apart. The keeper of such a rank has checked the same path outside. Only a component above a root may belong
/// to such a user.
fn is_hidden(owner: u32) -> bool {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let hidden = read("/proc/sys/kernel/overflowuid").trim().parse();
    hidden == Ok(owner) && !read("/proc/self/uid_map").split_ascii_whitespace().eq(ALL_USERS)
}

fn make_missing(path: &Path) -> io::Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().unwrap_or(Path::new(""));
    make_missing(parent)?;
    match DirBuilder::new().mode(DIRECTORY_MODE.bits()).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(()) if parent.as_os_str().is_empty() => File::open(".")?.sync_all(),
        Ok(()) => File::open(parent)?.sync_all(),
    }
}

fn refused(path: &Path, operation: Operation, errno: Errno) -> StorageError {
    storage_error(path.display().to_string(), operation, errno, || (0, None))
}

fn storage_error(
    path: String,
    operation: Operation,
    errno: Errno,
    space: impl FnOnce() -> (u64, Option<u64>),
) -> StorageError {
    match errno {
        Errno::ENOENT => StorageError::NotFound { operation, path },
        Errno::EEXIST => StorageError::AlreadyExists { operation, path },
        Errno::ENOTEMPTY => StorageError::NotEmpty { operation, path },
        Errno::EACCES | Errno::EPERM => StorageError::Permission { operation, path },
        Errno::EROFS => StorageError::ReadOnly { operation, path },
        Errno::ENOSPC | Errno::EDQUOT => {
            let (wanted_bytes, free_bytes) = space();
            StorageError::NoSpace { path, wanted_bytes, free_bytes }
        }
        Errno::EISDIR | Errno::ENOTDIR => StorageError::WrongType { operation, path },
        Errno::EIO => StorageError::Device { operation, path },
        _ => StorageError::Io { operation, path, errno: errno as i32 },
    }
}
