//! The processes of a job: of a rank, and those that ranks spawn.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use ckpt_glue::control::{Control, ControlKey, ControlReader, ControlWriter};
use ckpt_glue::error::Malformed;
use ckpt_glue::names::ExitStatus;
use client::input::INPUT_VARIABLE;
use client::launch::{Launch, SOCKET_VARIABLE};
use client::parent_job::PARENT_JOB_VARIABLE;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, killpg, pthread_sigmask};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid, getppid};
use transport::Life;

use super::descriptors::{self, Descriptors};
use super::namespace::{Namespaces, Starting, Wanted};
use super::pidfd::{PidFd, has_ended};
use super::program::Program;
use crate::keeper::terminal::Terminal;
use crate::key::KeyFile;
use crate::limits::{CONTROL_QUEUE_BYTES_MAX, READ_BYTES};
use crate::mpi::environment::is_foreign;
use crate::pmi;

/// Names the environment variables from which a program learns its rank without opening a session.
const RANK_VARIABLE: &str = "STILLWIRE_RANK";
const RANKS_VARIABLE: &str = "STILLWIRE_RANKS";

/// A process, and all that it starts: a process group, or a session with several.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) pid: Pid,
    /// The first process of its pid namespace, if it has one of its own.
    pub(crate) first: Option<Pid>,
    /// It leads a session, and may be a shell that puts what it starts into groups of their own.
    leads_session: bool,
}

/// How a rank gets a pid namespace of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PidNamespace<'a> {
    pub(crate) namespaces: &'a Namespaces,
    pub(crate) wanted: Wanted,
}

/// A started rank.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) group: Group,
    pub(crate) life: Life,
    /// Its provider has opened an endpoint, and reported its NIC.
    pub(crate) has_network: bool,
    stream: UnixStream,
    writer: ControlWriter,
    reader: ControlReader,
    waiting: Vec<u8>,
}

/// Standard input of a rank that reads the job's.
#[derive(Debug)]
pub(crate) struct Stdin {
    pub(crate) pipe: OwnedFd,
    /// The number of bytes written into it, in the form of [`client::input`].
    pub(crate) count: OwnedFd,
}

/// A rank's ends of the descriptors that it shares with the keeper, besides the socket of control messages.
#[derive(Debug)]
pub(crate) struct RankEnds {
    pub(crate) pmi: UnixStream,
    /// `None`: nothing is to be read there.
    pub(crate) stdin: Option<Stdin>,
    /// The terminal that it reads from and prints to, in place of pipes.
    pub(crate) terminal: Option<Terminal>,
}

/// The pipes of a process's output.
#[derive(Debug)]
pub(crate) struct Pipes {
    pub(crate) stdout: OwnedFd,
    /// `None`: both are one terminal.
    pub(crate) stderr: Option<OwnedFd>,
    pub(crate) is_terminal: bool,
}

impl Pipes {
    fn of(child: &mut Child) -> io::Result<Pipes> {
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(ErrorKind::BrokenPipe.into());
        };
        let stderr = Some(non_blocking(stderr.into())?);
        Ok(Pipes { stdout: non_blocking(stdout.into())?, stderr, is_terminal: false })
    }
}

/// Data received over a rank's connection.
#[derive(Debug, Default)]
pub(crate) struct Received {
    pub(crate) controls: Vec<Control>,
    /// The connection is of no use any more: the rank closed it, or sent an invalid message.
    pub(crate) closed: bool,
    pub(crate) malformed: Option<Malformed>,
}

/// Which of how many processes one is to an MPI library, and its end of the socket over which those find each other.
#[derive(Debug)]
pub(crate) struct SpawnSpec {
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    /// The same among those of its host.
    pub(crate) local: u32,
    pub(crate) locals: u32,
    pub(crate) pmi: UnixStream,
    /// Where the provider finds the job's key, as a variable.
    pub(crate) key: Option<(&'static str, PathBuf)>,
    /// The parent job, which a spawned process reports to ranks that are saved as whole processes.
    pub(crate) parent_job: Option<String>,
}

impl Group {
    /// Starts a process that ranks have spawned.
    pub(crate) fn spawn(
        program: &Program,
        spec: SpawnSpec,
        descriptors: Descriptors,
    ) -> io::Result<(Group, Pipes)> {
        let mut command = command(program, &spec);
        command.env(pmi::SPAWNED_VARIABLE, "1").env_remove(SOCKET_VARIABLE);
        prepare_child(&mut command, [spec.pmi.as_raw_fd(); 3], descriptors);
        command.process_group(0);
        let (group, mut child) = Group::start(&mut command, None)?;
        Ok((group, Pipes::of(&mut child)?))
    }

    /// `starting`: in a namespace, as the command asked for.
    fn start(command: &mut Command, starting: Option<Starting>) -> io::Result<(Group, Child)> {
        let spawned = command.spawn();
        let (child, group) = match starting {
            Some(starting) => {
                let (child, started) = starting.finish(spawned)?;
                (child, Group { pid: started.pid, first: Some(started.first), leads_session: false })
            }
            None => {
                let child = spawned?;
                let pid = Pid::from_raw(i32::try_from(child.id()).map_err(|_| ErrorKind::InvalidData)?);
                (child, Group { pid, first: None, leads_session: false })
            }
        };
        Ok((group, child))
    }

    /// Ends it at once, with all processes that it started. The status is collected as for any other end; it must not have been yet.
    pub(crate) fn kill(self) {
        self.signal(Signal::SIGKILL);
        if let Some(first) = self.first {
            // And with it all that has left the group.
            let _ = kill(first, Signal::SIGKILL);
        }
    }

    /// Stops it, or has it go on, with all processes that it started and that are still in its group.
    pub(crate) fn signal(self, signal: Signal) {
        // No such group: it has ended already.
        let _ = killpg(self.pid, signal);
        if self.leads_session {
            signal_session(self.pid, signal);
        }
    }

    /// Its own id, and that of the first process of its namespace, which is in a group of its own.
    pub(crate) fn pids(self) -> impl Iterator<Item = Pid> {
        core::iter::once(self.pid).chain(self.first)
    }

    /// How it ended, if it has. Processes that it started and left behind end with it: as long as it is not collected, the group is its own.
    pub(crate) fn try_wait(self) -> Option<ExitStatus> {
        if !has_ended(self.pid) {
            return None;
        }
        self.kill();
        match waitpid(self.pid, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(_, code)) => {
                Some(ExitStatus::Code(u8::try_from(code & 0xff).unwrap_or(u8::MAX)))
            }
            Ok(WaitStatus::Signaled(_, signal, _)) => {
                Some(ExitStatus::Signal(u8::try_from(signal as i32).unwrap_or(u8::MAX)))
            }
            Ok(_) | Err(Errno::EINTR) => None,
            // Somebody else collected it, which nobody does.
            Err(_) => Some(ExitStatus::Signal(0)),
        }
    }
}

/// A program with the settings of every process of a job. It dies with this thread: a launcher that is killed leaves no process.
/// It is to be put into a group of its own: so it can be ended with everything that it started, and Ctrl-C reaches the launcher alone.
fn command(program: &Program, spec: &SpawnSpec) -> Command {
    let mut command = Command::new(&program.command[0]);
    if let Some(inherited) = &program.inherited {
        command.env_clear().envs(inherited.iter().filter(|(name, _)| !is_foreign(name)).cloned());
    }
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_foreign(name)) {
        command.env_remove(name);
    }
    let (rank, ranks) = (spec.rank.to_string(), spec.ranks.to_string());
    command
        .args(&program.command[1..])
        .current_dir(&program.directory)
        .envs(spec.key.clone())
        .envs(spec.parent_job.as_ref().map(|parent_job| (PARENT_JOB_VARIABLE, parent_job)))
        .envs(program.environment.iter().map(|(name, value)| (name, value)))
        .env(RANK_VARIABLE, &rank)
        .env(RANKS_VARIABLE, &ranks)
        .env(pmi::FD_VARIABLE, spec.pmi.as_raw_fd().to_string())
        // Of a rank in which this launcher runs.
        .env_remove(agent::PMI_LAUNCHERS_VARIABLE)
        .env_remove(agent::IDS_VARIABLE)
        .env_remove(INPUT_VARIABLE)
        .env(pmi::RANK_VARIABLE, &rank)
        .env(pmi::SIZE_VARIABLE, &ranks)
        .env(pmi::LOCAL_RANK_VARIABLE, spec.local.to_string())
        .env(pmi::LOCAL_SIZE_VARIABLE, spec.locals.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

impl Process {
    /// Starts a rank, which is the how-manieth of how many on this host. `key`: the job's, for the provider of programs of MPI libraries.
    pub(crate) fn spawn(
        program: &Program,
        launch: &Launch,
        (local, locals): (u32, u32),
        RankEnds { pmi, stdin, terminal }: RankEnds,
        key: &KeyFile,
        descriptors: Descriptors,
        pid_namespace: Option<PidNamespace<'_>>,
    ) -> io::Result<(Process, Pipes)> {
        let (ours, theirs) = UnixStream::pair()?;
        // The record fits the socket's buffer many times over, so nobody has to read for this to return.
        (&ours).write_all(&launch.emit())?;
        ours.set_nonblocking(true)?;
        let (rank, ranks) = (launch.rank.0, launch.ranks);
        let key_place = if pid_namespace.is_some() { key.variable_inside() } else { key.variable() };
        let spec = SpawnSpec { rank, ranks, local, locals, pmi, key: key_place, parent_job: None };
        let mut command = command(program, &spec);
        command.env(SOCKET_VARIABLE, theirs.as_raw_fd().to_string());
        if pid_namespace.is_some_and(|pid_namespace| matches!(pid_namespace.wanted, Wanted::Saved { .. })) {
            command.env(agent::IDS_VARIABLE, agent::IDS_KEPT);
        }
        let mut inherited = [theirs.as_raw_fd(), spec.pmi.as_raw_fd(), spec.pmi.as_raw_fd()];
        // Open until the process has it.
        let _count = stdin.map(|Stdin { pipe, count }| {
            inherited[2] = count.as_raw_fd();
            command.stdin(pipe).env(INPUT_VARIABLE, count.as_raw_fd().to_string());
            count
        });
        prepare_child(&mut command, inherited, descriptors);
        let has_terminal = terminal.is_some();
        if !has_terminal {
            command.process_group(0);
        }
        let put = |pid_namespace: PidNamespace<'_>| {
            pid_namespace.namespaces.put(&mut command, pid_namespace.wanted, key.number(), has_terminal)
        };
        let starting = pid_namespace.map(put).transpose()?;
        let (group, pipes) = match terminal {
            None => {
                let (group, mut child) = Group::start(&mut command, starting)?;
                (group, Pipes::of(&mut child)?)
            }
            Some(Terminal { keeper_end, rank_end, .. }) => {
                command.stdin(rank_end.try_clone()?).stdout(rank_end.try_clone()?).stderr(rank_end);
                lead_session(&mut command);
                let (group, _) = Group::start(&mut command, starting)?;
                let group = Group { leads_session: true, ..group };
                (group, Pipes { stdout: keeper_end, stderr: None, is_terminal: true })
            }
        };
        let key = ControlKey::new(&launch.key);
        let process = Process {
            group,
            life: launch.life,
            has_network: false,
            stream: ours,
            writer: ControlWriter::new(key.clone()),
            reader: ControlReader::new(key),
            waiting: Vec::new(),
        };
        Ok((process, pipes))
    }

    pub(crate) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Sends a message, or keeps it until the rank reads. `false`: the rank does not read for too long.
    pub(crate) fn send(&mut self, control: &Control) -> bool {
        self.writer.emit(control, &mut self.waiting);
        self.flush();
        self.waiting.len() <= CONTROL_QUEUE_BYTES_MAX
    }

    /// Whether messages wait for the rank to read.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends the waiting bytes, as far as the rank reads.
    pub(crate) fn flush(&mut self) {
        let mut sent = 0;
        while sent < self.waiting.len() {
            match self.stream.write(&self.waiting[sent..]) {
                Ok(written) => sent += written,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // It has ended; its status shows how.
                Err(_) => sent = self.waiting.len(),
            }
        }
        self.waiting.drain(..sent);
    }

    /// Reads available bytes.
    pub(crate) fn hear(&mut self) -> Received {
        let mut heard = Received::default();
        let mut chunk = vec![0; READ_BYTES];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => heard.closed = true,
                Ok(read) => self.reader.feed(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return heard,
                Err(_) => heard.closed = true,
            }
            loop {
                match self.reader.next() {
                    Ok(Some(control)) => heard.controls.push(control),
                    Ok(None) => break,
                    Err(error) => {
                        heard.malformed = Some(error);
                        heard.closed = true;
                        break;
                    }
                }
            }
            if heard.closed {
                return heard;
            }
        }
    }
}

fn prepare_child(command: &mut Command, inherited: [i32; 3], descriptors: Descriptors) {
    end_with_launcher(command, Signal::SIGKILL);
    // SAFETY: between fork and exec only async-signal-safe calls may be made. These are plain system calls (close_range,
    // fcntl, setrlimit) without allocation or locks, and the closure captures integers.
    unsafe {
        command.pre_exec(move || {
            // Also descriptors that the launcher itself was given: a program that is to be saved holds nothing that it does not know of.
            libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
            for number in inherited {
                let fd = std::os::fd::BorrowedFd::borrow_raw(number);
                nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()))?;
            }
            descriptors::restore(descriptors)?;
            Ok(())
        });
    }
}

/// To all processes of a session, whose leader has not been collected yet.
fn signal_session(leader: Pid, signal: Signal) {
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).map(Pid::from_raw);
    let is_member = |pid: Pid| nix::unistd::getsid(Some(pid)) == Ok(leader);
    for pid in pids.filter(|pid| is_member(*pid)) {
        // Once more, of the process that is held: the number may have passed to another one.
        if let Ok(process) = PidFd::open(pid)
            && is_member(pid)
        {
            let _ = process.signal(signal);
        }
    }
}

/// The process leads a session, whose terminal is its standard input.
fn lead_session(command: &mut Command) {
    // SAFETY: between fork and exec only async-signal-safe calls may be made. These are plain system calls.
    unsafe {
        command.pre_exec(|| {
            // Of a rank in a pid namespace, that has been done.
            if nix::unistd::getsid(None)? != getpid() {
                nix::unistd::setsid()?;
            }
            Errno::result(libc::ioctl(libc::STDIN_FILENO, libc::TIOCSCTTY, 0))?;
            Ok(())
        });
    }
}

/// A process that gets this signal when the thread that starts it ends, and blocks no signal.
pub fn end_with_launcher(command: &mut Command, signal: Signal) {
    let launcher = getpid();
    // SAFETY: between fork and exec only async-signal-safe calls may be made. These are plain system calls (sigprocmask,
    // prctl, getppid) without allocation or locks, and the closure captures two integers.
    unsafe {
        command.pre_exec(move || {
            pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
            nix::sys::prctl::set_pdeathsig(signal)?;
            if getppid() != launcher {
                // It died before the line above.
                return Err(Errno::ESRCH.into());
            }
            Ok(())
        });
    }
}

/// The descriptor, whose calls do not block from now on.
pub fn non_blocking(fd: OwnedFd) -> io::Result<OwnedFd> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(fd)
}
