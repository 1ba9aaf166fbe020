//! People's commands to a running job: one line of JSON each way, over the job's socket.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use ckpt_glue::control::ImageReport;
use ckpt_glue::diagnosis::Diagnosis;
use ckpt_glue::error::{EveryError, PercentageError};
use ckpt_glue::interval::{MTBF_MIN, Tuning};
use ckpt_glue::job::Event;
use ckpt_glue::limits::{
    DURATION_MAX, POINT_ANSWER_MAX, RAIL_STEP_MAX, RAIL_STEPS, WAIT_ANSWER_MAX, WAIT_ROUNDS_APART,
};
use ckpt_glue::names::GenerationId;
use ckpt_glue::protocols::{AbandonReason, CheckpointEvent};
use ckpt_glue::recovery::{Order, Policy};
use ckpt_glue::{parse_duration, write_duration};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use transport::Epoch;

use super::limits::{ANSWER_MAX, CLIENTS_MAX, RAIL_MAX, REQUEST_BYTES_MAX};
use super::nodes::wire::Effort;
use super::registry::{JobInfo, Registration, socket_of};
use super::status::{Checkpoints, Status};
use crate::checkpoint_options;
use crate::error::LauncherError;

/// Why there is no checkpoint of an MPI program that was started without.
pub const NO_CHECKPOINTS: &str = concat!(
    "its ranks are programs of an MPI library, which can be saved only if they were started so: with ",
    checkpoint_options!()
);

/// Why nothing is known of what the ranks of such a program wait for.
const NOBODY_LISTENS: &str = concat!(
    "its ranks are programs of an MPI library that are not saved, and nobody in them listens: start the job with ",
    checkpoint_options!()
);

/// A command's request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub enum Request {
    /// Report the job's status.
    Status,
    /// Take a checkpoint, and answer when it is durable or has failed.
    Checkpoint,
    /// Have a rank, or all, reach other hosts over this NIC, and answer when each has or has not.
    Rail {
        /// The rank; none: all.
        rank: Option<u32>,
        /// The NIC, as a person names it.
        nic: String,
    },
    /// Take checkpoints at other times from now on.
    Tune {
        /// When, as a person writes it; none: as before.
        every: Option<String>,
        /// Mean time between failures, likewise.
        mtbf: Option<String>,
        /// Largest part of the running time, likewise.
        budget: Option<String>,
        /// Reactions to faults, as a person writes them: `repeated=migration,restart`.
        on: Vec<String>,
    },
    /// Take a node for one that fails: another host gets its place.
    Suspect {
        /// Its number or host.
        node: String,
    },
    /// Report who waits for whom.
    Diagnose,
    /// End the job.
    Stop,
}

/// The outcome of a request for another NIC at one rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RailOutcome {
    /// The rank.
    pub rank: u32,
    /// Over which NIC it reaches other hosts now, as far as it has reported that.
    pub nic: Option<String>,
    /// Why that is not the one that was asked for.
    pub refused: Option<String>,
}

/// A job's answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    /// To [`Request::Status`].
    Status(Box<Status>),
    /// The checkpoint is durable.
    Committed(Committed),
    /// To [`Request::Rail`].
    Rails {
        /// The outcome at each rank that was asked.
        ranks: Vec<RailOutcome>,
    },
    /// To [`Request::Tune`].
    Tuned {
        /// When checkpoints are taken from now on.
        checkpoints: Checkpoints,
        /// Which faults there are, and the reactions to them.
        recovery: Policy,
    },
    /// To [`Request::Suspect`]: the reaction has begun.
    Suspected {
        /// The node.
        node: u32,
        /// Its host.
        host: String,
        /// The protocols that are tried, in this order.
        reaction: Order,
    },
    /// To [`Request::Diagnose`].
    Diagnosed(Box<Diagnosis>),
    /// Why the request failed.
    Failed {
        /// In words.
        reason: String,
    },
    /// The job is being ended.
    Stopping,
}

/// A checkpoint that is durable, and the times of its phases: milliseconds since it was ordered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Committed {
    /// The generation.
    pub generation: String,
    /// From the request to the commit.
    pub milliseconds: u64,
    /// Of all images.
    pub bytes: u64,
    /// The longest time for which a rank stood.
    pub pause_ns: u64,
    /// When every image was durable where it was written.
    pub written_ms: u64,
    /// When every node held its protection data; none: nothing is protected.
    pub protected_ms: Option<u64>,
    /// The cost of protecting on each node.
    pub(crate) nodes: Vec<NodeEffort>,
}

/// The cost of protecting on a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct NodeEffort {
    pub(crate) node: u32,
    #[serde(flatten)]
    pub(crate) effort: Effort,
}

/// How far a generation has come that is not committed.
#[derive(Clone, Debug)]
struct Progressed {
    generation: GenerationId,
    written: Instant,
    protected: Option<(Instant, Vec<NodeEffort>)>,
}

/// The launcher's action on a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answered {
    /// Nothing.
    Wait,
    /// Send it the job's status.
    Status,
    /// Ask the coordinator for a checkpoint.
    Checkpoint,
    /// Forward the request for another NIC to a rank, or to all.
    Rail { rank: Option<u32>, nic: String },
    /// Change the time between checkpoints, or the reactions to faults.
    Tune(Tuning, Vec<String>),
    /// Take a node for one that fails.
    Suspect { node: String },
    /// Ask all ranks what they wait for.
    Diagnose,
    /// End the job.
    Stop,
    /// Forget the connection.
    Gone,
}

/// The event that a client waits for. An epoch that had begun before the request does not answer it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Awaited {
    Nothing,
    /// The next diagnosis.
    Diagnosis,
    /// The next epoch that begins.
    Beginning,
    /// The outcome of this one, in the life that runs.
    Outcome(Epoch),
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    held: Vec<u8>,
    /// The part of the answers that it has not read yet.
    unsent: Vec<u8>,
    awaited: Awaited,
}

/// The job's socket and its clients.
#[derive(Debug)]
pub(crate) struct Requests {
    listener: UnixListener,
    clients: BTreeMap<u64, Client>,
    next: u64,
    /// The newest generation whose images are durable.
    progressed: Option<Progressed>,
}

impl Requests {
    pub(crate) fn listen(registration: &Registration) -> Result<Requests, LauncherError> {
        let path = registration.socket();
        let failed = |error| LauncherError::Registry { path: path.clone(), error };
        // Left by a launcher of this job that was killed together with its guard.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Requests { listener, clients: BTreeMap::new(), next: 1, progressed: None })
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
                let client =
                    Client { stream, held: Vec::new(), unsent: Vec::new(), awaited: Awaited::Nothing };
                return Some((number, &self.clients.entry(number).or_insert(client).stream));
            }
        }
    }

    /// Reads from a connection, and answers requests that need no waiting at once.
    pub(crate) fn read(&mut self, number: u64, is_never_saved: bool) -> Answered {
        let Some(client) = self.clients.get_mut(&number) else { return Answered::Gone };
        client.flush();
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
            Some(Ok(Request::Status)) => Answered::Status,
            Some(Ok(Request::Checkpoint)) if is_never_saved => {
                client.answer(&Answer::Failed { reason: NO_CHECKPOINTS.to_owned() });
                Answered::Wait
            }
            Some(Ok(Request::Checkpoint)) => {
                client.awaited = Awaited::Beginning;
                Answered::Checkpoint
            }
            Some(Ok(Request::Tune { .. } | Request::Suspect { .. })) if is_never_saved => {
                client.answer(&Answer::Failed { reason: NO_CHECKPOINTS.to_owned() });
                Answered::Wait
            }
            Some(Ok(Request::Tune { every, mtbf, budget, on })) => {
                match tuning(every.as_deref(), mtbf.as_deref(), budget.as_deref()) {
                    Ok(tuning) => Answered::Tune(tuning, on),
                    Err(reason) => {
                        client.answer(&Answer::Failed { reason });
                        Answered::Wait
                    }
                }
            }
            Some(Ok(Request::Suspect { node })) => Answered::Suspect { node },
            Some(Ok(Request::Diagnose)) if is_never_saved => {
                client.answer(&Answer::Failed { reason: NOBODY_LISTENS.to_owned() });
                Answered::Wait
            }
            Some(Ok(Request::Diagnose)) => {
                client.awaited = Awaited::Diagnosis;
                Answered::Diagnose
            }
            Some(Ok(Request::Rail { rank, nic })) => Answered::Rail { rank, nic },
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

    /// Sends a command the job's status.
    pub(crate) fn report(&mut self, number: u64, status: Status) {
        self.answer_one(number, &Answer::Status(Box::new(status)));
    }

    /// Answers one command.
    pub(crate) fn answer_one(&mut self, number: u64, answer: &Answer) {
        if let Some(client) = self.clients.get_mut(&number) {
            client.answer(answer);
        }
    }

    /// A connection, and whether answers wait for it to be read.
    pub(crate) fn stream(&self, number: u64) -> Option<(&UnixStream, bool)> {
        self.clients.get(&number).map(|client| (&client.stream, !client.unsent.is_empty()))
    }

    /// Answers the clients that wait for a diagnosis; `None`: no ranks run, or not all the time.
    pub(crate) fn on_diagnosis(&mut self, diagnosis: Option<Box<Diagnosis>>) {
        let answer = diagnosis.map_or_else(
            || Answer::Failed {
                reason: "its ranks are being started or ended; `stillwire ps` shows when they run".to_owned(),
            },
            Answer::Diagnosed,
        );
        self.answer(Awaited::Diagnosis, &answer);
    }

    /// Answers the clients that wait for a checkpoint. `words`: why one has failed.
    pub(crate) fn on_event(&mut self, event: &Event, words: impl Fn(&AbandonReason) -> String) {
        match event {
            // Requests that come in the same instant are one, for every asker: this is the first since they asked.
            Event::Checkpoint(CheckpointEvent::Begun { epoch, .. }) => {
                for client in self.awaiting(Awaited::Beginning) {
                    client.awaited = Awaited::Outcome(*epoch);
                }
            }
            Event::Checkpoint(CheckpointEvent::Refused { reason, .. }) => {
                let reason = crate::text::refused(*reason);
                self.answer(Awaited::Beginning, &Answer::Failed { reason });
            }
            Event::Checkpoint(CheckpointEvent::Committed { generation, took, images, .. }) => {
                let committed = self.committed(*generation, *took, images);
                self.answer(Awaited::Outcome(generation.epoch), &Answer::Committed(committed));
            }
            Event::Checkpoint(CheckpointEvent::Abandoned { epoch, reason, .. }) => {
                let reason = format!("epoch {epoch} was abandoned: {}", words(reason));
                self.answer(Awaited::Outcome(*epoch), &Answer::Failed { reason });
            }
            // A client that still waits for an epoch of the life before waits for a record that was being written at its end.
            Event::LifeBegun { .. } => {
                let reason = "the job went back while the checkpoint was being committed; `stillwire ls` shows whether it was";
                let left =
                    self.clients.values_mut().filter(|client| matches!(client.awaited, Awaited::Outcome(_)));
                left.for_each(|client| client.end(&Answer::Failed { reason: reason.to_owned() }));
            }
            _ => {}
        }
    }

    /// Every image of a generation is durable.
    pub(crate) fn note_written(&mut self, generation: GenerationId, at: Instant) {
        self.progressed = Some(Progressed { generation, written: at, protected: None });
    }

    /// Every node holds its protection data.
    pub(crate) fn note_protected(&mut self, generation: GenerationId, at: Instant, nodes: Vec<NodeEffort>) {
        if let Some(progressed) = self.progressed.as_mut().filter(|so_far| so_far.generation == generation) {
            progressed.protected = Some((at, nodes));
        }
    }

    /// It is committed just now, so long after it was ordered.
    fn committed(&mut self, generation: GenerationId, took: Duration, images: &[ImageReport]) -> Committed {
        let now = Instant::now();
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let ordered_ms = |at: Instant| ms(took.saturating_sub(now.saturating_duration_since(at)));
        let progressed = self.progressed.take().filter(|so_far| so_far.generation == generation);
        let (written, protected) =
            progressed.map_or((now, None), |so_far| (so_far.written, so_far.protected));
        let (protected_ms, nodes) =
            protected.map_or((None, Vec::new()), |(at, nodes)| (Some(ordered_ms(at)), nodes));
        Committed {
            generation: generation.to_string(),
            milliseconds: ms(took),
            bytes: images.iter().map(|image| image.bytes).sum(),
            pause_ns: images.iter().map(|image| image.statistics.pause_ns()).max().unwrap_or(0),
            written_ms: ordered_ms(written),
            protected_ms,
            nodes,
        }
    }

    fn awaiting(&mut self, awaited: Awaited) -> impl Iterator<Item = &mut Client> {
        self.clients.values_mut().filter(move |client| client.awaited == awaited)
    }

    fn answer(&mut self, awaited: Awaited, answer: &Answer) {
        self.awaiting(awaited).for_each(|client| client.end(answer));
    }
}

impl Client {
    /// The answer for which it waits.
    fn end(&mut self, answer: &Answer) {
        self.awaited = Awaited::Nothing;
        self.answer(answer);
    }

    fn answer(&mut self, answer: &Answer) {
        self.unsent.append(&mut serde_json::to_vec(answer).unwrap_or_default());
        self.unsent.push(b'\n');
        self.flush();
    }

    /// Sends as much as its socket has room for.
    fn flush(&mut self) {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // A command that has gone away does not want the answer.
                Err(_) => self.unsent.clear(),
            }
        }
    }
}

/// A change that a job can carry out, and later runs of it.
fn tuning(every: Option<&str>, mtbf: Option<&str>, budget: Option<&str>) -> Result<Tuning, String> {
    let mtbf = mtbf.map(|mtbf| parse_duration(mtbf).map_err(|error| error.to_string())).transpose()?;
    if let Some(mtbf) = mtbf.filter(|mtbf| *mtbf < MTBF_MIN) {
        return Err(format!(
            "expected a time between failures of at least {}, found {}",
            write_duration(MTBF_MIN),
            write_duration(mtbf)
        ));
    }
    Ok(Tuning {
        every: every.map(|every| every.parse().map_err(|error: EveryError| error.to_string())).transpose()?,
        mtbf,
        budget: budget
            .map(|budget| budget.parse().map_err(|error: PercentageError| error.to_string()))
            .transpose()?,
    })
}

/// Asks a job, and waits for its answer as long as that may take.
pub fn ask(info: &JobInfo, request: &Request) -> Result<Answer, LauncherError> {
    let failed = |error| LauncherError::NoAnswer { job: info.job.clone(), error };
    let (limit, awaited) = match request {
        Request::Status => (ANSWER_MAX, "its status"),
        Request::Rail { rank, .. } => {
            let steps = if rank.is_some() { RAIL_MAX } else { RAIL_STEP_MAX * RAIL_STEPS };
            (steps + ANSWER_MAX, "the answers of its ranks")
        }
        Request::Tune { .. } => (ANSWER_MAX, "the answer that its settings are changed"),
        Request::Suspect { .. } => (ANSWER_MAX, "the answer that it reacts"),
        // Twice, and one that is under way comes first.
        Request::Diagnose => {
            (4 * (WAIT_ANSWER_MAX + WAIT_ROUNDS_APART) + ANSWER_MAX, "the answers of its ranks")
        }
        Request::Stop => (ANSWER_MAX, "the answer that it is being ended"),
        // One that is under way comes first, and both have their time.
        Request::Checkpoint => {
            let timeout = Duration::from_millis(info.checkpoint_timeout_ms).min(DURATION_MAX);
            (
                2 * (timeout + POINT_ANSWER_MAX.min(timeout)) + ANSWER_MAX,
                "a checkpoint to be durable or given up",
            )
        }
    };
    let stream = UnixStream::connect(socket_of(info)?).map_err(failed)?;
    stream.set_read_timeout(Some(limit)).map_err(failed)?;
    let mut line = serde_json::to_vec(request).map_err(|error| failed(error.into()))?;
    line.push(b'\n');
    (&stream).write_all(&line).map_err(failed)?;
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            LauncherError::Silent { job: info.job.clone(), pid: info.pid, awaited, limit }
        }
        _ => failed(error),
    })?;
    if answer.is_empty() {
        return Err(failed(io::Error::new(ErrorKind::UnexpectedEof, "the job ended first")));
    }
    serde_json::from_str(&answer).map_err(|error| failed(error.into()))
}

#[cfg(test)]
mod tests {
    use ckpt_glue::control::Source;
    use ckpt_glue::names::GenerationId;
    use ckpt_glue::protocols::RefuseReason;
    use transport::Life;

    use super::*;

    struct Job {
        requests: Requests,
        path: std::path::PathBuf,
        _folder: tempfile::TempDir,
    }

    impl Job {
        fn new() -> Job {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("control");
            let listener = UnixListener::bind(&path).expect("a socket");
            listener.set_nonblocking(true).expect("a flag");
            let requests = Requests { listener, clients: BTreeMap::new(), next: 1, progressed: None };
            Job { requests, path, _folder: folder }
        }

        /// A command that asks for a checkpoint now.
        fn ask(&mut self) -> UnixStream {
            let stream = UnixStream::connect(&self.path).expect("it listens");
            (&stream).write_all(b"{\"command\":\"checkpoint\"}\n").expect("room");
            stream.set_nonblocking(true).expect("a flag");
            let (number, _) = self.requests.accept().expect("a connection");
            assert_eq!(self.requests.read(number, false), Answered::Checkpoint);
            stream
        }

        fn event(&mut self, event: CheckpointEvent) {
            self.requests.on_event(&Event::Checkpoint(event), crate::text::abandoned);
        }

        fn begun(&mut self, epoch: u32) {
            self.event(CheckpointEvent::Begun { epoch: Epoch(epoch), source: Source::Command, point: None });
        }

        fn committed(&mut self, epoch: u32) {
            let generation = GenerationId { life: Life { counter: 1, nonce: 7 }, epoch: Epoch(epoch) };
            let (source, took) = (Source::Command, Duration::ZERO);
            self.event(CheckpointEvent::Committed { generation, source, took, images: Vec::new() });
        }
    }

    /// The answers that a command has received so far.
    fn reported(mut stream: &UnixStream) -> String {
        let mut bytes = [0; 512];
        let length = stream.read(&mut bytes).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    #[test]
    fn a_command_is_answered_by_the_epoch_that_began_after_it() {
        let mut job = Job::new();
        let first = job.ask();
        job.begun(1);
        let (second, third) = (job.ask(), job.ask());
        job.committed(1);
        assert!(reported(&first).contains("/1\""));
        assert_eq!((reported(&second), reported(&third)), (String::new(), String::new()));
        job.begun(2);
        let late = job.ask();
        job.committed(2);
        assert!(reported(&second).contains("/2\"") && reported(&third).contains("/2\""));
        job.event(CheckpointEvent::Refused { source: Source::Command, reason: RefuseReason::Finishing });
        assert!(reported(&late).contains("the program has finished"));
    }

    #[test]
    fn a_command_whose_life_ends_during_the_commit_is_reported() {
        let mut job = Job::new();
        let waiting = job.ask();
        job.begun(1);
        let life = Life { counter: 2, nonce: 7 };
        let decision = ckpt_glue::control::Decision { life, restore: None };
        job.requests.on_event(&Event::LifeBegun { decision, attempt: 1 }, crate::text::abandoned);
        assert!(reported(&waiting).contains("stillwire ls"));
    }
}
