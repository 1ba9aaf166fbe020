//! People's commands to a running job: one line of JSON each way, over the job's socket.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use ckpt_glue::control::{JobPhase, JobStatus, Source};
use ckpt_glue::job::Event;
use ckpt_glue::protocols::CheckpointEvent;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use super::limits::{ANSWER_MAX, CLIENTS_MAX, REQUEST_BYTES_MAX};
use super::registry::{JobInfo, Registration, socket_of};
use crate::error::CliError;

/// What a command asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub(crate) enum Request {
    /// What are you doing?
    Status,
    /// Take a checkpoint, and answer when it is durable or has come to nothing.
    Checkpoint,
    /// End the job.
    Stop,
}

/// What a job answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// To [`Request::Status`].
    Status(Status),
    /// The checkpoint is durable.
    Committed { generation: String, milliseconds: u64, bytes: u64 },
    /// There is no checkpoint, and why.
    Failed { reason: String },
    /// The job is being ended.
    Stopping,
}

/// What a job is doing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) phase: String,
    pub(crate) life: Option<String>,
    pub(crate) committed: Option<String>,
    pub(crate) commits: u32,
    pub(crate) rollbacks: u32,
    pub(crate) ranks: u32,
    pub(crate) running: u32,
    pub(crate) finalizing: u32,
    pub(crate) saving: Option<u32>,
}

impl Status {
    fn of(status: &JobStatus) -> Status {
        let phase = match status.phase {
            JobPhase::Gathering => "gathering",
            JobPhase::Fencing => "fencing",
            JobPhase::BackingOff => "backing-off",
            JobPhase::Deciding => "deciding",
            JobPhase::Starting => "starting",
            JobPhase::Running => "running",
            JobPhase::Finishing => "finishing",
            JobPhase::Over => "over",
        };
        Status {
            phase: phase.to_owned(),
            life: status.life.map(|life| life.to_string()),
            committed: status.committed.map(|generation| generation.to_string()),
            commits: status.commits,
            rollbacks: status.rollbacks,
            ranks: status.ranks,
            running: status.running,
            finalizing: status.finalizing,
            saving: status.saving.map(|epoch| epoch.0),
        }
    }
}

/// What the launcher has to do about a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answered {
    /// Nothing.
    Wait,
    /// Ask the coordinator for a checkpoint.
    Checkpoint,
    /// End the job.
    Stop,
    /// Forget the connection.
    Gone,
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    held: Vec<u8>,
    waits: bool,
}

/// The job's socket and who is connected to it.
#[derive(Debug)]
pub(crate) struct Requests {
    listener: UnixListener,
    clients: BTreeMap<u64, Client>,
    next: u64,
}

impl Requests {
    pub(crate) fn listen(registration: &Registration) -> Result<Requests, CliError> {
        let path = registration.socket();
        let failed = |error| CliError::Registry { path: path.clone(), error };
        // Left by a launcher of this job that was killed together with its guard.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Requests { listener, clients: BTreeMap::new(), next: 1 })
    }

    pub(crate) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// The next connection of this user.
    pub(crate) fn accept(&mut self) -> Option<(u64, &UnixStream)> {
        loop {
            let (stream, _) = self.listener.accept().ok()?;
            let own = getsockopt(&stream, PeerCredentials).is_ok_and(|peer| peer.uid() == geteuid().as_raw());
            if own && self.clients.len() < CLIENTS_MAX && stream.set_nonblocking(true).is_ok() {
                let number = self.next;
                self.next += 1;
                let client = Client { stream, held: Vec::new(), waits: false };
                return Some((number, &self.clients.entry(number).or_insert(client).stream));
            }
        }
    }

    /// Reads from a connection, and answers what can be answered at once.
    pub(crate) fn read(&mut self, number: u64, status: &JobStatus) -> Answered {
        let Some(client) = self.clients.get_mut(&number) else { return Answered::Gone };
        let mut chunk = [0; 512];
        let open = loop {
            match client.stream.read(&mut chunk) {
                Ok(0) => break false,
                Ok(read) => client.held.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break true,
                Err(_) => break false,
            }
            if client.held.len() > REQUEST_BYTES_MAX {
                break false;
            }
        };
        let line = client.held.iter().position(|byte| *byte == b'\n').map(|end| {
            let line: Vec<u8> = client.held.drain(..=end).collect();
            serde_json::from_slice::<Request>(&line)
        });
        let answered = match line {
            None => Answered::Wait,
            Some(Ok(Request::Status)) => {
                client.answer(&Answer::Status(Status::of(status)));
                Answered::Wait
            }
            Some(Ok(Request::Checkpoint)) => {
                client.waits = true;
                Answered::Checkpoint
            }
            Some(Ok(Request::Stop)) => {
                client.answer(&Answer::Stopping);
                Answered::Stop
            }
            Some(Err(error)) => {
                client.answer(&Answer::Failed { reason: format!("not a request of this version: {error}") });
                Answered::Wait
            }
        };
        if !open && answered != Answered::Stop {
            self.clients.remove(&number);
            return Answered::Gone;
        }
        answered
    }

    /// Answers those who wait for a checkpoint.
    pub(crate) fn on_event(&mut self, event: &Event) {
        let answer = match event {
            Event::Checkpoint(CheckpointEvent::Committed {
                generation,
                source: Source::Command,
                took,
                images,
            }) => Answer::Committed {
                generation: generation.to_string(),
                milliseconds: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
                bytes: images.iter().map(|image| image.bytes).sum(),
            },
            Event::Checkpoint(CheckpointEvent::Abandoned { source: Source::Command, reason, epoch }) => {
                let reason = crate::text::abandoned(reason);
                Answer::Failed { reason: format!("epoch {epoch} was abandoned: {reason}") }
            }
            Event::Checkpoint(CheckpointEvent::Refused { source: Source::Command, reason }) => {
                Answer::Failed { reason: crate::text::refused(*reason).to_owned() }
            }
            _ => return,
        };
        for client in self.clients.values_mut().filter(|client| client.waits) {
            client.waits = false;
            client.answer(&answer);
        }
    }
}

impl Client {
    fn answer(&mut self, answer: &Answer) {
        let mut line = serde_json::to_vec(answer).unwrap_or_default();
        line.push(b'\n');
        // A command that has gone away does not want the answer; one line always fits the socket's buffer.
        let _ = self.stream.write_all(&line);
    }
}

/// Asks a job. `forever`: the answer takes as long as a checkpoint does.
pub(crate) fn ask(info: &JobInfo, request: Request, forever: bool) -> Result<Answer, CliError> {
    let failed = |error| CliError::NoAnswer { job: info.job.clone(), error };
    let stream = UnixStream::connect(socket_of(info)?).map_err(failed)?;
    if !forever {
        stream.set_read_timeout(Some(ANSWER_MAX)).map_err(failed)?;
    }
    let mut line = serde_json::to_vec(&request).map_err(|error| failed(error.into()))?;
    line.push(b'\n');
    (&stream).write_all(&line).map_err(failed)?;
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer).map_err(failed)?;
    if answer.is_empty() {
        return Err(failed(io::Error::new(ErrorKind::UnexpectedEof, "the job ended first")));
    }
    serde_json::from_str(&answer).map_err(|error| failed(error.into()))
}
