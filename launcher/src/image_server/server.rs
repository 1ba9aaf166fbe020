//! The process on the node's host.

use std::fs::{File, TryLockError};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ckpt_glue::protection::seat::Seat;
use store::job::{Depth, TakenFile};
use store::packets::Source as _;
use store::{
    Decision, Directory, GenerationId, JobDirectory, JobFile, Manifest, Storage as _, StorageError,
    StoreError,
};
use transport::{JobId, Rank};

use super::super::limits::COPY_SILENT_MAX;
use super::super::nodes::{NodeRoot, former};
use super::super::version::VERSION;
use super::pipe::Pipe;
use super::wire::{self, Answer, PIECE_BYTES_MAX, Part, Request};

/// Longest wait for the lock: the keeper before has just ended, and its guard is about to.
const LOCK_MAX: Duration = Duration::from_secs(20);
const LOCK_LOOK_EVERY: Duration = Duration::from_millis(10);

/// Time between two reports that the answer takes its time.
const BUSY_EVERY: Duration = Duration::from_secs(1);

/// After this silence the launcher counts as lost and the lock is freed. Longer than `COPY_SILENT_MAX`, so that a
/// launcher that waits for another host loses no lock first.
const LAUNCHER_SILENT_MAX: Duration = COPY_SILENT_MAX.saturating_add(Duration::from_secs(60));

/// Why a request is not carried out, in words.
struct Problem(String);

impl<E: core::fmt::Display> From<E> for Problem {
    fn from(error: E) -> Problem {
        Problem(error.to_string())
    }
}

/// Serves the images of one node until the launcher closes its end, or is lost. Returns whether nothing went wrong.
pub fn serve() -> bool {
    let pipe = |fd: io::Result<OwnedFd>| Pipe::new(fd?, LAUNCHER_SILENT_MAX);
    let from = pipe(io::stdin().as_fd().try_clone_to_owned());
    let to = pipe(io::stdout().as_fd().try_clone_to_owned());
    let served = from.and_then(|from| answer_all(&mut BufReader::new(from), &mut BufWriter::new(to?)));
    served.is_ok()
}

/// The next request that is not a heartbeat.
fn next_request(from: &mut dyn Read) -> io::Result<Request> {
    loop {
        match wire::read(from)? {
            Request::Heartbeat => {}
            request => return Ok(request),
        }
    }
}

fn answer_all(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let reply = |to: &mut dyn Write, outcome: Result<Answer, Problem>| {
        let answer = outcome.unwrap_or_else(|Problem(why)| Answer::Refused(why));
        wire::write(to, &answer)?;
        to.flush()
    };
    let Request::Begin { version, job, node, root } = next_request(from)? else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let begun = match version == VERSION {
        true => Server::new(JobId(job), node, &root),
        false => {
            Err(Problem(format!("the launcher is version {version}, and the program here is {VERSION}")))
        }
    };
    let mut server = match begun {
        Ok(server) => server,
        Err(problem) => return reply(to, Err(problem)),
    };
    reply(to, Ok(Answer::Done))?;
    loop {
        let request = match next_request(from) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        };
        let outcome = match request {
            Request::Read(part) => server.read(part, to)?,
            Request::Write(part) => server.write(part, from)?,
            Request::Hold { decisions } => server.hold(&decisions),
            Request::Prepare { job_file, decisions, generation, seat } => {
                server.prepare(&job_file, &decisions, generation, seat)
            }
            Request::Commit(manifest) => server.commit(&manifest, to),
            Request::Discard => server.discard(),
            Request::Leave => server.leave(),
            Request::Confirm => server.confirm(),
            Request::Begin { .. } | Request::Data(_) | Request::End | Request::Heartbeat => {
                Err(Problem("a message out of order; that is a bug".to_owned()))
            }
        };
        reply(to, outcome)?;
    }
}

/// The next part of a file that comes.
enum Piece {
    Data(Vec<u8>),
    End,
    /// The file, and all others, are not wanted any more.
    Discard,
}

struct Server {
    job: JobId,
    node: u32,
    root: PathBuf,
    /// R30
    lock: Option<File>,
    /// The directory is one of the new layout, which this server has made.
    is_made: bool,
}

impl Server {
    fn new(job: JobId, node: u32, root: &NodeRoot) -> Result<Server, Problem> {
        Ok(Server { job, node, root: root.here()?, lock: None, is_made: false })
    }

    fn path(&self) -> PathBuf {
        self.root.join(self.node.to_string())
    }

    fn open(&self) -> Result<JobDirectory<Directory>, StoreError> {
        let storage = Directory::open(self.path())?;
        Ok(JobDirectory::attach(storage, self.job).on_node(self.node))
    }

    /// As a keeper does: the lock lies beside the node's directory.
    fn take_lock(&mut self) -> Result<(), Problem> {
        let (path, file) = former::open_lock(&self.root, self.node)?;
        let until = Instant::now() + LOCK_MAX;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < until => {
                    std::thread::sleep(LOCK_LOOK_EVERY)
                }
                Err(TryLockError::WouldBlock) => {
                    let path = path.display();
                    return Err(Problem(format!(
                        "processes of the job run here ({path} is locked); `fuser -v {path}` lists them"
                    )));
                }
                Err(TryLockError::Error(error)) => return Err(error.into()),
            }
        }
        self.lock = Some(file);
        Ok(())
    }

    fn hold(&mut self, decisions: &[Decision]) -> Result<Answer, Problem> {
        self.take_lock()?;
        former::expect_known(&mut self.open()?, decisions)?;
        Ok(Answer::Done)
    }

    fn prepare(
        &mut self,
        job_file: &[u8],
        decisions: &[Decision],
        generation: GenerationId,
        seat: Option<Seat>,
    ) -> Result<Answer, Problem> {
        drop(Directory::create(&self.root)?);
        self.take_lock()?;
        if former::is_left(&self.root) {
            let root = self.root.display();
            return Err(Problem(format!("the job has been in the layout of {root} before, and has left it")));
        }
        let path = self.path();
        if path.exists() {
            // A launcher that knows less than this node must not remove what a later life has left.
            former::expect_known(&mut self.open()?, decisions)?;
            former::remove_node(&path, self.job)?;
        }
        self.is_made = true;
        let storage = Directory::create(&path)?;
        drop(JobDirectory::create(storage, &JobFile::parse(job_file)?)?);
        let mut directory = self.open()?;
        directory.adopt_decisions(decisions)?;
        // R34: the next launcher finds the seat on most nodes of the new layout, as on those of the former one.
        seat.map_or(Ok(()), |seat| directory.note_seat(seat, true))?;
        directory.begin_taking(generation)?;
        Ok(Answer::Done)
    }

    /// Sends a file. The outer error: the launcher is gone.
    fn read(&mut self, part: Part, to: &mut impl Write) -> io::Result<Result<Answer, Problem>> {
        if let Err(problem) = self.confirm() {
            return Ok(Err(problem));
        }
        let opened = self.open().map_err(Problem::from).and_then(|mut directory| {
            let (generation, rank) = (part.generation, Rank(part.rank));
            let path = match part.is_base {
                true => directory.base_path(generation, rank),
                false => directory.image_path(generation, rank),
            };
            match directory.storage().open_file(&path) {
                Err(StorageError::NotFound { .. }) if part.is_base => Ok(None),
                opened => Ok(Some(opened?)),
            }
        });
        let file = match opened {
            Ok(Some(file)) => file,
            Ok(None) => return Ok(Ok(Answer::Absent)),
            Err(problem) => return Ok(Err(problem)),
        };
        let (mut buffer, mut offset) = (Vec::new(), 0);
        while offset < file.bytes() {
            let bytes = (file.bytes() - offset).min(u64::from(PIECE_BYTES_MAX));
            let piece = u32::try_from(bytes).unwrap_or(PIECE_BYTES_MAX);
            buffer.resize(piece as usize, 0);
            if let Err(error) = file.read_at(offset, &mut buffer) {
                return Ok(Err(error.into()));
            }
            wire::write(to, &Answer::Data(piece))?;
            to.write_all(&buffer)?;
            offset += bytes;
        }
        Ok(Ok(Answer::Done))
    }

    /// Receives a file, of which every piece is read even if it cannot be written. The outer error: the launcher is gone.
    fn write(&mut self, part: Part, from: &mut impl Read) -> io::Result<Result<Answer, Problem>> {
        let file = if part.is_base { TakenFile::Base } else { TakenFile::Image };
        let next = |from: &mut dyn Read| -> io::Result<Piece> {
            match next_request(from)? {
                Request::Data(bytes) => {
                    let mut buffer = Vec::new();
                    wire::read_piece(from, bytes, &mut buffer)?;
                    Ok(Piece::Data(buffer))
                }
                Request::End => Ok(Piece::End),
                Request::Discard => Ok(Piece::Discard),
                _ => Err(io::ErrorKind::InvalidData.into()),
            }
        };
        // The end, once it has come.
        let mut last = None;
        let written = match self.open() {
            Ok(mut directory) => {
                directory.take_file(part.generation, Rank(part.rank), file, |storage, file| {
                    loop {
                        match next(from) {
                            Ok(Piece::Data(piece)) => storage.append(file, &piece)?,
                            Ok(Piece::End) => {
                                last = Some(Ok(Piece::End));
                                return Ok(());
                            }
                            other => {
                                last = Some(other);
                                // The file gets no name.
                                return Err(StoreError::Storage(StorageError::Crashed));
                            }
                        }
                    }
                })
            }
            Err(error) => Err(error),
        };
        loop {
            match last.take().unwrap_or_else(|| next(from))? {
                Piece::Data(_) => {}
                Piece::End => return Ok(written.map(|()| Answer::Done).map_err(Problem::from)),
                Piece::Discard => return Ok(self.discard()),
            }
        }
    }

    fn commit(&mut self, manifest: &Manifest, to: &mut impl Write) -> Result<Answer, Problem> {
        let mut directory = self.open()?;
        let mut reported = Instant::now();
        // A launcher that is gone is noticed with the answer.
        let busy = |_, _| {
            if reported.elapsed() >= BUSY_EVERY {
                reported = Instant::now();
                drop(wire::write(to, &Answer::Busy).and_then(|()| to.flush()));
            }
        };
        if let Some(damage) = directory.verify_images(manifest, Depth::Everything, busy)?.into_iter().next() {
            return Err(damage.error.into());
        }
        directory.adopt(manifest)?;
        Ok(Answer::Done)
    }

    fn discard(&mut self) -> Result<Answer, Problem> {
        let path = self.path();
        if self.is_made && path.exists() {
            former::remove_node(&path, self.job)?;
        }
        Ok(Answer::Done)
    }

    fn confirm(&self) -> Result<Answer, Problem> {
        match self.lock {
            Some(_) => Ok(Answer::Done),
            None => Err(Problem("its lock is not held; that is a bug".to_owned())),
        }
    }

    fn leave(&mut self) -> Result<Answer, Problem> {
        former::leave(&self.root)?;
        Ok(Answer::Done)
    }
}

#[cfg(test)]
mod tests {
    use transport::{Epoch, Life};

    use super::*;
    use crate::test_job::job_file;

    #[test]
    fn discard_in_the_middle_of_a_file_removes_the_directory() {
        let root = tempfile::tempdir().expect("a folder");
        let (job, node) = (JobId(7), 3);
        let root = NodeRoot::Path(root.path().join("nodes.2").into());
        let generation = GenerationId { life: Life { counter: 1, nonce: 5 }, epoch: Epoch(1) };
        let mut said = Vec::new();
        for request in [
            Request::Begin { version: VERSION.to_owned(), job: job.0, node, root: root.clone() },
            Request::Prepare {
                job_file: job_file(job).emit(),
                decisions: Vec::new(),
                generation,
                seat: None,
            },
            Request::Write(Part { generation, rank: 0, is_base: false }),
            Request::Heartbeat,
            Request::Data(4),
        ] {
            wire::write(&mut said, &request).expect("room");
        }
        said.extend_from_slice(b"part");
        let node = root.here().expect("a path").join("3");
        for (is_discarded, last) in [(false, None), (true, Some(Request::Discard))] {
            let mut from = said.clone();
            last.iter().for_each(|request| wire::write(&mut from, request).expect("room"));
            let mut answers = Vec::new();
            let ended = answer_all(&mut from.as_slice(), &mut answers);
            let mut answers = answers.as_slice();
            let answers: Vec<Answer> = std::iter::from_fn(|| wire::read(&mut answers).ok()).collect();
            assert!(answers.iter().all(|answer| *answer == Answer::Done), "{answers:?}");
            // A launcher that is killed instead leaves a file without a name, and the directory.
            assert_eq!((answers.len(), node.exists()), (if is_discarded { 3 } else { 2 }, !is_discarded));
            assert_eq!(ended.is_ok(), is_discarded);
        }
    }

    /// A launcher that says nothing any more.
    struct Silent;

    impl Read for Silent {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::TimedOut.into())
        }
    }

    #[test]
    fn silence_ends_a_server_and_heartbeats_do_not() {
        let root = tempfile::tempdir().expect("a folder");
        let root = NodeRoot::Path(root.path().into());
        let begin = Request::Begin { version: VERSION.to_owned(), job: 7, node: 3, root };
        let mut said = Vec::new();
        for request in [Request::Heartbeat, begin, Request::Heartbeat] {
            wire::write(&mut said, &request).expect("room");
        }
        let mut answers = Vec::new();
        let ended = answer_all(&mut said.as_slice().chain(Silent), &mut answers).expect_err("silence");
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
        assert_eq!(answers, wire::emit(&Answer::Done).expect("bytes"));
    }
}
