//! How a process becomes a rank.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ckpt_glue::control::{ControlKey, ControlReader, CutMode, Message, NicText, PortEntry, Registration};
use ckpt_glue::enrolment::{Enrolment, Started};
use client::input;
use client::launch::{Launch, NATIVE_MARK, SOCKET_VARIABLE};
use client::limits::ENROL_MAX;
use client::line::Line;
use client::nics::Nics;
use drivers::NicSelection;
use drivers::udp::UdpConfig;
use endpoint::{Endpoint, EndpointConfig};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use store::{Directory, JobDirectory, StoreError, kinds};
use transport::auth::JobKey;
use transport::config::PortConfig;
use transport::{Epoch, Port, PortId, Restart};

use crate::agent::{Agent, Identity};
use crate::error::{SessionError, StateError};
use crate::limits::{HELPER_TICK, SPIN, SPIN_SHARED};
use crate::requests::SessionState;
use crate::session::{Peers, Session};
use crate::writer::ImageQueue;
use crate::{control, writer};

/// A process is one rank: its socket is taken once.
static OPENED: AtomicBool = AtomicBool::new(false);

/// An image's contents.
struct Restored {
    state: SessionState,
    regions: BTreeMap<u32, Vec<u8>>,
    port: nic_freeze::Loaded,
}

impl Session {
    /// Whether a launcher started this process as a rank.
    #[must_use]
    pub fn is_launched() -> bool {
        std::env::var_os(SOCKET_VARIABLE).is_some()
    }

    /// Makes this process a rank of the job that started it. Returns when all ranks have come up and can reach each other.
    ///
    /// # Errors
    /// [`SessionError::NotLaunched`] without a launcher, and any error that keeps the rank from starting.
    pub fn open() -> Result<Session, SessionError> {
        // The linker must not remove this from the program's file.
        core::hint::black_box(NATIVE_MARK);
        let mut stream = inherited_socket()?;
        let launch = Launch::read(&mut stream)?;
        input::adopt();
        let identity = Identity { job: launch.job, life: launch.life, rank: launch.rank };
        let mut directory = open_directory(&launch)?;
        let restored = load(&launch, &mut directory)?;
        let (saved, state, port) = match restored {
            Some(Restored { state, regions, port }) => (Some(regions), state, Some(port)),
            None => (None, SessionState::new(), None),
        };
        let is_restored = saved.is_some();
        let (endpoint, nic) = open_endpoint(&launch, port)?;
        let key = ControlKey::new(&launch.key);
        let mut line = Line::new(duplicate(&stream)?, key.clone());
        let mut reader = ControlReader::new(key);
        let started = enrol(&identity, &endpoint, &mut stream, &mut line, &mut reader)?;
        let peers = connect(&launch, &endpoint, &started)?;
        let images = ImageQueue::default();
        let failed = |source| SessionError::Keeper { operation: "listening to", source };
        let nics = Nics::new(launch.nic.clone(), launch.bind.ip());
        let (of_port, of_writer) = (endpoint.clone(), images.clone());
        let agent = Agent::new(identity, of_port, of_writer, line, started.epoch, state.points, nics);
        let agent = Arc::new(agent.map_err(failed)?);
        writer::start(images, Arc::clone(&agent), directory, launch.disk_bytes_per_s).map_err(failed)?;
        control::start(Arc::clone(&agent), stream, reader).map_err(failed)?;
        agent.send(Message::Running { ranks: 1, counted: 1 });
        agent.send(Message::Nic { words: NicText::new(&nic) });
        let saved = saved.filter(|_| !state.finished);
        let (rank, ranks) = (launch.rank.0, launch.ranks);
        let lost = BTreeSet::new();
        Ok(Session { agent, endpoint, peers, state, saved, restored: is_restored, rank, ranks, lost })
    }
}

fn inherited_socket() -> Result<UnixStream, SessionError> {
    let text = std::env::var_os(SOCKET_VARIABLE).ok_or(SessionError::NotLaunched)?;
    let number = text.to_str().and_then(|text| text.parse::<RawFd>().ok()).filter(|number| *number > 2);
    let number =
        number.ok_or_else(|| SessionError::Variable { found: text.to_string_lossy().into_owned() })?;
    if OPENED.swap(true, Ordering::AcqRel) {
        return Err(SessionError::OpenedTwice);
    }
    // SAFETY: the launcher opened this descriptor for this process and named it in the variable; nothing else in the
    // process knows of it, and `OPENED` makes this the only place that ever takes it. If the variable lies, every system
    // call on it fails or reads something that is no launch record, and the process gives up.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    let failed =
        |source: nix::Error| SessionError::Keeper { operation: "taking over", source: source.into() };
    // Programs that this one starts are no ranks.
    fcntl(fd.as_fd(), FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).map_err(failed)?;
    let stream = UnixStream::from(fd);
    stream
        .set_read_timeout(Some(ENROL_MAX))
        .map_err(|source| SessionError::Keeper { operation: "taking over", source })?;
    Ok(stream)
}

fn duplicate(stream: &UnixStream) -> Result<UnixStream, SessionError> {
    stream.try_clone().map_err(|source| SessionError::Keeper { operation: "duplicating", source })
}

fn open_directory(launch: &Launch) -> Result<JobDirectory<Directory>, SessionError> {
    let storage = Directory::open(launch.directory.clone())
        .map_err(|error| SessionError::Image { rank: launch.rank.0, source: error.into() })?;
    Ok(JobDirectory::attach(storage, launch.job).encrypted(launch.image_key()))
}

/// Reads the image that the decision names: never another one (rule 9).
fn load(launch: &Launch, directory: &mut JobDirectory<Directory>) -> Result<Option<Restored>, SessionError> {
    let Some(generation) = launch.restore else { return Ok(None) };
    let rank = launch.rank.0;
    let failed = |source: StoreError| SessionError::Image { rank, source };
    let reader = directory.open_committed_image(generation, launch.rank).map_err(failed)?;
    let (mut state, mut port, mut regions) = (None, None, BTreeMap::new());
    for (number, entry) in (0..).zip(reader.entries()) {
        let bytes = reader.read_section(directory.storage(), number).map_err(failed)?;
        match entry.kind {
            kinds::SESSION_STATE => {
                let parsed = SessionState::parse(entry.version, &bytes);
                state = Some(parsed.map_err(|source| SessionError::State { rank, source })?);
            }
            kinds::SESSION_REGION => {
                regions.insert(u32::try_from(entry.id).unwrap_or(u32::MAX), bytes);
            }
            kinds::PORT => {
                let loaded =
                    nic_freeze::load(entry.version, &bytes, port_config(launch), Some(&JobKey(launch.key)));
                port = Some(loaded.map_err(|source| SessionError::Port { rank, source })?);
            }
            _ => {}
        }
    }
    let missing = |kind| SessionError::State { rank, source: StateError::Missing { kind } };
    let state = state.ok_or_else(|| missing(kinds::SESSION_STATE))?;
    let port = port.ok_or_else(|| missing(kinds::PORT))?;
    Ok(Some(Restored { state, regions, port }))
}

fn port_config(launch: &Launch) -> PortConfig {
    let mut config = PortConfig::new(launch.job.tag());
    config.auth = launch.auth;
    config.network = !launch.bind.ip().is_loopback();
    config
}

fn open_endpoint(
    launch: &Launch,
    restored: Option<nic_freeze::Loaded>,
) -> Result<(Endpoint, NicSelection), SessionError> {
    let opened = drivers::open_rails(&UdpConfig::new(launch.bind), Some(&launch.nic));
    let drivers::Opened { rails, nic } =
        opened.map_err(|source| SessionError::Rails { bind: launch.bind.ip(), source })?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let spin = if (launch.ranks as usize) <= cores { SPIN } else { SPIN_SHARED };
    let config = EndpointConfig { helper: true, helper_tick: HELPER_TICK, spin };
    let endpoint = match restored {
        None => {
            let id = PortId::of_rank(launch.rank, 0);
            let port = Port::new(port_config(launch), id, launch.life, Epoch(0), Some(&JobKey(launch.key)));
            Endpoint::open(port, rails, config)?
        }
        Some(loaded) => {
            let restart = Restart::in_life(launch.life);
            Endpoint::restart(loaded.port, loaded.carried, rails, restart, config)?
        }
    };
    Ok((endpoint, nic))
}

/// Sends the address of this rank, and waits for those of all others.
fn enrol(
    identity: &Identity,
    endpoint: &Endpoint,
    stream: &mut UnixStream,
    line: &mut Line,
    reader: &mut ControlReader,
) -> Result<Started, SessionError> {
    let port = PortEntry { port: PortId::of_rank(identity.rank, 0), rails: endpoint.addresses() };
    let registration = Registration {
        rank: identity.rank,
        pid: std::process::id(),
        mode: CutMode::Counted,
        ports: vec![port],
    };
    let (mut enrolment, hello) = Enrolment::new(registration);
    let failed = |operation| move |source| SessionError::Keeper { operation, source };
    line.send(&identity.control(endpoint.with_port(Port::epoch), hello)).map_err(failed("writing to"))?;
    let mut chunk = vec![0; 1 << 16];
    loop {
        while let Some(control) = reader.next()? {
            // Rule 7
            if control.job != identity.job || control.life != identity.life {
                continue;
            }
            if let Some(started) = enrolment.handle(control.message)? {
                return Ok(started);
            }
        }
        match stream.read(&mut chunk) {
            Ok(0) => return Err(SessionError::KeeperGone),
            Ok(read) => reader.feed(&chunk[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed("reading from")(error)),
        }
    }
}

fn connect(launch: &Launch, endpoint: &Endpoint, started: &Started) -> Result<Peers, SessionError> {
    let mut links = Vec::with_capacity(launch.ranks as usize);
    for rank in 0..launch.ranks {
        let port = PortId::of_rank(transport::Rank(rank), 0);
        let rails = started.addresses.get(&port).map_or(&[][..], Vec::as_slice);
        links.push(endpoint.connect(port, rails)?);
    }
    Ok(Peers::new(links))
}
