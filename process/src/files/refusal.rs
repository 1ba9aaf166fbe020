//! The reasons why a descriptor cannot be saved, with remedies.

use std::os::fd::RawFd;

/// A descriptor that cannot be saved.
#[derive(Clone, PartialEq, Eq, Debug, Hash, thiserror::Error)]
#[error("descriptor {number} ({what}): {why}")]
pub struct Refusal {
    /// Its number; of several that share one open file description, the lowest.
    pub number: u32,
    /// Its target.
    pub what: String,
    /// The reason, with a remedy.
    pub why: &'static str,
}

/// The reasons.
pub(super) mod why {
    pub(in super::super) const SOCKET: &str =
        "a connection to the outside cannot be restored; close it before a checkpoint";
    pub(in super::super) const SOCKET_NAMED: &str =
        "a Unix socket with an address can have partners outside; close it before a checkpoint";
    pub(in super::super) const SOCKET_ALONE: &str =
        "a Unix socket that is not connected; close it before a checkpoint, or use socketpair(2)";
    pub(in super::super) const SOCKET_OUTSIDE: &str =
        "the other end of the socket is in another process; close it before a checkpoint";
    pub(in super::super) const PEER_UNTOLD: &str = "the kernel does not report which process has the other end of the socket (sock_diag(7) is forbidden here or not built in); close it before a checkpoint";
    pub(in super::super) const CONTROL: &str =
        "descriptors or credentials wait in the socket; receive them before a checkpoint";
    pub(in super::super) const PIPE_OUTSIDE: &str =
        "the other end of the pipe is in another process; close it before a checkpoint";
    pub(in super::super) const SHARED_OUTSIDE: &str =
        "another process has it open as well; close it there or here before a checkpoint";
    pub(in super::super) const NAMED_PIPE: &str =
        "a named pipe can have partners outside; close it before a checkpoint";
    pub(in super::super) const TERMINAL: &str =
        "a terminal belongs to a session that will be over; start the program without one, or close it";
    pub(in super::super) const DEVICE: &str =
        "the state of a device cannot be saved; close it before a checkpoint";
    pub(in super::super) const OTHER_PROCESS: &str = "it shows another process or a single thread, which will have another number; close it before a checkpoint";
    pub(in super::super) const OTHER_NAME: &str = "it was removed under this name but has another one, which is not known; close it before a checkpoint";
    pub(in super::super) const UNREACHABLE: &str =
        "no file, or another one, is found at that path; close it before a checkpoint";
    pub(in super::super) const UNREAD: &str =
        "its content could not be read as a whole; close it before a checkpoint";
    pub(in super::super) const UNNAMED_TOO_LARGE: &str = "a file without a name is copied into the image, and is too large for that; give it a name (do not unlink it)";
    pub(in super::super) const DIRECTORY_GONE: &str =
        "the directory was removed; close it before a checkpoint";
    pub(in super::super) const LEASE: &str =
        "a lease or a lock of a kind that cannot be taken again; give it up before a checkpoint";
    pub(in super::super) const ASYNC: &str =
        "signal-driven input and output (O_ASYNC) cannot be restored; clear it before a checkpoint";
    pub(in super::super) const UNTOLD: &str = "the kernel does not report its state in /proc/self/fdinfo (CONFIG_PROC_FS, CONFIG_CHECKPOINT_RESTORE)";
    pub(in super::super) const WATCHED_GONE: &str = "the watched descriptor was closed here, and only another process has it open; remove it with EPOLL_CTL_DEL";
    pub(in super::super) const UNCOMPARED: &str = "kcmp(2) is forbidden here, and two descriptors look alike: whether they share an offset cannot be known; allow kcmp(2)";

    /// The kind of a descriptor that has no file behind it.
    pub(in super::super) fn other(link: &[u8], mode: u32) -> &'static str {
        const KINDS: [(&[u8], &str); 14] = [
            (
                b"anon_inode:inotify",
                "watches of inotify(7) cannot be read back; close it before a checkpoint",
            ),
            (
                b"anon_inode:[fanotify]",
                "marks of fanotify(7) cannot be read back; close it before a checkpoint",
            ),
            (
                b"anon_inode:[userfaultfd]",
                "its owner serves page faults by userfaultfd(2), and cannot after a restart",
            ),
            (
                b"anon_inode:[io_uring]",
                "rings of io_uring(7) are shared with the kernel; make the program use ordinary calls",
            ),
            (
                b"anon_inode:[perf_event]",
                "counters of perf_event_open(2) cannot be restored; run without the profiler",
            ),
            (
                b"anon_inode:bpf",
                "programs and maps of bpf(2) cannot be restored; close it before a checkpoint",
            ),
            (
                b"anon_inode:[pidfd]",
                "it refers to a process (pidfd_open(2)) that will have another number; close it before a checkpoint",
            ),
            (
                b"pidfd:",
                "it refers to a process (pidfd_open(2)) that will have another number; close it before a checkpoint",
            ),
            (b"anon_inode:[fscontext]", "a mount in the making (fsopen(2)); close it before a checkpoint"),
            (b"anon_inode:kvm", "virtual machines cannot be saved"),
            (
                b"anon_inode:[infiniband",
                "it belongs to an RDMA device; a provider must give it up before a checkpoint",
            ),
            (
                b"anon_inode:[landlock",
                "a set of rules of landlock(7) in the making; close it before a checkpoint",
            ),
            (b"/dmabuf:", "memory of a device (dma-buf) cannot be saved"),
            (
                b"anon_inode:seccomp",
                "a listener of seccomp(2) serves other processes; close it before a checkpoint",
            ),
        ];
        if let Some((_, why)) = KINDS.iter().find(|(start, _)| link.starts_with(start)) {
            return why;
        }
        match mode & libc::S_IFMT {
            libc::S_IFIFO => NAMED_PIPE,
            libc::S_IFBLK => DEVICE,
            libc::S_IFLNK => "a symbolic link opened by itself (O_PATH); close it before a checkpoint",
            libc::S_IFREG => {
                "it stands for a namespace or another object of the kernel; close it before a checkpoint"
            }
            _ => "an object of the kernel that this build knows no way to save; close it before a checkpoint",
        }
    }
}

/// The kind of a socket and its peer, for a report.
pub(super) fn socket(number: RawFd, link: &[u8]) -> String {
    use std::os::fd::BorrowedFd;
    let link = String::from_utf8_lossy(link);
    // SAFETY: used within this function only; a number that was closed meanwhile gives errors.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    let kind = match nix::sys::socket::getsockopt(&fd, nix::sys::socket::sockopt::SockType) {
        Ok(nix::sys::socket::SockType::Stream) => "stream",
        Ok(nix::sys::socket::SockType::Datagram) => "datagram",
        _ => "raw",
    };
    let name = nix::sys::socket::getsockname::<nix::sys::socket::SockaddrStorage>(number);
    let peer = nix::sys::socket::getpeername::<nix::sys::socket::SockaddrStorage>(number);
    match (name, peer) {
        (Ok(name), Ok(peer)) => format!("{link}, {kind}, {name} to {peer}"),
        (Ok(name), Err(_)) => format!("{link}, {kind}, {name}"),
        _ => format!("{link}, {kind}"),
    }
}
