//! The rank that this process is, for owners of ports in it: its identity, the keeper's line, and its open ports.
//!
//! One lock guards all of it. It is taken before the gate of an endpoint, and the agent holds it across a
//! cut. So a program's call on a port happens before the cut or after it. No message to a keeper is cut in
//! half: a restored process has another keeper.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use ckpt_glue::control::{ClosedLink, Control, FaultReport, Message, NicText, closed_port};
use ckpt_glue::enrolment::AddressTable;
use ckpt_glue::names::Party;
use client::launch::Launch;
use client::line::Line;
use client::nics::{Moved, Nics};
use drivers::NicSelection;
use endpoint::{Endpoint, EndpointError};
use nix::sys::eventfd::{EfdFlags, EventFd};
use transport::{Epoch, LinkIndex, PortId, Rank, RawAddress};

use crate::limits::{ANSWERS_MAX, LAST_WORDS_MAX, RANK_SLOT_MAX};

/// The keeper's answer about a closed port: the port of ours that asked, the closed one, the first frame that
/// it has not received.
type Answer = (PortId, PortId, u64);

/// Wakes the agent: for a rank slot to take at once, an epoch that traffic has brought, a message that waits.
static WAKE: OnceLock<EventFd> = OnceLock::new();

/// Some port has found a rail dead.
static RAIL_DIED: AtomicBool = AtomicBool::new(false);

/// How far the agent of this process is.
static STAGE: (Mutex<Stage>, Condvar) = (Mutex::new(Stage::None), Condvar::new());

#[derive(Clone, Copy)]
enum Stage {
    /// This process has no agent.
    None,
    /// It waits to see whether the program starts another one in its own place.
    Waiting,
    /// A program wants to open a port: it is the one that a person means.
    Wanted,
    Seated(&'static ThisRank),
}

fn set_stage(stage: Stage) {
    *STAGE.0.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    STAGE.1.notify_all();
}

/// There will be an agent.
pub(crate) fn expect_agent() -> std::io::Result<()> {
    let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
    let _ = WAKE.set(event);
    set_stage(Stage::Waiting);
    Ok(())
}

/// There will be none after all.
pub(crate) fn give_up_agent() {
    set_stage(Stage::None);
}

/// Readable when the agent is wanted.
pub(crate) fn wake_fd() -> Option<BorrowedFd<'static>> {
    WAKE.get().map(|event| event.as_fd())
}

pub(crate) fn wake() {
    if let Some(event) = WAKE.get() {
        // Full means that it is awake already.
        let _ = event.write(1);
    }
}

pub(crate) fn hush() {
    if let Some(event) = WAKE.get() {
        let _ = event.read();
    }
}

/// This process's rank, if an agent looks after it. The agent takes its rank slot now, if it has not yet. `None`: it is not saved as a whole.
pub fn this_rank() -> Option<&'static ThisRank> {
    let (lock, changed) = &STAGE;
    let mut stage = lock.lock().unwrap_or_else(PoisonError::into_inner);
    let until = Instant::now() + RANK_SLOT_MAX;
    loop {
        match *stage {
            Stage::None => return None,
            Stage::Seated(rank) => return Some(rank),
            Stage::Waiting => {
                *stage = Stage::Wanted;
                wake();
            }
            Stage::Wanted => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    eprintln!(
                        "stillwire: the agent of this process has not taken its rank slot in {RANK_SLOT_MAX:?}; its ports are not saved"
                    );
                    return None;
                }
                stage = changed.wait_timeout(stage, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

/// As [`this_rank`], without waiting: `None` as long as the agent has no rank slot.
pub(crate) fn seated() -> Option<&'static ThisRank> {
    match *STAGE.0.lock().unwrap_or_else(PoisonError::into_inner) {
        Stage::Seated(rank) => Some(rank),
        _ => None,
    }
}

/// The rank that this process is.
pub struct ThisRank {
    rank: Rank,
    /// Ports that have been named.
    named: AtomicU32,
    /// The highest epoch that a frame of a peer has brought (R3).
    required: AtomicU32,
    state: Mutex<State>,
}

/// State that changes with a life, and the open ports.
pub(crate) struct State {
    pub(crate) launch: Launch,
    /// Of the last cut; all ports have it.
    pub(crate) epoch: Epoch,
    pub(crate) line: Line,
    /// The keeper accepts messages of a rank only in a running job; until then they wait here.
    unsaid: Option<Vec<Message>>,
    pub(crate) open: BTreeMap<PortId, Endpoint>,
    /// Final counters of ports that closed: each new life's keeper has to know them, too (R12).
    closed: BTreeMap<PortId, Vec<ClosedLink>>,
    /// Where peers are in this life, as the keeper has reported: newer than any address that a program knows.
    locations: AddressTable,
    answers: Vec<Answer>,
    /// R37: ranks without which the job goes on in this life.
    lost: BTreeSet<Rank>,
    pub(crate) nics: Nics,
}

impl State {
    /// Hands a message to the line.
    pub(crate) fn send(&mut self, message: Message) -> std::io::Result<()> {
        let Launch { job, life, rank, .. } = self.launch;
        let control = Control { job, life, epoch: self.epoch, sender: Party::Rank(rank), message };
        self.line.send(&control)
    }

    /// Hands over messages of the program's ports, as soon as the job runs.
    pub(crate) fn say(&mut self, message: Message) {
        match &mut self.unsaid {
            Some(unsaid) => unsaid.push(message),
            None => {
                // A keeper that is gone is noticed by the agent, which reads.
                let _ = self.send(message);
                if !self.line.wants().is_empty() {
                    // It sends the rest.
                    wake();
                }
            }
        }
    }

    fn say_closed(&mut self, port: PortId, links: &[ClosedLink]) {
        closed_port(port, links).for_each(|message| self.say(message));
    }

    /// The job runs in this life: all peers are at the addresses in `locations`.
    pub(crate) fn begin_life(&mut self, locations: AddressTable) {
        self.locations = locations;
        let unsaid = self.unsaid.take().unwrap_or_default();
        let closed = core::mem::take(&mut self.closed);
        for (port, links) in &closed {
            self.say_closed(*port, links);
        }
        self.closed = closed;
        for message in unsaid {
            self.say(message);
        }
    }

    /// A new life has begun, of which nothing is known but the launch record.
    pub(crate) fn enter_life(&mut self, launch: Launch, line: Line) {
        self.nics = Nics::new(launch.nic.clone(), launch.bind.ip());
        self.launch = launch;
        self.line = line;
        self.locations.clear();
        self.unsaid = Some(Vec::new());
        self.answers.clear();
        self.lost.clear();
    }

    /// R37: no operation waits for that rank any more.
    pub(crate) fn lose(&mut self, rank: Rank) {
        self.lost.insert(rank);
        for endpoint in self.open.values() {
            endpoint.lose_rank(rank);
        }
    }

    /// Where every link of every port leads in this life.
    pub(crate) fn connect_all(&self) -> Vec<(PortId, EndpointError)> {
        let mut failed = Vec::new();
        for endpoint in self.open.values() {
            let peers: Vec<PortId> = endpoint.with_port(|port| {
                let links = (0..port.links()).filter_map(|index| u32::try_from(index).ok());
                links.filter_map(|index| port.peer(LinkIndex(index))).collect()
            });
            for peer in peers {
                // A missing rank has ended: the keeper answers for it.
                let Some(rails) = self.locations.get(&peer) else { continue };
                if let Err(error) = endpoint.connect(peer, rails) {
                    failed.push((peer, error));
                }
            }
        }
        failed
    }

    /// Has all ports go on over another NIC, and answers.
    pub(crate) fn hand_over(&mut self, number: u64, nic: &NicText) {
        let refused = match nic.as_str().parse() {
            Ok(choice) => {
                let endpoints: Vec<Endpoint> = self.open.values().cloned().collect();
                let moved = self.nics.hand_over(&endpoints, choice);
                // Ports that are opened later go over the same.
                self.launch.nic = self.nics.request().clone();
                self.report_nic(&moved);
                moved.refused.unwrap_or_default()
            }
            Err(unknown) => unknown.to_string(),
        };
        self.say(Message::HandedOver { number, refused: NicText::new(&refused) });
    }

    /// Takes part in a change of all ranks to another NIC (R29).
    pub(crate) fn change_rails(&mut self, message: Message) {
        match message {
            Message::OpenRail { number, nic, anew } => {
                let endpoints: Vec<Endpoint> = self.open.values().cloned().collect();
                let answer = self.nics.open_rail(&endpoints, number, &nic, anew);
                self.say(answer);
            }
            Message::MeetRails { number, ports, last } => {
                if let Some(answer) = self.nics.meet_rails(number, &ports, last) {
                    self.say(answer);
                }
            }
            Message::ChangeRails { number, decided } => {
                if let Some(places) = self.nics.change_rails(number, decided) {
                    self.locations.extend(places.iter().map(|(port, rails)| (*port, rails.clone())));
                    self.launch.nic = self.nics.request().clone();
                }
            }
            _ => {}
        }
    }

    /// Revives dead rails, looks at a change that is under way, and returns when to look again.
    pub(crate) fn attend_rails(&mut self) -> Option<Instant> {
        if RAIL_DIED.swap(false, Ordering::Relaxed) {
            self.nics.note_news(Instant::now());
        }
        let endpoints: Vec<Endpoint> =
            self.nics.due().map_or(Vec::new(), |_| self.open.values().cloned().collect());
        if let Some((moved, answer)) = self.nics.look(&endpoints) {
            self.report_nic(&moved);
            self.say(answer);
        }
        if let Some(moved) = self.nics.revive(&endpoints, Instant::now()) {
            moved.complain(self.launch.rank);
            self.report_nic(&moved);
        }
        self.nics.due()
    }

    fn report_nic(&mut self, moved: &Moved) {
        if let Some(taken) = &moved.selection {
            self.say(Message::Nic { words: NicText::new(taken) });
        }
        if moved.lost {
            self.say(Message::RailLost { words: NicText::new(&self.nics.request().choice) });
        }
    }

    /// The keeper's data of a closed port.
    pub(crate) fn hear_closed(&mut self, port: PortId, peer: PortId, link: Option<ClosedLink>) {
        if let Some(link) = link
            && self.answers.len() < ANSWERS_MAX
        {
            self.answers.push((peer, port, link.expected));
        }
    }
}

impl ThisRank {
    /// Takes the rank slot: from here on the process is a rank with an agent.
    pub(crate) fn take_slot(launch: Launch, line: Line) -> &'static ThisRank {
        let this: &'static ThisRank = Box::leak(Box::new(ThisRank::new(launch, line)));
        set_stage(Stage::Seated(this));
        this
    }

    fn new(launch: Launch, line: Line) -> ThisRank {
        let epoch = launch.restore.map_or(Epoch(0), |generation| generation.epoch);
        let rank = launch.rank;
        let nics = Nics::new(launch.nic.clone(), launch.bind.ip());
        let state = State {
            launch,
            nics,
            epoch,
            line,
            unsaid: Some(Vec::new()),
            open: BTreeMap::new(),
            closed: BTreeMap::new(),
            locations: AddressTable::new(),
            answers: Vec::new(),
            lost: BTreeSet::new(),
        };
        ThisRank { rank, named: AtomicU32::new(0), required: AtomicU32::new(0), state: Mutex::new(state) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing waits to be read by the keeper. `false` also while another thread looks.
    pub(crate) fn has_said_all(&self) -> bool {
        self.state.try_lock().is_ok_and(|state| state.line.wants().is_empty())
    }

    /// The rank's number.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Its launch record of this life.
    pub fn launch(&self) -> Launch {
        self.lock().launch.clone()
    }

    /// The name of another port of this rank. Number 0 stands for the rank as a whole.
    pub fn new_port(&self) -> PortId {
        PortId::of_rank(self.rank, self.named.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Opens a port in this life, with its key, in the rank's epoch; it is part of every image from then on, until [`ThisRank::close_port`].
    ///
    /// # Errors
    /// The errors of `open`.
    pub fn open_port<E>(
        &self,
        port: PortId,
        open: impl FnOnce(&Launch, Epoch) -> Result<Endpoint, E>,
    ) -> Result<Endpoint, E> {
        let mut state = self.lock();
        let endpoint = open(&state.launch, state.epoch)?;
        endpoint.on_rail_news(|| {
            RAIL_DIED.store(true, Ordering::Relaxed);
            wake();
        });
        state.lost.iter().for_each(|lost| endpoint.lose_rank(*lost));
        state.open.insert(port, endpoint.clone());
        Ok(endpoint)
    }

    /// Reports to the keeper the NIC over which a port of this rank reaches other hosts.
    pub fn report_nic(&self, nic: &NicSelection) {
        self.lock().say(Message::Nic { words: NicText::new(nic) });
    }

    /// Passes on what a port of this rank has noticed of a peer (R33).
    pub fn report_peer(&self, report: FaultReport) {
        self.lock().say(Message::Fault { report });
    }

    /// A port has closed. Its final counters go to the keeper, which answers for it from then on (R12).
    pub fn close_port(&self, port: PortId, links: Vec<ClosedLink>) {
        let mut state = self.lock();
        state.open.remove(&port);
        if state.unsaid.is_none() {
            state.say_closed(port, &links);
        }
        state.closed.insert(port, links);
        // The process may end at once.
        let until = Instant::now() + LAST_WORDS_MAX;
        while !state.line.wants().is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
            if state.line.flush().is_err() {
                return;
            }
        }
    }

    /// The link of a port to a peer. Where the peer is, the keeper knows better than `rails`, once the job has been restored.
    ///
    /// # Errors
    /// Those of [`Endpoint::connect`].
    pub fn connect(
        &self,
        endpoint: &Endpoint,
        peer: PortId,
        rails: &[RawAddress],
    ) -> Result<LinkIndex, EndpointError> {
        // Under the lock: a cut between the look at the address and its use would leave an address of the old life in the new one.
        let state = self.lock();
        endpoint.connect(peer, state.locations.get(&peer).map_or(rails, Vec::as_slice))
    }

    /// Asks the keeper how much of `port`'s frames a peer's port had received when it closed, if it has.
    pub fn ask(&self, peer: PortId, port: PortId) {
        self.lock().say(Message::ClosedQuery { port: peer, peer: port });
    }

    /// The answers received for `port`: closed peers, and the first frame that each has not received.
    pub fn answers(&self, port: PortId) -> Vec<(PortId, u64)> {
        let mut state = self.lock();
        let ours = state.answers.extract_if(.., |(asker, ..)| *asker == port);
        ours.map(|(_, peer, expected)| (peer, expected)).collect()
    }

    /// A frame of a higher epoch has come: this rank has to cut (R3).
    pub fn require_cut(&self, epoch: Epoch) {
        self.required.fetch_max(epoch.0, Ordering::AcqRel);
        wake();
    }

    /// The highest epoch that was asked for by frames.
    pub(crate) fn required(&self) -> Epoch {
        Epoch(self.required.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::os::unix::net::UnixStream;

    use ckpt_glue::control::{ControlKey, ControlReader};
    use drivers::udp::{UdpConfig, UdpDriver};
    use endpoint::{Completion, EndpointConfig, SendBuffer};
    use transport::config::AuthLevel;
    use transport::{JobId, JobKey, Life, Outgoing, Port, PortConfig, Space};

    use super::*;

    const KEY: [u8; 16] = [3; 16];

    fn launch(life: u32) -> Launch {
        Launch {
            job: JobId(7),
            key: KEY,
            life: Life { counter: life, nonce: 9 },
            rank: Rank(2),
            ranks: 4,
            restore: None,
            auth: AuthLevel::Header,
            bind: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
            nic: drivers::NicRequest::default(),
            encryption: None,
            disk_bytes_per_s: None,
            directory: "/tmp/somewhere".into(),
        }
    }

    /// A line, and the keeper's end.
    fn line() -> (Line, UnixStream) {
        let (keeper, ours) = UnixStream::pair().unwrap();
        keeper.set_nonblocking(true).unwrap();
        (Line::new(ours, ControlKey::new(&KEY)), keeper)
    }

    fn heard(keeper: &mut UnixStream) -> Vec<(u32, Message)> {
        let mut reader = ControlReader::new(ControlKey::new(&KEY));
        let mut bytes = vec![0; 1 << 16];
        // There may be no message.
        let read = keeper.read(&mut bytes).unwrap_or(0);
        reader.feed(&bytes[..read]);
        std::iter::from_fn(|| reader.next().unwrap())
            .map(|control| (control.life.counter, control.message))
            .collect()
    }

    fn endpoint(port: PortId, life: Life, epoch: Epoch) -> Endpoint {
        let bind = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        let rail = Box::new(UdpDriver::open(&UdpConfig::new(bind)).unwrap());
        let port = Port::new(PortConfig::new(JobId(7).tag()), port, life, epoch, Some(&JobKey(KEY)));
        Endpoint::open(port, vec![rail], EndpointConfig::default()).unwrap()
    }

    // R12
    #[test]
    fn counters_of_closed_ports_are_reported_in_every_life_once_it_runs() {
        let (first, mut keeper) = line();
        let rank = ThisRank::new(launch(1), first);
        let port = rank.new_port();
        assert_eq!(port, PortId::of_rank(Rank(2), 1));
        let links = vec![ClosedLink { peer: PortId(5), next: 8, expected: 3 }];
        rank.close_port(port, links.clone());
        assert_eq!(heard(&mut keeper), [], "the keeper does not know yet who this is");
        rank.lock().begin_life(AddressTable::new());
        let closed = Message::Closed { port, links, last: true };
        assert!(heard(&mut keeper).contains(&(1, closed.clone())));
        let (second, mut keeper) = line();
        rank.lock().enter_life(launch(2), second);
        rank.ask(PortId(5), port);
        assert_eq!(heard(&mut keeper), []);
        rank.lock().begin_life(AddressTable::new());
        let query = Message::ClosedQuery { port: PortId(5), peer: port };
        assert_eq!(heard(&mut keeper), [(2, closed), (2, query)]);
    }

    // R2
    #[test]
    fn a_port_begins_in_the_life_and_the_epoch_of_its_rank() {
        let (line, _keeper) = line();
        let rank = ThisRank::new(launch(3), line);
        rank.lock().epoch = Epoch(6);
        let port = rank.new_port();
        let opened =
            rank.open_port::<()>(port, |launch, epoch| Ok(endpoint(port, launch.life, epoch))).unwrap();
        assert_eq!(opened.with_port(|port| (port.life().counter, port.epoch())), (3, Epoch(6)));
        assert!(rank.lock().open.contains_key(&port));
        rank.close_port(port, Vec::new());
        assert!(rank.lock().open.is_empty(), "a closed port is part of no image");
    }

    #[test]
    fn the_keeper_knows_better_than_an_old_address_where_a_peer_is() {
        let (line, _keeper) = line();
        let rank = ThisRank::new(launch(1), line);
        let life = Life { counter: 1, nonce: 9 };
        let [ours, peer, left] =
            [1, 2, 3].map(|number| endpoint(PortId::of_rank(Rank(number), 1), life, Epoch(0)));
        let there = PortId::of_rank(Rank(2), 1);
        rank.lock().begin_life([(there, peer.addresses())].into());
        // The program knows an old place, where another process is now.
        let link = rank.connect(&ours, there, &left.addresses()).unwrap();
        let outgoing = Outgoing { space: Space(0), tag: 4, data: 0, context: 0, silent: false };
        ours.send(link, outgoing, SendBuffer::Copied(b"hello")).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while !matches!(peer.claim(&any()), Some((_, envelope)) if envelope.tag == 4) {
            assert!(Instant::now() < until, "nothing came");
            let _: Option<Completion> = peer.poll().or_else(|| ours.poll());
        }
    }

    fn any() -> transport::matching::Pattern {
        transport::matching::Pattern { space: Space(0), source: None, tag: 0, ignore: u64::MAX }
    }

    // R3
    #[test]
    fn the_highest_epoch_that_traffic_brings_counts() {
        let (line, _keeper) = line();
        let rank = ThisRank::new(launch(1), line);
        for (brought, highest) in [(4, 4), (2, 4), (9, 9)] {
            rank.require_cut(Epoch(brought));
            assert_eq!(rank.required(), Epoch(highest));
        }
    }
}
