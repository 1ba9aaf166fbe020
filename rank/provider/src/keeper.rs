//! The line to this rank's keeper, in the launcher that started it.
//!
//! Ports of a rank that `stillwire run` has started are named after it. When one closes, its final counters go to the keeper, which
//! answers for it from then on (R12): a peer whose last acknowledgement was lost asks the keeper instead of waiting for a process
//! that is gone. Under a foreign launcher there is no such line, and closing endpoints linger instead.
//!
//! In a process that is saved as a whole the line is the agent's, which also knows where peers are after a restart.

use std::io::Write as _;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Once, OnceLock, PoisonError};
use std::time::Duration;

use agent::ThisRank;
use ckpt_glue::control::{
    ClosedLink, Control, ControlKey, ControlReader, ControlWriter, FaultReport, Message, NicText, closed_port,
};
use ckpt_glue::names::Party;
use client::launch::{self, Launch, SOCKET_VARIABLE};
use drivers::NicSelection;
use endpoint::Endpoint;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::SigSet;
use nix::sys::socket::{MsgFlags, recv};
use transport::port::FinalCounters;
use transport::{Epoch, JobId, Life, PortId, Rank};

use crate::boundary::complain;
use crate::limits::{ANSWERS_MAX, KEEPER_WRITE_MAX};

/// The keeper's answer about a closed port: the port of ours that asked, the closed one, the first frame that
/// it has not received.
type Answer = (PortId, PortId, u64);

/// The way to this rank's keeper.
pub(crate) enum Keeper {
    /// The process is saved as a whole.
    Agent(&'static ThisRank),
    Own(Box<OwnLine>),
}

/// A line of the provider's own, shared by all ports of this process.
pub(crate) struct OwnLine {
    job: JobId,
    life: Life,
    rank: Rank,
    /// Ports that have been named.
    ports: AtomicU32,
    line: Mutex<Line>,
    /// Its open ports, for the loss of a rank (R37).
    open: Mutex<OpenPorts>,
    listens: Once,
}

/// The ports of a process that is not saved, and the ranks without which the job goes on.
#[derive(Default)]
struct OpenPorts {
    endpoints: Vec<(PortId, Endpoint)>,
    lost: Vec<Rank>,
}

struct Line {
    /// `None` once it has failed: ports then close as they do without a keeper.
    stream: Option<UnixStream>,
    writer: ControlWriter,
    reader: ControlReader,
    /// Answers that another port of this process has read.
    answers: Vec<Answer>,
    /// Ranks whose loss has been read, and not acted upon.
    lost: Vec<Rank>,
}

/// The line of this process, if its launcher has given it one.
pub(crate) fn keeper() -> Option<&'static Keeper> {
    static KEEPER: OnceLock<Option<Keeper>> = OnceLock::new();
    let find = || {
        if let Some(rank) = agent::this_rank() {
            return Some(Keeper::Agent(rank));
        }
        OwnLine::take(std::env::var(SOCKET_VARIABLE).ok()?.parse().ok()?).map(Box::new).map(Keeper::Own)
    };
    let keeper = KEEPER.get_or_init(find).as_ref();
    if let Some(Keeper::Own(line)) = keeper {
        line.listen();
    }
    keeper
}

/// The rank of this process, if it is saved as a whole.
pub(crate) fn this_rank() -> Option<&'static ThisRank> {
    match keeper()? {
        Keeper::Agent(rank) => Some(rank),
        Keeper::Own(_) => None,
    }
}

impl Keeper {
    /// The name of another port of this rank. Number 0 stands for the rank as a whole.
    pub(crate) fn new_port(&self) -> PortId {
        match self {
            Keeper::Agent(rank) => rank.new_port(),
            Keeper::Own(line) => line.new_port(),
        }
    }

    /// R37: a port of this process, which has to learn of ranks that are lost. The agent knows its own.
    pub(crate) fn port_opened(&self, port: PortId, endpoint: &Endpoint) {
        if let Keeper::Own(line) = self {
            let mut open = line.open_ports();
            open.lost.iter().for_each(|rank| endpoint.lose_rank(*rank));
            open.endpoints.push((port, endpoint.clone()));
        }
    }

    /// Reports the NIC over which a port reaches other hosts.
    pub(crate) fn report_nic(&self, nic: &NicSelection) {
        match self {
            Keeper::Agent(rank) => rank.report_nic(nic),
            Keeper::Own(line) => line.say(Message::Nic { words: NicText::new(nic) }),
        }
    }

    /// Passes on that a peer is silent, or is heard again (R33). The launcher knows only ranks of its own job.
    pub(crate) fn report_peer(&self, peer: PortId, silent: Option<Duration>) {
        if !is_named_after_its_rank(peer) {
            return;
        }
        let (rank, by) = (peer.rank(), self.rank());
        let report = match silent {
            Some(since) => {
                let silent_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
                FaultReport::RankSilent { rank, by: Some(by), silent_ms }
            }
            None => FaultReport::RankHeard { rank, by },
        };
        match self {
            Keeper::Agent(rank) => rank.report_peer(report),
            Keeper::Own(line) => line.say(Message::Fault { report }),
        }
    }

    fn rank(&self) -> Rank {
        match self {
            Keeper::Agent(rank) => rank.rank(),
            Keeper::Own(line) => line.rank,
        }
    }

    /// Leaves the final counters of a port with the keeper.
    pub(crate) fn port_closed(&self, port: PortId, counters: &[FinalCounters]) {
        let links: Vec<ClosedLink> = counters
            .iter()
            .map(|&FinalCounters { peer, next, expected }| ClosedLink { peer, next, expected })
            .collect();
        match self {
            Keeper::Agent(rank) => rank.close_port(port, links),
            Keeper::Own(line) => line.port_closed(port, &links),
        }
    }

    /// Asks how much of `port`'s frames a peer's port had received when it closed, if it has.
    pub(crate) fn ask(&self, peer: PortId, port: PortId) {
        if !is_named_after_its_rank(peer) {
            return;
        }
        match self {
            Keeper::Agent(rank) => rank.ask(peer, port),
            Keeper::Own(line) => line.say(Message::ClosedQuery { port: peer, peer: port }),
        }
    }

    /// The answers received for `port`: closed peers, and the first frame that each has not received.
    pub(crate) fn answers(&self, port: PortId) -> Vec<(PortId, u64)> {
        match self {
            Keeper::Agent(rank) => rank.answers(port),
            Keeper::Own(line) => line.answers(port),
        }
    }
}

impl OwnLine {
    /// Takes over the socket with this number, if a launch record waits there. Any other descriptor has another owner,
    /// and is left alone: programs that a rank starts inherit the variable.
    fn take(number: RawFd) -> Option<OwnLine> {
        if number <= 2 {
            return None;
        }
        // SAFETY: the number is used for two system calls, which fail if nothing is open there. It is borrowed for no
        // longer, and we keep a duplicate.
        let inherited = unsafe { BorrowedFd::borrow_raw(number) };
        let mut head = [0; launch::MAGIC.len()];
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        let peeked = recv(inherited.as_raw_fd(), &mut head, flags).ok()?;
        if peeked != head.len() || head != launch::MAGIC {
            return None;
        }
        let stream = UnixStream::from(inherited.try_clone_to_owned().ok()?);
        OwnLine::open(stream)
            .inspect_err(|error| complain(format_args!("no keeper answers for this rank's ports: {error}")))
            .ok()
    }

    fn open(mut stream: UnixStream) -> Result<OwnLine, launch::LaunchError> {
        stream.set_read_timeout(Some(KEEPER_WRITE_MAX))?;
        stream.set_write_timeout(Some(KEEPER_WRITE_MAX))?;
        let Launch { job, key, life, rank, .. } = Launch::read(&mut stream)?;
        let key = ControlKey::new(&key);
        let (writer, reader) = (ControlWriter::new(key.clone()), ControlReader::new(key));
        let line =
            Mutex::new(Line { stream: Some(stream), writer, reader, answers: Vec::new(), lost: Vec::new() });
        let open = Mutex::new(OpenPorts::default());
        Ok(OwnLine { job, life, rank, ports: AtomicU32::new(0), line, open, listens: Once::new() })
    }

    fn new_port(&self) -> PortId {
        PortId::of_rank(self.rank, self.ports.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Starts the thread that reads what the launcher sends by itself.
    fn listen(&'static self) {
        self.listens.call_once(|| {
            let Some(Ok(socket)) = self.lock().stream.as_ref().map(UnixStream::try_clone) else { return };
            let run = move || {
                // The program's signals are for its own threads.
                let _ = SigSet::all().thread_block();
                while self.hear(&socket) {}
            };
            if let Err(error) = std::thread::Builder::new().name("stillwire-keeper".into()).spawn(run) {
                complain(format_args!("no thread reads what the launcher sends: {error}"));
            }
        });
    }

    /// Waits for bytes, and takes them. `false`: no more will come.
    fn hear(&self, socket: &UnixStream) -> bool {
        let mut ready = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        let polled = poll(&mut ready, PollTimeout::NONE);
        if matches!(polled, Err(error) if error != Errno::EINTR) {
            return false;
        }
        let lost = {
            let mut line = self.lock();
            line.read(self.job, self.life);
            if line.stream.is_none() {
                return false;
            }
            core::mem::take(&mut line.lost)
        };
        for rank in lost {
            let mut open = self.open_ports();
            open.endpoints.iter().for_each(|(_, endpoint)| endpoint.lose_rank(rank));
            open.lost.push(rank);
        }
        true
    }

    fn open_ports(&self) -> std::sync::MutexGuard<'_, OpenPorts> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn port_closed(&self, port: PortId, links: &[ClosedLink]) {
        self.open_ports().endpoints.retain(|(open, _)| *open != port);
        closed_port(port, links).for_each(|message| self.say(message));
    }

    fn answers(&self, port: PortId) -> Vec<(PortId, u64)> {
        let mut line = self.lock();
        line.read(self.job, self.life);
        let ours = line.answers.extract_if(.., |(asker, ..)| *asker == port);
        ours.map(|(_, peer, expected)| (peer, expected)).collect()
    }

    fn say(&self, message: Message) {
        let sender = Party::Rank(self.rank);
        let control = Control { job: self.job, life: self.life, epoch: Epoch(0), sender, message };
        let mut line = self.lock();
        let mut bytes = Vec::new();
        line.writer.emit(&control, &mut bytes);
        if line.stream.as_mut().is_some_and(|stream| stream.write_all(&bytes).is_err()) {
            // Half a message may have gone: nothing that follows could be read.
            line.stream = None;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// Takes received messages, without waiting.
    fn read(&mut self, job: JobId, life: Life) {
        let Some(stream) = &mut self.stream else { return };
        let mut chunk = [0; 4096];
        loop {
            match recv(stream.as_raw_fd(), &mut chunk, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => break self.stream = None,
                Ok(bytes) => self.reader.feed(&chunk[..bytes]),
                Err(_) => break,
            }
        }
        loop {
            match self.reader.next() {
                // Rule 7: only an equal life counts.
                Ok(Some(control)) if control.job == job && control.life == life => {
                    match control.message {
                        Message::ClosedAnswer { port, peer, link: Some(link) }
                            if self.answers.len() < ANSWERS_MAX =>
                        {
                            self.answers.push((peer, port, link.expected));
                        }
                        // At most as many as there are ranks: the launcher sends each once or twice.
                        Message::RankLost { rank, .. } if !self.lost.contains(&rank) => self.lost.push(rank),
                        _ => {}
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(error) => {
                    complain(format_args!("the keeper's messages cannot be read: {error}"));
                    self.stream = None;
                    return;
                }
            }
        }
    }
}

/// Other ids are random ones of processes without a keeper (address.rs), and begin with other bits.
fn is_named_after_its_rank(port: PortId) -> bool {
    port.0 >> 62 == 0
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use transport::config::AuthLevel;

    use super::*;

    const KEY: [u8; 16] = [5; 16];
    const LIFE: Life = Life { counter: 2, nonce: 9 };

    fn launch() -> Launch {
        Launch {
            job: JobId(7),
            key: KEY,
            life: LIFE,
            rank: Rank(3),
            ranks: 4,
            restore: None,
            auth: AuthLevel::Header,
            bind: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            nic: drivers::NicRequest::default(),
            encryption: None,
            disk_bytes_per_s: None,
            directory: "/tmp/somewhere".into(),
        }
    }

    /// A process with its line, and the launcher's end.
    fn started() -> (Keeper, UnixStream) {
        let (mut launcher, process) = UnixStream::pair().unwrap();
        launcher.write_all(&launch().emit()).unwrap();
        let line = OwnLine::take(process.as_raw_fd()).expect("a launch record waits there");
        (Keeper::Own(Box::new(line)), launcher)
    }

    fn said(launcher: &mut UnixStream) -> Vec<Control> {
        let mut reader = ControlReader::new(ControlKey::new(&KEY));
        let mut bytes = vec![0; 1 << 20];
        let got = launcher.read(&mut bytes).unwrap();
        reader.feed(&bytes[..got]);
        std::iter::from_fn(|| reader.next().unwrap()).collect()
    }

    fn writer() -> ControlWriter {
        ControlWriter::new(ControlKey::new(&KEY))
    }

    /// All reports on one connection have the same writer, which numbers them.
    fn report(launcher: &mut UnixStream, writer: &mut ControlWriter, life: Life, messages: Vec<Message>) {
        for message in messages {
            let mut bytes = Vec::new();
            let sender = Party::Rank(Rank(0));
            writer.emit(&Control { job: JobId(7), life, epoch: Epoch(0), sender, message }, &mut bytes);
            launcher.write_all(&bytes).unwrap();
        }
    }

    fn closed(port: PortId, asker: PortId, expected: Option<u64>) -> Message {
        let link = expected.map(|expected| ClosedLink { peer: asker, next: 1, expected });
        Message::ClosedAnswer { port, peer: asker, link }
    }

    #[test]
    fn ports_are_named_after_their_rank_and_never_twice() {
        let (keeper, _launcher) = started();
        let names = [keeper.new_port(), keeper.new_port()];
        assert_eq!(names, [PortId::of_rank(Rank(3), 1), PortId::of_rank(Rank(3), 2)]);
        assert!(is_named_after_its_rank(names[0]) && !is_named_after_its_rank(crate::address::random_port()));
    }

    // R37
    #[test]
    fn a_rank_that_is_lost_is_noted_for_ports_to_come() {
        let (keeper, mut launcher) = started();
        let Keeper::Own(line) = &keeper else { panic!("a line of its own") };
        let lost = Message::RankLost { rank: Rank(1), status: ckpt_glue::names::ExitStatus::Signal(9) };
        let mut writer = writer();
        report(&mut launcher, &mut writer, Life { counter: 1, ..LIFE }, vec![lost.clone()]);
        let socket = line.lock().stream.as_ref().unwrap().try_clone().unwrap();
        assert!(line.hear(&socket));
        assert_eq!(line.open_ports().lost, [], "the message is of another life");
        report(&mut launcher, &mut writer, LIFE, vec![lost.clone(), lost]);
        assert!(line.hear(&socket));
        assert_eq!(line.open_ports().lost, [Rank(1)]);
        drop(launcher);
        assert!(!line.hear(&socket), "nothing more comes");
    }

    #[test]
    fn the_keeper_gets_the_final_counters_of_every_link() {
        let (keeper, mut launcher) = started();
        let port = keeper.new_port();
        let links = ckpt_glue::limits::ENTRIES_MAX + 1;
        let counters: Vec<_> = (0u32..)
            .take(links)
            .map(|i| FinalCounters { peer: PortId::of_rank(Rank(i), 1), next: 8, expected: u64::from(i) })
            .collect();
        keeper.port_closed(port, &counters);
        let mut got = Vec::new();
        let mut ends = Vec::new();
        for control in said(&mut launcher) {
            assert_eq!((control.job, control.life, control.sender), (JobId(7), LIFE, Party::Rank(Rank(3))));
            let Message::Closed { port: of, links, last } = control.message else { panic!("{control:?}") };
            assert_eq!(of, port);
            got.extend(links.iter().map(|link| link.expected));
            ends.push(last);
        }
        assert_eq!(got, (0..links as u64).collect::<Vec<_>>());
        assert_eq!(ends, [false, true]);
    }

    #[test]
    fn each_port_gets_the_answers_to_its_own_questions() {
        let (keeper, mut launcher) = started();
        let (one, other, peer) = (keeper.new_port(), keeper.new_port(), PortId::of_rank(Rank(0), 1));
        keeper.ask(peer, one);
        keeper.ask(crate::address::random_port(), one);
        let asked: Vec<_> = said(&mut launcher).into_iter().map(|control| control.message).collect();
        assert_eq!(
            asked,
            [Message::ClosedQuery { port: peer, peer: one }],
            "nobody keeps ports of strangers"
        );
        assert_eq!(keeper.answers(one), []);
        report(
            &mut launcher,
            &mut writer(),
            LIFE,
            vec![closed(peer, one, None), closed(peer, other, Some(5)), closed(peer, one, Some(4))],
        );
        assert_eq!(keeper.answers(one), [(peer, 4)]);
        assert_eq!(keeper.answers(one), [], "once");
        assert_eq!(keeper.answers(other), [(peer, 5)]);
    }

    /// R7
    #[test]
    fn what_belongs_to_another_life_is_no_answer() {
        let (keeper, mut launcher) = started();
        let (port, peer) = (keeper.new_port(), PortId::of_rank(Rank(0), 1));
        report(&mut launcher, &mut writer(), Life { counter: 1, ..LIFE }, vec![closed(peer, port, Some(4))]);
        assert_eq!(keeper.answers(port), []);
    }

    #[test]
    fn a_keeper_that_talks_nonsense_or_is_gone_is_done_without() {
        for nonsense in [true, false] {
            let (keeper, mut launcher) = started();
            let port = keeper.new_port();
            if nonsense {
                launcher.write_all(&[0xff; 64]).unwrap();
            }
            drop(launcher);
            assert_eq!(keeper.answers(port), []);
            keeper.port_closed(port, &[]);
            let Keeper::Own(line) = keeper else { panic!("there is no agent") };
            assert!(line.lock().stream.is_none());
        }
    }

    #[test]
    fn sockets_of_others_are_left_alone() {
        let (mut theirs, process) = UnixStream::pair().unwrap();
        theirs.write_all(b"something else entirely").unwrap();
        assert!(OwnLine::take(process.as_raw_fd()).is_none());
        let mut bytes = [0; 14];
        (&process).read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"something else", "nothing was taken");
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(OwnLine::take(file.as_raw_fd()).is_none(), "no socket");
        assert!(
            OwnLine::take(1 << 20).is_none() && OwnLine::take(0).is_none(),
            "nothing open, and standard input"
        );
    }

    /// R33: a rank's silence is evidence, and a process that no rank is named after is none of the job's.
    #[test]
    fn silent_peers_are_reported_by_rank() {
        let (keeper, mut launcher) = started();
        keeper.report_peer(PortId::of_rank(Rank(1), 2), Some(Duration::from_millis(700)));
        keeper.report_peer(PortId(u64::MAX), Some(Duration::from_secs(9)));
        keeper.report_peer(PortId::of_rank(Rank(1), 2), None);
        let reports: Vec<Message> = said(&mut launcher).into_iter().map(|control| control.message).collect();
        let silent = FaultReport::RankSilent { rank: Rank(1), by: Some(Rank(3)), silent_ms: 700 };
        let heard = FaultReport::RankHeard { rank: Rank(1), by: Rank(3) };
        assert_eq!(reports, [silent, heard].map(|report| Message::Fault { report }));
    }
}
