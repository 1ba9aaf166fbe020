//! Pid namespaces: one for each rank, so that a restored process and its threads get the very ids that they had.
//!
//! ```text
//!   keeper --fork--> starter        joins the keeper's user namespace, makes the pid namespace, starts both, ends
//!      |---- child:  first          id 1 there; `stillwire __first`. When it is killed, the kernel ends all in the namespace
//!      `---- child:  rank           the id that it had (at its first start: the starter's); mounts /proc anew, executes the program
//! ```
//!
//! Both are the keeper's own children (`CLONE_PARENT`): a rank's end is reported as usual, and its parent is nobody's id inside (0). Where the keeper
//! may not make pid namespaces, it makes one user namespace first, which all its ranks are in: processes of different ones could not share memory.
//! The first process stays outside with its files: through it a rank finds the others ([`drivers::shm::host`]).

use std::ffi::{CStr, CString, c_char, c_int, c_ulong};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use drivers::shm::host::FIRST_PROCESS;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, getegid, geteuid, pipe2};

/// The command of this program that is the first process of a namespace.
pub(crate) const FIRST_COMMAND: &str = "__first";

/// Ids below are left to the first processes of a system: the kernel, too, begins there again when it has come to the end.
const IDS_BEGIN: u32 = 300;

/// `CAP_SYS_ADMIN`: to make namespaces and to mount. `CAP_CHECKPOINT_RESTORE`: to choose ids.
const RIGHT_NAMESPACES: u32 = 21;
const RIGHT_IDS: u32 = 40;

/// Steps that may fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Users,
    Join,
    Namespace,
    First,
    Id,
    Mounts,
    Proc,
    Last,
    Right,
}

const STEPS: [Step; 9] = [
    Step::Users,
    Step::Join,
    Step::Namespace,
    Step::First,
    Step::Id,
    Step::Mounts,
    Step::Proc,
    Step::Last,
    Step::Right,
];

impl Step {
    fn words(self) -> &'static str {
        match self {
            Step::Users => "make a user namespace",
            Step::Join => "join the keeper's user namespace",
            Step::Namespace => "make a pid namespace",
            Step::First => "start its first process",
            Step::Id => "start a process in it under a chosen id (clone3)",
            Step::Mounts => "make a mount namespace",
            Step::Proc => "mount /proc in it",
            Step::Last => "say which id comes next (/proc/sys/kernel/ns_last_pid)",
            Step::Right => "hand on the right to choose ids (CAP_CHECKPOINT_RESTORE)",
        }
    }

    fn fix(self, errno: Errno) -> &'static str {
        match (self, errno) {
            (Step::Users | Step::Namespace | Step::Mounts, Errno::ENOSPC) => {
                "raise user.max_user_namespaces, user.max_pid_namespaces and user.max_mnt_namespaces (sysctl)"
            }
            (Step::Users, _) => {
                "have user namespaces allowed (sysctl kernel.unprivileged_userns_clone=1; in a container: its seccomp profile)"
            }
            (Step::Namespace | Step::Mounts | Step::Join, Errno::EPERM | Errno::EACCES) => {
                "have user namespaces with rights allowed (sysctl kernel.apparmor_restrict_unprivileged_userns=0)"
            }
            (Step::Proc, _) => {
                "have /proc unmasked, if this is a container (nothing may be mounted over parts of it)"
            }
            (Step::Id, Errno::EINVAL) => "raise kernel.pid_max (sysctl) above the ids of the saved processes",
            (Step::Id | Step::Right, _) => "use Linux 5.9 or newer; in a container: have clone3 allowed",
            (Step::Last, _) => "use a kernel with CONFIG_CHECKPOINT_RESTORE",
            _ => "raise the limit of processes (ulimit -u)",
        }
    }
}

/// Why a rank cannot have a pid namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a pid namespace for a rank is not available: cannot {}: {} ({errno}); {}, or start without --pid-namespace",
    step.words(),
    errno.desc(),
    step.fix(*errno)
)]
pub struct NamespaceError {
    step: Step,
    errno: Errno,
}

impl NamespaceError {
    /// The problem, and its cure.
    pub fn parts(error: &io::Error) -> (String, &'static str) {
        let own = error.get_ref().and_then(|error| error.downcast_ref::<NamespaceError>());
        own.map_or_else(
            || (error.to_string(), "mount /proc"),
            |NamespaceError { step, errno }| {
                (format!("cannot {}: {} ({errno})", step.words(), errno.desc()), step.fix(*errno))
            },
        )
    }
}

/// The process that a rank needs in its namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    /// A new process. Its id is one that nobody has on this host; those of its threads and children come from its own part of all ids.
    New { part: u32, parts: u32 },
    /// The process of an image, and the last id that its namespace had given.
    Saved { id: u32, last: u32 },
}

/// Makes namespaces for the ranks of a node.
#[derive(Debug)]
pub struct Namespaces {
    /// The ranks' user namespace; `None`: the keeper's own.
    users: Option<OwnedFd>,
    /// This program.
    program: CString,
    /// One more than the highest id.
    ids_end: u32,
}

/// A process that is being started, and the end of the pipe by which it reports how far it is.
#[derive(Debug)]
pub(crate) struct Starting {
    reported: OwnedFd,
}

/// A rank's process and the first one of its namespace, by the ids that the keeper knows them by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Started {
    pub(crate) pid: Pid,
    pub(crate) first: Pid,
}

impl Namespaces {
    /// Finds out whether there can be any.
    pub fn new() -> io::Result<Namespaces> {
        let program = CString::new(std::env::current_exe()?.into_os_string().into_vec())?;
        let text = std::fs::read_to_string("/proc/sys/kernel/pid_max")?;
        let ids_end = text.trim().parse().map_err(io::Error::other)?;
        let users = if has_right(RIGHT_NAMESPACES) { None } else { Some(make_users()?) };
        let namespaces = Namespaces { users, program, ids_end };
        namespaces.try_out()?;
        Ok(namespaces)
    }

    /// Starts something as a rank would be, and ends it.
    fn try_out(&self) -> io::Result<()> {
        let mut command = quiet(Command::new(std::env::current_exe()?));
        let starting = self.put(&mut command, Wanted::Saved { id: IDS_BEGIN, last: IDS_BEGIN }, -1, false)?;
        let spawned = command.spawn();
        let Started { pid, first } = starting.finish(spawned)?.1;
        let _ = kill(first, Signal::SIGKILL);
        for pid in [pid, first] {
            let _ = waitpid(pid, None);
        }
        Ok(())
    }

    /// Has a command start its program in a namespace of its own. `kept`: a descriptor that the first process is to have, or -1.
    /// `leads_session`: it gets a session of its own, not only a group.
    pub(crate) fn put(
        &self,
        command: &mut Command,
        wanted: Wanted,
        kept: RawFd,
        leads_session: bool,
    ) -> io::Result<Starting> {
        let (reported, reports) = pipe2(OFlag::O_CLOEXEC)?;
        let entering = Entering {
            users: self.users.as_ref().map(|users| users.as_raw_fd()),
            program: self.program.clone(),
            ids_end: self.ids_end,
            wanted,
            kept,
            leads_session,
            gives_right: self.users.is_some()
                && matches!(wanted, Wanted::Saved { .. })
                && !geteuid().is_root(),
            reports,
        };
        // SAFETY: `enter` makes system calls only, on memory that was made before the fork: it neither allocates nor locks.
        unsafe { command.pre_exec(move || entering.enter()) };
        Ok(Starting { reported })
    }
}

impl Starting {
    /// To be asked when the command has started its program, or has not.
    pub(crate) fn finish(self, spawned: io::Result<Child>) -> io::Result<(Child, Started)> {
        let mut words = Vec::new();
        nix::fcntl::fcntl(&self.reported, nix::fcntl::FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        // The starter has ended. Where a rank still has the other end, nothing more comes from it.
        let _ = File::from(self.reported).read_to_end(&mut words);
        let mut started = None;
        let mut failed = None;
        for word in words.chunks_exact(size_of::<StartReport>()) {
            let number = |at: usize| {
                let bytes = word.get(at * 4..at * 4 + 4).and_then(|bytes| bytes.try_into().ok());
                i32::from_le_bytes(bytes.unwrap_or_default())
            };
            match number(0) {
                FAILED => {
                    let step = usize::try_from(number(1)).ok().and_then(|step| STEPS.get(step));
                    failed =
                        step.map(|step| NamespaceError { step: *step, errno: Errno::from_raw(number(2)) });
                }
                _ => started = Some((Pid::from_raw(number(1)), Pid::from_raw(number(2)))),
            }
        }
        match (spawned, started) {
            (Ok(mut starter), Some((first, pid))) => {
                starter.wait()?;
                Ok((starter, Started { pid, first }))
            }
            (spawned, started) => {
                for pid in
                    started.into_iter().flat_map(|(first, pid)| [first, pid]).filter(|pid| pid.as_raw() > 1)
                {
                    let _ = kill(pid, Signal::SIGKILL);
                }
                let pids = started.into_iter().flat_map(|(first, pid)| [pid, first]);
                for pid in pids.filter(|pid| pid.as_raw() > 1) {
                    let _ = waitpid(pid, None);
                }
                let error = spawned.err().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into());
                Err(failed.map_or(error, io::Error::other))
            }
        }
    }
}

/// Messages on the pipe: [`FAILED`], the step, the error; or [`STARTED`], the first process and the rank's, or 0 as long as there is none.
type StartReport = [i32; 3];
const FAILED: i32 = 0;
const STARTED: i32 = 1;

/// The arguments of the starter.
struct Entering {
    users: Option<RawFd>,
    program: CString,
    ids_end: u32,
    wanted: Wanted,
    kept: RawFd,
    leads_session: bool,
    gives_right: bool,
    reports: OwnedFd,
}

/// Between fork and exec: system calls, and nothing else.
impl Entering {
    /// Returns in the rank's process alone.
    fn enter(&self) -> io::Result<()> {
        self.try_enter().map_err(|(step, errno)| {
            let number = STEPS.iter().position(|found| *found == step).and_then(|at| i32::try_from(at).ok());
            self.report([FAILED, number.unwrap_or(0), errno as i32]);
            io::Error::from_raw_os_error(errno as i32)
        })
    }

    fn report(&self, word: StartReport) {
        let mut bytes = [0; size_of::<StartReport>()];
        for (place, number) in bytes.chunks_exact_mut(4).zip(word) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        // Its reader is gone: this process ends, too.
        let _ = nix::unistd::write(&self.reports, &bytes);
    }

    fn try_enter(&self) -> Result<(), (Step, Errno)> {
        let keeper = nix::unistd::getppid();
        // SAFETY: takes numbers; this process has one thread.
        unsafe {
            if let Some(users) = self.users {
                done(libc::setns(users, libc::CLONE_NEWUSER), Step::Join)?;
            }
            done(libc::unshare(libc::CLONE_NEWPID), Step::Namespace)?;
        }
        let first = self.start_first()?;
        self.report([STARTED, first, 0]);
        // From here on the first process ends with the keeper's thread, and all in the namespace with it.
        if nix::unistd::getppid() != keeper {
            return Err((Step::First, Errno::ESRCH));
        }
        let own = std::process::id();
        let (id, last) = match self.wanted {
            Wanted::New { part, parts } => (own, first_of_part(own, part, parts, self.ids_end)),
            Wanted::Saved { id, last } => (id, last.min(self.ids_end - 1)),
        };
        let pid = clone_beside(Some(id)).map_err(|errno| (Step::Id, errno))?;
        if pid != 0 {
            self.report([STARTED, first, pid]);
            // SAFETY: ends this process at once, and runs none of the keeper's destructors or exit handlers.
            unsafe { libc::_exit(0) };
        }
        self.settle(last)
    }

    /// Starts the first process, and waits until it is known as the first process.
    fn start_first(&self) -> Result<i32, (Step, Errno)> {
        let (ready, reports) = pipe2(OFlag::O_CLOEXEC).map_err(|errno| (Step::First, errno))?;
        let pid = clone_beside(None).map_err(|errno| (Step::First, errno))?;
        if pid == 0 {
            self.become_first(reports.as_raw_fd());
        }
        drop(reports);
        match nix::unistd::read(&ready, &mut [0]) {
            Ok(1) => Ok(pid),
            Ok(_) => Err((Step::First, Errno::ECHILD)),
            Err(errno) => Err((Step::First, errno)),
        }
    }

    fn become_first(&self, reports: RawFd) -> ! {
        let arguments: [*const c_char; 3] = [self.program.as_ptr(), c"__first".as_ptr(), std::ptr::null()];
        // SAFETY: system calls on numbers, and on strings that live until this process executes another program or ends.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as c_ulong);
            libc::setpgid(0, 0);
            // A process that loses its parent becomes its child, and is reaped when it ends.
            libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            libc::chdir(c"/".as_ptr());
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            libc::dup2(null, 0);
            libc::dup2(null, 2);
            libc::dup2(reports, 1);
            libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
            if self.kept >= 0 {
                libc::fcntl(self.kept, libc::F_SETFD, 0);
            }
            // With the keeper's environment: a search for a job's processes by that finds this one.
            libc::execv(self.program.as_ptr(), arguments.as_ptr());
            libc::_exit(127)
        }
    }

    /// In the rank's process, before its program runs.
    fn settle(&self, last: u32) -> Result<(), (Step, Errno)> {
        // SAFETY: system calls on numbers and constant strings.
        unsafe {
            // A group of its own, as without a namespace; the starter's is not to be seen in here.
            if self.leads_session {
                libc::setsid();
            } else {
                libc::setpgid(0, 0);
            }
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as c_ulong);
            done(libc::unshare(libc::CLONE_NEWNS), Step::Mounts)?;
            let (none, root, proc) = (std::ptr::null(), c"/".as_ptr(), c"proc".as_ptr());
            // Later mounts outside become visible here, but none from here outside.
            let slave = libc::MS_REC | libc::MS_SLAVE;
            done(libc::mount(none, root, none, slave, std::ptr::null()), Step::Mounts)?;
            let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
            done(libc::mount(proc, c"/proc".as_ptr(), proc, flags, std::ptr::null()), Step::Proc)?;
        }
        let mut digits = [0; 10];
        write_file(c"/proc/sys/kernel/ns_last_pid", decimal(last, &mut digits))
            .map_err(|errno| (Step::Last, errno))?;
        if self.gives_right { raise_right().map_err(|errno| (Step::Right, errno)) } else { Ok(()) }
    }
}

fn done(answer: c_int, step: Step) -> Result<(), (Step, Errno)> {
    if answer == 0 { Ok(()) } else { Err((step, Errno::last())) }
}

/// The begin of a new namespace's ids. Each rank of a job has its own part, so that its processes get other ids than those of other ranks.
fn first_of_part(own: u32, part: u32, parts: u32, ids_end: u32) -> u32 {
    let width = u64::from(ids_end) / (u64::from(parts) + 1);
    let begin = (u64::from(own) + width * (u64::from(part) + 1)) % u64::from(ids_end.max(1));
    u32::try_from(begin).unwrap_or(0).max(IDS_BEGIN)
}

/// A fork whose parent is this process's own; under this id in the namespace that was made, if it is given. 0 in the new process.
fn clone_beside(id: Option<u32>) -> Result<i32, Errno> {
    let ids = [id.unwrap_or(0)];
    // SAFETY: numbers alone; all zeros mean nothing asked for.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = libc::CLONE_PARENT as u64;
    if id.is_some() {
        (arguments.set_tid, arguments.set_tid_size) = (ids.as_ptr() as u64, 1);
    }
    // SAFETY: the kernel reads the arguments and the id; the new process has a copy of this one's memory and goes on here, alone.
    let pid = unsafe {
        libc::syscall(libc::SYS_clone3, &raw mut arguments, std::mem::offset_of!(libc::clone_args, cgroup))
    };
    if pid < 0 { Err(Errno::last()) } else { Ok(i32::try_from(pid).unwrap_or(i32::MAX)) }
}

fn write_file(path: &CStr, text: &[u8]) -> Result<(), Errno> {
    // SAFETY: system calls on a constant string and bytes that live; the opened descriptor is closed.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return Err(Errno::last());
        }
        let written = libc::write(fd, text.as_ptr().cast(), text.len());
        let errno = Errno::last();
        libc::close(fd);
        if written < 0 { Err(errno) } else { Ok(()) }
    }
}

/// A number in digits, where nothing may allocate.
fn decimal(value: u32, digits: &mut [u8; 10]) -> &[u8] {
    let mut left = value;
    let mut first = digits.len();
    for (place, digit) in digits.iter_mut().enumerate().rev() {
        *digit = b'0' + u8::try_from(left % 10).unwrap_or(0);
        (left, first) = (left / 10, place);
        if left == 0 {
            break;
        }
    }
    &digits[first..]
}

/// `_LINUX_CAPABILITY_VERSION_3`, and this process; then effective, permitted, inheritable, twice, for 64 bits.
fn rights() -> Result<([u32; 2], [u32; 6]), Errno> {
    let (mut header, mut rights) = ([0x2008_0522, 0], [0; 6]);
    // SAFETY: the kernel reads the header and writes the rights, of this frame.
    let answer = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), rights.as_mut_ptr()) };
    if answer == 0 { Ok((header, rights)) } else { Err(Errno::last()) }
}

fn has_right(right: u32) -> bool {
    rights().is_ok_and(|(_, [effective, ..])| effective >> right & 1 == 1)
}

/// The program that is executed has the right to choose ids, as the only one; the restore gives it up.
fn raise_right() -> Result<(), Errno> {
    let (mut header, mut rights) = rights()?;
    let [.., inheritable] = &mut rights;
    *inheritable |= 1 << (RIGHT_IDS - 32);
    let ambient = libc::PR_CAP_AMBIENT_RAISE as c_ulong;
    // SAFETY: the kernel reads values in this frame, and takes numbers.
    unsafe {
        if libc::syscall(libc::SYS_capset, header.as_mut_ptr(), rights.as_ptr()) != 0
            || libc::prctl(libc::PR_CAP_AMBIENT, ambient, c_ulong::from(RIGHT_IDS), 0, 0) != 0
        {
            return Err(Errno::last());
        }
    }
    Ok(())
}

fn quiet(mut command: Command) -> Command {
    command.arg(FIRST_COMMAND).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    super::process::end_with_launcher(&mut command, Signal::SIGKILL);
    command
}

/// A user namespace in which this user has the same id as outside, and nobody else has one.
fn make_users() -> io::Result<OwnedFd> {
    let map = |id: u32| format!("{id} {id} 1\n");
    let (users, groups) = (map(geteuid().as_raw()), map(getegid().as_raw()));
    let mut command = quiet(Command::new(std::env::current_exe()?));
    // SAFETY: system calls on strings that were made before the fork.
    unsafe {
        command.pre_exec(move || {
            if libc::unshare(libc::CLONE_NEWUSER) != 0 {
                return Err(io::Error::last_os_error());
            }
            write_file(c"/proc/self/setgroups", b"deny")?;
            write_file(c"/proc/self/uid_map", users.as_bytes())?;
            Ok(write_file(c"/proc/self/gid_map", groups.as_bytes())?)
        });
    }
    let failed = |error: io::Error| {
        let errno = Errno::from_raw(error.raw_os_error().unwrap_or_default());
        io::Error::other(NamespaceError { step: Step::Users, errno })
    };
    let mut holder = command.spawn().map_err(failed)?;
    let users = File::open(PathBuf::from(format!("/proc/{}/ns/user", holder.id())));
    let _ = holder.kill();
    holder.wait()?;
    Ok(users?.into())
}

/// The first process of a namespace: there until it is killed, which the kernel does when the keeper ends.
pub fn be_first() -> ! {
    let mut name = [0; 16];
    name.iter_mut().zip(FIRST_PROCESS.bytes()).for_each(|(place, byte)| *place = byte);
    // SAFETY: the kernel reads 16 bytes of this frame; the descriptor is this process's own, which nothing else uses.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, name.as_ptr());
        let output = OwnedFd::from_raw_fd(1);
        let _ = nix::unistd::write(&output, b"!");
    }
    loop {
        nix::unistd::pause();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_digits() {
        for number in [0, 7, 10, 32_768, u32::MAX] {
            assert_eq!(decimal(number, &mut [0; 10]), number.to_string().as_bytes());
        }
    }

    #[test]
    fn every_rank_counts_from_a_part_of_its_own() {
        let begins: Vec<u32> = (0..4).map(|part| first_of_part(1000, part, 4, 32_768)).collect();
        assert_eq!(begins, [7553, 14_106, 20_659, 27_212]);
        assert_eq!(first_of_part(30_000, 0, 1, 32_768), 13_616);
        assert_eq!(first_of_part(32_767, 0, u32::MAX, 32_768), 32_767);
        assert_eq!(first_of_part(5, 0, u32::MAX, 32_768), IDS_BEGIN, "as the kernel does");
    }

    #[test]
    fn every_failure_says_what_to_do() {
        for step in STEPS {
            for errno in [Errno::EPERM, Errno::ENOSPC, Errno::EINVAL] {
                let text = NamespaceError { step, errno }.to_string();
                assert!(text.contains(step.words()) && text.contains(step.fix(errno)), "{text}");
            }
        }
    }
}
