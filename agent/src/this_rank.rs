//! The rank that this process is, for those in it who have ports: who it is now, the keeper's line, and what ports are open.
//!
//! One lock guards all of it. It is taken before the gate of an endpoint, and the agent holds it across a cut: what a program does with a
//! port happens before the cut or after it, and nothing is half said to a keeper that a restored process does not have any more.

use core::time::Duration;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use ckpt_glue::control::{ClosedLink, Control, Message};
use ckpt_glue::enrolment::AddressTable;
use ckpt_glue::names::Party;
use endpoint::{Endpoint, EndpointError};
use nix::sys::eventfd::{EfdFlags, EventFd};
use session::launch::Launch;
use session::line::Line;
use transport::{Epoch, LinkIndex, PortId, Rank, RawAddress};

use crate::limits::{ANSWERS_MAX, CLOSED_LINKS_PER_MESSAGE, LAST_WORDS_MAX, SEAT_MAX};

/// What the keeper said of a closed port: the port of ours that asked, the closed one, the first frame that it has not got.
type Answer = (PortId, PortId, u64);

/// Wakes the agent: for a seat that is to be taken at once, an epoch that traffic has brought, a message that waits.
static WAKE: OnceLock<EventFd> = OnceLock::new();

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

/// This process's rank, if an agent looks after it. The agent takes its seat now, if it has not yet. `None`: it is not saved as a whole.
pub fn this_rank() -> Option<&'static ThisRank> {
    let (lock, changed) = &STAGE;
    let mut stage = lock.lock().unwrap_or_else(PoisonError::into_inner);
    let until = Instant::now() + SEAT_MAX;
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
                        "stillwire: the agent of this process has not taken its seat in {SEAT_MAX:?}; its ports are not saved"
                    );
                    return None;
                }
                stage = changed.wait_timeout(stage, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

/// As [`this_rank`], for who does not wait: `None` as long as the agent has no seat.
pub fn seated() -> Option<&'static ThisRank> {
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

/// What changes with a life, and what ports there are.
pub(crate) struct State {
    pub(crate) launch: Launch,
    /// Of the last cut; all ports have it.
    pub(crate) epoch: Epoch,
    pub(crate) line: Line,
    /// The keeper listens to what a rank of a running job says; until then it waits here.
    unsaid: Option<Vec<Message>>,
    pub(crate) open: BTreeMap<PortId, Endpoint>,
    /// Final counters of ports that closed: each new life's keeper has to know them, too (R12).
    closed: BTreeMap<PortId, Vec<ClosedLink>>,
    /// Where peers are in this life, as the keeper has told: newer than any address that a program knows.
    locations: AddressTable,
    answers: Vec<Answer>,
}

impl State {
    /// Hands a message to the line.
    pub(crate) fn send(&mut self, message: Message) -> std::io::Result<()> {
        let Launch { job, life, rank, .. } = self.launch;
        let control = Control { job, life, epoch: self.epoch, sender: Party::Rank(rank), message };
        self.line.send(&control)
    }

    /// Hands over what the program's ports say, as soon as the job runs.
    fn say(&mut self, message: Message) {
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
        let mut parts = links.chunks(CLOSED_LINKS_PER_MESSAGE).peekable();
        if parts.peek().is_none() {
            self.say(Message::Closed { port, links: Vec::new(), last: true });
        }
        while let Some(part) = parts.next() {
            let last = parts.peek().is_none();
            self.say(Message::Closed { port, links: part.to_vec(), last });
        }
    }

    /// The job runs in this life: all peers are where `locations` says.
    pub(crate) fn begin_life(&mut self, locations: AddressTable) {
        self.locations = locations;
        for (port, links) in core::mem::take(&mut self.closed) {
            self.say_closed(port, &links);
            self.closed.insert(port, links);
        }
        for message in self.unsaid.take().unwrap_or_default() {
            // As above.
            let _ = self.send(message);
        }
    }

    /// A new life has begun, of which nothing is known but the launch record.
    pub(crate) fn be_born(&mut self, launch: Launch, line: Line) {
        self.launch = launch;
        self.line = line;
        self.locations.clear();
        self.unsaid = Some(Vec::new());
        self.answers.clear();
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
                // Who is not there has ended: the keeper answers for it.
                let Some(rails) = self.locations.get(&peer) else { continue };
                if let Err(error) = endpoint.connect(peer, rails) {
                    failed.push((peer, error));
                }
            }
        }
        failed
    }

    /// What the keeper says of a closed port.
    pub(crate) fn hear_closed(&mut self, port: PortId, peer: PortId, link: Option<ClosedLink>) {
        if let Some(link) = link
            && self.answers.len() < ANSWERS_MAX
        {
            self.answers.push((peer, port, link.expected));
        }
    }
}

impl ThisRank {
    /// Takes the seat: from here on the process is a rank with an agent.
    pub(crate) fn seat(launch: Launch, line: Line) -> &'static ThisRank {
        let epoch = launch.restore.map_or(Epoch(0), |generation| generation.epoch);
        let rank = launch.rank;
        let state = State {
            launch,
            epoch,
            line,
            unsaid: Some(Vec::new()),
            open: BTreeMap::new(),
            closed: BTreeMap::new(),
            locations: AddressTable::new(),
            answers: Vec::new(),
        };
        let this = ThisRank {
            rank,
            named: AtomicU32::new(0),
            required: AtomicU32::new(0),
            state: Mutex::new(state),
        };
        let this: &'static ThisRank = Box::leak(Box::new(this));
        set_stage(Stage::Seated(this));
        this
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rank's number.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The name of another port of this rank. Number 0 stands for the rank as a whole.
    pub fn new_port(&self) -> PortId {
        PortId::of_rank(self.rank, self.named.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Opens a port in this life, in the rank's epoch; it is part of every image from then on, until [`ThisRank::close_port`].
    ///
    /// # Errors
    /// What `open` says.
    pub fn open_port<E>(
        &self,
        port: PortId,
        open: impl FnOnce(transport::Life, Epoch) -> Result<Endpoint, E>,
    ) -> Result<Endpoint, E> {
        let mut state = self.lock();
        let endpoint = open(state.launch.life, state.epoch)?;
        state.open.insert(port, endpoint.clone());
        Ok(endpoint)
    }

    /// A port has closed. Its final counters go to the keeper, which answers for it from then on (R12).
    pub fn close_port(&self, port: PortId, links: Vec<ClosedLink>) {
        let mut state = self.lock();
        state.open.remove(&port);
        state.say_closed(port, &links);
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

    /// Asks the keeper what a peer's port had received of `port` when it closed, if it has.
    pub fn ask(&self, peer: PortId, port: PortId) {
        self.lock().say(Message::ClosedQuery { port: peer, peer: port });
    }

    /// What has come for `port`: closed peers, and the first frame that each has not got.
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
