//! The life of requests: one engine for each enabled endpoint, over one [`Endpoint`].
//!
//! The engine's lock guards its requests; the endpoint's gate is always taken second, queues and counters last. A
//! caller of [`Engine::progress`] handles the endpoint's completions; while the program is elsewhere the endpoint's
//! helper does it, so peers are served while the program computes.
//!
//! * `send`, `receive`: messages;
//! * `rma_initiator`: requests to peers' memory, `pieces`: long ones; `rma_target`: peers' requests to ours, `target_credits`: memory held for them; [`wire`]: how they
//!   are written;
//! * `report`: messages about peers, `broken_links`: requests to unreachable peers;
//! * `backlog`: completions for which a queue has no room;
//! * `shutdown`: the waits of a closing endpoint;
//! * [`regions`]: the memory that is open to peers; [`sinks`]: queues and counters.

pub(crate) mod arithmetic;
mod backlog;
mod broken_links;
mod pieces;
mod receive;
pub(crate) mod regions;
mod report;
mod rma_initiator;
mod rma_target;
mod send;
mod shutdown;
pub(crate) mod sinks;
mod target_credits;
pub(crate) mod wire;

use core::cell::Cell;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent::{ThisRank, spaces};
use client::launch::Launch;
use drivers::udp::UdpConfig;
use drivers::{NicChoice, NicRequest};
use endpoint::{Completion, Endpoint, EndpointConfig, Linger};
use transport::config::PortConfig;
use transport::matching::{Envelope, MessageKey};
use transport::slab::{Slab, SlabKey};
use transport::{Epoch, LinkIndex, OpId, Port, PortId, Reach, Space};

use crate::abi::{ADDR_NOTAVAIL, FiAddr};
use crate::address::Address;
use crate::av;
use crate::boundary::{EINVAL, Errno, Result, complain};
use crate::identity::{self, Identity, own_ip};
use crate::keeper::{keeper, this_rank};
use crate::limits::{COMPLETIONS_PER_ROUND, COPIED_BYTES_MAX, DRAIN_MAX, HELPER_TICK, LINK_COPIED_BYTES_MAX};
use crate::periodic_freeze::{self, PeriodicFreeze};
use receive::ProbeState;
pub(crate) use receive::{Inbound, Peek};
use regions::Regions;
pub(crate) use rma_initiator::{AtomicOperands, RemoteAddress};
use rma_target::RmaTarget;
pub(crate) use send::Outbound;
use sinks::Sinks;

/// Matching spaces: messages without and with tags, requests to memory, and the payloads that belong to them.
pub(crate) const SPACE_MESSAGES: Space = spaces::MESSAGES;
pub(crate) const SPACE_TAGGED: Space = spaces::TAGGED;
const SPACE_SERVICE: Space = spaces::SERVICE;
const SPACE_READ: Space = spaces::READ;
const SPACE_WRITE: Space = spaces::WRITE;

/// In the word that travels beside a message: data for the completion queue is present.
const DATA_PRESENT: u64 = 1 << 32;

/// One enabled endpoint.
pub(crate) struct Engine {
    endpoint: Endpoint,
    /// Where the process is saved as a whole.
    rank: Option<&'static ThisRank>,
    port: PortId,
    vector: av::Handle,
    regions: Arc<Regions>,
    sinks: Sinks,
    /// Receives look at where a message comes from.
    directed: bool,
    closing: AtomicBool,
    /// How long it stays for its peers when it closes.
    linger: Linger,
    state: Mutex<State>,
    periodic_freeze: Mutex<Option<PeriodicFreeze>>,
}

/// The arguments for opening an engine.
pub(crate) struct Opening<'a> {
    pub(crate) identity: &'a Identity,
    /// Its id.
    pub(crate) port: PortId,
    /// The address that the program wants it to receive on. By default, the launcher's address of this rank
    /// in this life, which may be on another host than the environment of a restored process names; and
    /// [`own_ip`] in a process that is no rank.
    pub(crate) place: Option<SocketAddr>,
    pub(crate) vector: av::Handle,
    pub(crate) regions: Arc<Regions>,
    pub(crate) sinks: Sinks,
    pub(crate) directed: bool,
}

/// Everything that is under way.
struct State {
    requests: Slab<Request>,
    /// Links by number of the address, and numbers by link, as the vector was at `changes`.
    routes: Vec<Option<LinkIndex>>,
    sources: Vec<Option<FiAddr>>,
    changes: u64,
    /// Messages that were set aside, by the context of the call.
    claims: HashMap<usize, (MessageKey, Envelope)>,
    probe: ProbeState,
    rma_target: RmaTarget,
    /// Completions that wait for room in a queue.
    backlog: VecDeque<Completion>,
    /// Completions that are being worked off; kept for its memory.
    batch: VecDeque<Completion>,
    /// Open requests to peers' memory.
    rma_open: usize,
    /// Peers that have been reported as silent.
    silent: BTreeSet<PortId>,
    /// Links to peers whose processes have ended, and without which the job goes on (R37).
    lost: BTreeSet<LinkIndex>,
}

/// An operation that is under way. Its key is the context of the endpoint's operation.
enum Request {
    Receive(receive::Posted),
    Send(send::Sending),
    Rma(rma_initiator::PendingRma),
    /// A request that is asked for in pieces.
    Pieces(Box<pieces::Pieces>),
    /// A buffer for requests of peers, by number.
    TargetBuffer(usize),
    /// A peer's long write into our memory.
    Landing(rma_target::Landing),
    /// A payload that belongs to no memory of ours.
    Swallow,
    /// A copy of so many bytes that a peer has asked for.
    Served(LinkIndex, usize),
}

impl Engine {
    /// Opens the endpoint below and its rails, and starts to serve peers.
    pub(crate) fn open(opening: Opening<'_>) -> Result<Arc<Engine>> {
        let Opening { identity, port, place, vector, regions, sinks, directed } = opening;
        let rank = this_rank();
        let taken = Cell::new(None);
        let open_endpoint = |identity: &Identity, epoch, nic: Option<&NicRequest>, ip: IpAddr| {
            let bind = place.unwrap_or(SocketAddr::new(ip, 0));
            let mut config = PortConfig::new(identity.job.tag());
            config.eager_bytes_max = COPIED_BYTES_MAX;
            config.link_copied_bytes_max = LINK_COPIED_BYTES_MAX;
            let reach = Reach::at(bind.ip(), identity.auth);
            (config.auth, config.network) = (reach.auth, reach.network);
            config.follows = rank.is_none();
            let opened = drivers::open_rails(&UdpConfig::new(bind), nic).map_err(|error| {
                complain(format_args!("no rail at {bind}: {error}"));
                Errno(libc::EADDRNOTAVAIL)
            })?;
            let state = Port::new(config, port, identity.life, epoch, Some(&identity.key));
            let settings =
                EndpointConfig { helper: true, helper_tick: HELPER_TICK, ..EndpointConfig::default() };
            let endpoint = Endpoint::open(state, opened.rails, settings).map_err(|error| {
                complain(format_args!("the endpoint cannot be opened: {error}"));
                Errno(libc::ENOMEM)
            })?;
            let asked =
                nic.cloned().or_else(|| NicRequest::from_environment().ok()).map(|request| request.choice);
            if let Some(asked @ NicChoice::Xdp { .. }) = asked
                && asked.to_string() != opened.nic.nic
            {
                complain(format_args!("a port goes over {}", opened.nic));
            }
            taken.set(Some(opened.nic));
            Ok(endpoint)
        };
        let endpoint = match rank {
            Some(rank) => {
                let open = |launch: &Launch, epoch| {
                    open_endpoint(&Identity::of(launch), epoch, Some(&launch.nic), launch.bind.ip())
                };
                rank.open_port(port, open)?
            }
            None => open_endpoint(identity, Epoch(0), None, own_ip())?,
        };
        if let (Some(keeper), Some(nic)) = (keeper(), taken.take()) {
            keeper.report_nic(&nic);
            keeper.port_opened(port, &endpoint);
        }
        let state = State {
            requests: Slab::new(),
            routes: Vec::new(),
            sources: Vec::new(),
            changes: vector.changes(),
            claims: HashMap::new(),
            probe: ProbeState::Free,
            rma_target: RmaTarget::new(),
            backlog: VecDeque::new(),
            batch: VecDeque::new(),
            rma_open: 0,
            silent: BTreeSet::new(),
            lost: BTreeSet::new(),
        };
        let engine = Arc::new(Engine {
            endpoint,
            rank,
            port,
            vector,
            regions,
            sinks,
            directed,
            closing: AtomicBool::new(false),
            linger: shutdown::linger(),
            state: Mutex::new(state),
            periodic_freeze: Mutex::new(None),
        });
        engine.open_service(&mut engine.lock())?;
        let weak = Arc::downgrade(&engine);
        engine.endpoint.attend(move || {
            if let Some(engine) = weak.upgrade() {
                // A panic ends the helper at worst; it must not go unnoticed.
                let _ = crate::boundary::caught("progress", || {
                    engine.attend();
                    Ok(())
                });
            }
        });
        if let Some(settings) = periodic_freeze::Settings::from_environment() {
            *engine.periodic_freeze.lock().unwrap_or_else(PoisonError::into_inner) =
                PeriodicFreeze::start(&engine, settings);
        }
        Ok(engine)
    }

    /// Its id, and the endpoint below.
    pub(crate) fn endpoint(&self) -> (PortId, &Endpoint) {
        (self.port, &self.endpoint)
    }

    /// Whether it is on its way out.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// This endpoint's id and rails.
    pub(crate) fn address(&self) -> Address {
        Address { port: self.port, rails: self.endpoint.addresses() }
    }

    /// A descriptor that becomes readable when a frame comes.
    pub(crate) fn descriptor(&self) -> Result<OwnedFd> {
        self.endpoint.descriptor().map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EMFILE)))
    }

    /// Whether a thread may sleep until a descriptor is readable.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.has_no_backlog() && self.endpoint.prepare_sleep()
    }

    /// One round of progress, unless another thread makes one at this moment.
    pub(crate) fn progress(&self) {
        // Most looks find nothing: they should cost no more than looking. Now and then one reports true, and other
        // waiting work is done.
        if self.endpoint.look()
            && let Some(mut state) = self.try_lock()
        {
            self.work_off(&mut state);
        }
    }

    /// Handles completions that the helper has found while the program was elsewhere.
    fn attend(&self) {
        if let Some(mut state) = self.try_lock()
            && !self.closing.load(Ordering::Acquire)
        {
            self.work_off(&mut state);
        }
    }

    fn work_off(&self, state: &mut State) {
        if state.backlog.is_empty() || self.shrink_backlog(state) {
            let mut batch = core::mem::take(&mut state.batch);
            self.endpoint.take_completions(COMPLETIONS_PER_ROUND, &mut batch);
            for completion in batch.drain(..) {
                self.handle(state, completion);
            }
            state.batch = batch;
        }
        self.flush(state);
    }

    /// Everything the endpoint reports comes through here.
    fn handle(&self, state: &mut State, completion: Completion) {
        if self.must_wait(state, &completion) {
            state.backlog.push_back(completion);
        } else {
            self.perform(state, completion);
        }
    }

    fn perform(&self, state: &mut State, completion: Completion) {
        match completion {
            Completion::Received {
                context,
                source,
                tag,
                data,
                offset,
                bytes,
                sent_bytes,
                finished,
                buffer,
                ..
            } => {
                let received =
                    receive::Received { source, tag, data, offset, bytes, sent_bytes, finished, buffer };
                self.received(state, SlabKey::from_bits(context), received);
            }
            Completion::Stopped { context, .. } => self.receive_ended(state, SlabKey::from_bits(context)),
            Completion::SendDone { context, buffer, .. } => {
                self.sent(state, SlabKey::from_bits(context), buffer);
            }
            Completion::SendFailed { context, buffer, .. } => {
                self.send_broken(state, SlabKey::from_bits(context), buffer);
            }
            Completion::ReceiveFailed { context, source, tag, finished, .. } => {
                self.receive_broken(state, SlabKey::from_bits(context), source, (tag, finished));
            }
            Completion::Report(event) => self.report(state, &event),
            Completion::RailDead { reason, .. } => complain(format_args!("a rail is dead: {reason}")),
            Completion::CutRequired { epoch } => match self.rank {
                Some(rank) => rank.require_cut(epoch),
                None => self.raise(epoch),
            },
        }
    }

    /// In a process that is not saved, among ranks that are: one that they have spawned. It could not read their frames
    /// otherwise.
    #[cold]
    fn raise(&self, epoch: Epoch) {
        match self.endpoint.freeze(DRAIN_MAX) {
            Ok(mut frozen) => {
                let port = frozen.port_mut();
                port.set_epoch(port.epoch().max(epoch));
            }
            Err(error) => {
                complain(format_args!("this process cannot follow its peers to epoch {epoch}: {error}"))
            }
        }
    }

    fn received(&self, state: &mut State, key: SlabKey, received: receive::Received) {
        match state.requests.get_mut(key) {
            Some(Request::Receive(_)) => self.finish_receive(state, key, received),
            Some(Request::Rma(_)) => self.read_arrived(state, key, &received),
            Some(Request::TargetBuffer(number)) => {
                let number = *number;
                self.serve_message(state, key, number, &received);
            }
            Some(Request::Landing(_)) => self.write_landed(state, key, &received),
            Some(Request::Swallow) => _ = state.requests.remove(key),
            None | Some(Request::Send(_) | Request::Served(..) | Request::Pieces(_)) => {}
        }
    }

    fn sent(&self, state: &mut State, key: SlabKey, buffer: Option<Vec<u8>>) {
        match state.requests.get(key) {
            Some(Request::Send(_)) => self.finish_send(state, key),
            Some(Request::Rma(_)) => {
                rma_initiator::payload_out(state, key, false);
                self.rma_step(state, key, 0);
            }
            Some(Request::Served(link, bytes)) => {
                let (link, bytes) = (*link, *bytes);
                state.requests.remove(key);
                state.rma_target.return_credits(link, bytes);
                state.rma_target.recycle(buffer.unwrap_or_default());
            }
            _ => {}
        }
    }

    /// The link to an address of the vector.
    fn route(&self, state: &mut State, number: FiAddr) -> Result<LinkIndex> {
        self.renew(state);
        let slot = usize::try_from(number).map_err(|_| EINVAL)?;
        if let Some(Some(link)) = state.routes.get(slot) {
            return Ok(*link);
        }
        let address = self.vector.address(number).ok_or(EINVAL)?;
        let connected = match self.rank {
            Some(rank) => rank.connect(&self.endpoint, address.port, &address.rails),
            None => {
                let rails = identity::moved(address.port).unwrap_or(&address.rails);
                self.endpoint.connect(address.port, rails)
            }
        };
        let link = connected.map_err(|error| {
            complain(format_args!("{address}: {error}"));
            Errno(libc::EHOSTUNREACH)
        })?;
        if state.routes.len() <= slot {
            state.routes.resize(slot + 1, None);
        }
        state.routes[slot] = Some(link);
        Ok(link)
    }

    /// The number of the address at the other end of a link.
    fn source(&self, state: &mut State, link: LinkIndex) -> FiAddr {
        self.renew(state);
        let slot = link.0 as usize;
        if let Some(Some(number)) = state.sources.get(slot) {
            return *number;
        }
        let peer = self.endpoint.with_port(|port| port.peer(link));
        let number = peer.map_or(ADDR_NOTAVAIL, |peer| self.vector.number(peer));
        if state.sources.len() <= slot {
            state.sources.resize(slot + 1, None);
        }
        state.sources[slot] = Some(number);
        number
    }

    fn renew(&self, state: &mut State) {
        let changes = self.vector.changes();
        if state.changes != changes {
            state.changes = changes;
            state.routes.clear();
            state.sources.clear();
        }
    }
}

/// Context of an operation of the endpoint.
fn context_of(key: SlabKey) -> u64 {
    key.to_bits()
}

/// The word that travels beside a message.
fn data_word(data: Option<u64>) -> u64 {
    data.map_or(0, |data| DATA_PRESENT | data & u64::from(u32::MAX))
}

/// The operation of a request that has been posted.
type Operation = Option<OpId>;
