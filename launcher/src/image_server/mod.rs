//! Moves images between directories of nodes while no life of the job runs (R35): a process on each node's host, at the other end of standard input and
//! output, reads or writes files as the launcher asks, and holds the node's lock meanwhile (R30).
//!
//! Bytes pass through the launcher, because hosts need no way to each other but the ranks' network, over which nothing goes before a life begins.

mod pipe;
mod server;
mod wire;

use std::io::{self, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ckpt_glue::protection::seat::Seat;
use nix::sys::signal::Signal;
use store::job::TakenFile;
use store::{Decision, GenerationId, Manifest};
use transport::{JobId, Rank};

use super::Node;
use super::nodes::NodeRoot;
use super::secrets::KEY_VARIABLE;
use super::signals::thread_without_signals;
use super::spawn::process::end_with_launcher;
use super::spawn::remote_shell::node_command;
use super::version::VERSION;
use crate::error::LauncherError;
use crate::limits::COPY_SILENT_MAX;
use pipe::Pipe;
pub use server::serve as serve_images;
use wire::{Answer, Part, Request};

/// A host answers within this time, or is not there.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Interval of heartbeats to a server.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(5);

/// A node of a job, for its server.
#[derive(Clone, Debug)]
pub struct ImageNode {
    /// The job.
    pub job: JobId,
    /// Its number.
    pub node: u32,
    /// Where the nodes have their directories.
    pub root: NodeRoot,
}

/// A server of a node's images, and the lock of that node. Dropped, it ends.
#[derive(Debug)]
pub struct ImageServer {
    of: ImageNode,
    host: String,
    child: Child,
    /// Locked while one message is written.
    to: Arc<Mutex<Pipe>>,
    from: BufReader<Pipe>,
    buffer: Vec<u8>,
    /// The server may have made the node's directory in the new layout.
    is_prepared: bool,
}

impl ImageServer {
    /// Starts the server of a node's images on the node's host. It ends with the thread that calls this.
    ///
    /// # Errors
    /// No process can be started here. Whether the host answers is not known before the first request.
    pub fn start(place: &Node, of: &ImageNode) -> Result<ImageServer, LauncherError> {
        let host = place.name();
        let failed = |error| LauncherError::Keeper { host: place.name(), error };
        let mut command = node_command(place, "__images")?;
        command.env_remove(KEY_VARIABLE).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        end_with_launcher(&mut command, Signal::SIGKILL);
        let mut child = command.spawn().map_err(failed)?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        };
        let pipe = |fd: OwnedFd| Pipe::new(fd, COPY_SILENT_MAX).map_err(failed);
        let (to, from) = (Arc::new(Mutex::new(pipe(to.into())?)), BufReader::new(pipe(from.into())?));
        let server =
            ImageServer { of: of.clone(), host, child, to, from, buffer: Vec::new(), is_prepared: false };
        send_heartbeats(Arc::downgrade(&server.to), HEARTBEAT_EVERY).map_err(failed)?;
        Ok(server)
    }

    /// The host answers, and its program is this version.
    fn greet(&mut self) -> Result<(), LauncherError> {
        let ImageNode { job, node, root } = self.of.clone();
        self.ask(&Request::Begin { version: VERSION.to_owned(), job: job.0, node, root })
    }

    /// Whether a host answers, and has this version of the program.
    pub fn answers(place: &Node, of: &ImageNode) -> bool {
        let (send, answer) = crossbeam_channel::bounded(1);
        let (place, of) = (place.clone(), of.clone());
        // One that hangs ends with the launcher, or with its remote shell.
        let asked = thread_without_signals("ask", move || {
            send.send(ImageServer::start(&place, &of).and_then(|mut server| server.greet()).is_ok())
        });
        asked.is_ok() && answer.recv_timeout(ANSWER_MAX).unwrap_or(false)
    }

    /// Takes the lock of a node of the former layout, which knows no other lives than `decisions`.
    pub fn hold(&mut self, decisions: &[Decision]) -> Result<(), LauncherError> {
        self.greet()?;
        self.ask(&Request::Hold { decisions: decisions.to_vec() })
    }

    /// Takes the lock of a node of the new layout, and makes its directory, in which nothing is left of an earlier attempt. It knows the seat that the
    /// launcher holds (R34).
    pub fn prepare(
        &mut self,
        job_file: &[u8],
        decisions: &[Decision],
        generation: GenerationId,
        seat: Option<Seat>,
    ) -> Result<(), LauncherError> {
        let (job_file, decisions) = (job_file.to_vec(), decisions.to_vec());
        self.greet()?;
        self.is_prepared = true;
        self.ask(&Request::Prepare { job_file, decisions, generation, seat })
    }

    /// Copies a file of a rank to another node. False: there is none; only a base may be missing. `copied` gets the bytes of each piece.
    pub fn copy_to(
        &mut self,
        other: &mut ImageServer,
        (generation, rank, file): (GenerationId, Rank, TakenFile),
        copied: &mut dyn FnMut(u64),
    ) -> Result<bool, LauncherError> {
        let part = Part { generation, rank: rank.0, is_base: file == TakenFile::Base };
        self.send(&Request::Read(part))?;
        let mut is_begun = false;
        loop {
            match self.answer()? {
                Answer::Absent if !is_begun => return Ok(false),
                Answer::Data(bytes) => {
                    if !core::mem::replace(&mut is_begun, true) {
                        other.send(&Request::Write(part))?;
                    }
                    wire::read_piece(&mut self.from, bytes, &mut self.buffer)
                        .map_err(|error| self.lost(&error))?;
                    other.send_piece(&self.buffer)?;
                    copied(u64::from(bytes));
                }
                Answer::Done if is_begun => {
                    other.ask(&Request::End)?;
                    return Ok(true);
                }
                other => return Err(self.refused(other)),
            }
        }
    }

    /// Reads every byte of the images that lie on the node, and commits the generation there: they are those that the manifest names.
    pub fn commit(&mut self, manifest: &Manifest) -> Result<(), LauncherError> {
        self.ask(&Request::Commit(manifest.clone()))
    }

    /// Whether the lock that [`ImageServer::hold`] has taken is still held.
    pub fn confirm(&mut self) -> Result<(), LauncherError> {
        self.ask(&Request::Confirm)
    }

    /// Removes the node's directory in the new layout, if the server has made it: the job stays in the former one. A file that is being copied ends with it.
    ///
    /// # Errors
    /// [`LauncherError::NotDiscarded`]
    pub fn discard(&mut self) -> Result<(), LauncherError> {
        if !self.is_prepared {
            return Ok(());
        }
        self.ask(&Request::Discard).map_err(|error| {
            let directory = format!("{}/{}", self.of.root, self.of.node);
            LauncherError::NotDiscarded { host: self.host.clone(), directory, problem: problem(error) }
        })
    }

    /// The job goes on in another layout: from now on no life begins from this node's directory.
    ///
    /// # Errors
    /// [`LauncherError::NotMarked`]
    pub fn leave(&mut self) -> Result<(), LauncherError> {
        self.ask(&Request::Leave).map_err(|error| {
            let (host, root) = (self.host.clone(), self.of.root.to_string());
            LauncherError::NotMarked { host, root, problem: problem(error) }
        })
    }

    fn ask(&mut self, request: &Request) -> Result<(), LauncherError> {
        self.send(request)?;
        match self.answer()? {
            Answer::Done => Ok(()),
            other => Err(self.refused(other)),
        }
    }

    fn send(&mut self, request: &Request) -> Result<(), LauncherError> {
        wire::write(&mut *locked(&self.to), request).map_err(|error| self.lost(&error))
    }

    fn send_piece(&mut self, bytes: &[u8]) -> Result<(), LauncherError> {
        let mut to = locked(&self.to);
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let sent = wire::write(&mut *to, &Request::Data(length)).and_then(|()| to.write_all(bytes));
        sent.map_err(|error| self.lost(&error))
    }

    fn answer(&mut self) -> Result<Answer, LauncherError> {
        loop {
            match wire::read(&mut self.from).map_err(|error| self.lost(&error))? {
                Answer::Busy => {}
                answer => return Ok(answer),
            }
        }
    }

    fn refused(&self, answer: Answer) -> LauncherError {
        let problem = match answer {
            Answer::Refused(why) => why,
            _ => "its answer is none to the question; that is a bug".to_owned(),
        };
        LauncherError::Images { host: self.host.clone(), problem }
    }

    fn lost(&self, error: &io::Error) -> LauncherError {
        let problem = match error.kind() {
            io::ErrorKind::TimedOut => format!("it has not answered for {COPY_SILENT_MAX:?}"),
            _ => format!("the connection was lost ({error})"),
        };
        LauncherError::Images { host: self.host.clone(), problem }
    }
}

/// Sends heartbeats until the launcher drops the pipe. A server that receives nothing for `LAUNCHER_SILENT_MAX` frees its lock.
fn send_heartbeats(to: Weak<Mutex<Pipe>>, every: Duration) -> io::Result<()> {
    let heartbeat = wire::emit(&Request::Heartbeat)?;
    thread_without_signals("heartbeats", move || {
        loop {
            std::thread::sleep(every);
            let Some(to) = to.upgrade() else { return };
            // If it is locked, another thread is writing. The thread that waits for an answer reports a lost server.
            if to.try_lock().is_ok_and(|mut to| to.try_write(&heartbeat).is_err()) {
                return;
            }
        }
    })?;
    Ok(())
}

fn locked(pipe: &Mutex<Pipe>) -> MutexGuard<'_, Pipe> {
    pipe.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The problem alone.
fn problem(error: LauncherError) -> String {
    match error {
        LauncherError::Images { problem, .. } => problem,
        other => other.to_string(),
    }
}

impl Drop for ImageServer {
    /// Nothing is under way: a file that was not finished has no name. The lock is free when this returns, or a remote shell has noticed it.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_gets_heartbeats_as_long_as_its_launcher_has_the_pipe() {
        let (from, to) = nix::unistd::pipe().expect("a pipe");
        let to = Arc::new(Mutex::new(Pipe::new(to, COPY_SILENT_MAX).expect("an end")));
        send_heartbeats(Arc::downgrade(&to), Duration::from_millis(2)).expect("a thread");
        let mut from = std::fs::File::from(from);
        for _ in 0..2 {
            assert_eq!(wire::read::<Request>(&mut from).expect("a message"), Request::Heartbeat);
        }
        drop(to);
        let rest = std::iter::from_fn(|| wire::read::<Request>(&mut from).ok());
        assert!(rest.fuse().all(|request| request == Request::Heartbeat), "and then the end");
    }
}
