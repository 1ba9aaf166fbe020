//! The socket on which a helper listens.

use std::fs::{self, Metadata, Permissions};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket};
use nix::unistd::{Gid, chown, geteuid};

use super::discard;
use crate::error::{DriverError, Errno};
use crate::xdp::check_capabilities;

/// Why there is no helper.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// It has not got the rights.
    #[error(
        "it needs {missing}, which this process lacks: run it as root, or give it these (AmbientCapabilities= of systemd, or \
         `setcap cap_net_admin,cap_net_raw,cap_bpf+ep`)"
    )]
    Rights {
        /// Their names.
        missing: &'static str,
    },
    /// Another one is there.
    #[error("another nic-helper listens at {}: end it, or name another socket (--socket)", path.display())]
    Another {
        /// Where.
        path: PathBuf,
    },
    /// Something else is there.
    #[error("{} is there and is no socket: remove it, or name another socket (--socket)", path.display())]
    NoSocket {
        /// Where.
        path: PathBuf,
    },
    /// Other users could put a socket of theirs in its place.
    #[error(
        "the socket would not be safe at {}: {} of user {uid}, permissions {mode:o}, lets other users replace files; \
         use a directory that only root can write to (--socket)",
        path.display(),
        folder.display()
    )]
    Folder {
        /// Where.
        path: PathBuf,
        /// The folder that others can write to.
        folder: PathBuf,
        /// Its owner.
        uid: u32,
        /// Its permissions.
        mode: u32,
    },
    /// The system.
    #[error("cannot listen at {}: {errno}", path.display())]
    Listen {
        /// Where.
        path: PathBuf,
        /// The system's error.
        errno: Errno,
    },
}

/// A listening socket, and whether the kernel keeps descriptors away from it.
pub(super) struct Listener {
    pub(super) socket: OwnedFd,
    pub(super) refuses_descriptors: bool,
}

/// Listens at `path`, which gets these permissions. With `refuse_descriptors` the kernel keeps descriptors away, if it can.
pub(super) fn open(
    path: &Path,
    mode: u32,
    group: Option<u32>,
    refuse_descriptors: bool,
) -> Result<Listener, HelperError> {
    if let Err(DriverError::CapabilityMissing { missing }) = check_capabilities() {
        return Err(HelperError::Rights { missing });
    }
    let failed = |errno| HelperError::Listen { path: path.to_owned(), errno };
    let known = |error: nix::errno::Errno| failed(Errno(error as i32));
    let file = |error: std::io::Error| failed(Errno::from(&error));
    let address = UnixAddr::new(path).map_err(known)?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let make = || socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).map_err(known);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(file)?;
        check_folder(path, folder)?;
    }
    if let Ok(found) = fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(HelperError::NoSocket { path: path.to_owned() });
        }
        // A socket without a listener was left by a killed helper.
        match connect(make()?.as_raw_fd(), &address) {
            Err(nix::errno::Errno::ECONNREFUSED) => fs::remove_file(path).map_err(file)?,
            _ => return Err(HelperError::Another { path: path.to_owned() }),
        }
    }
    let socket = make()?;
    let refuses_descriptors = refuse_descriptors && discard::refuse_descriptors(socket.as_fd());
    bind(socket.as_raw_fd(), &address).map_err(known)?;
    // No client gets in before the file has its permissions.
    if let Some(group) = group {
        chown(path, None, Some(Gid::from_raw(group))).map_err(known)?;
    }
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(file)?;
    listen(&socket, Backlog::MAXALLOWABLE).map_err(known)?;
    Ok(Listener { socket, refuses_descriptors })
}

/// Only root and this user can replace the folder, a folder above it, or a file in it.
fn check_folder(path: &Path, folder: &Path) -> Result<(), HelperError> {
    let failed =
        |error: std::io::Error| HelperError::Listen { path: path.to_owned(), errno: Errno::from(&error) };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    for folder in fs::canonicalize(folder).map_err(failed)?.ancestors() {
        let found = fs::metadata(folder).map_err(failed)?;
        if !is_safe(&found, geteuid().as_raw()) {
            let (uid, mode) = (found.uid(), found.mode() & 0o7777);
            return Err(HelperError::Folder { path: path.to_owned(), folder: folder.to_owned(), uid, mode });
        }
    }
    Ok(())
}

/// In a folder with the sticky bit, such as /tmp, others make files and replace none of ours.
fn is_safe(folder: &Metadata, own: u32) -> bool {
    let is_sticky = folder.mode() & 0o1000 != 0;
    [0, own].contains(&folder.uid()) && (folder.mode() & 0o022 == 0 || is_sticky)
}
