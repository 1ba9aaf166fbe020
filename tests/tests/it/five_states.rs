//! Two processes over UDP, a message between them in each of the five states (Huo et al. 2006); both dump their ports and are killed with SIGKILL.
//! Two other processes load the dumps over other sockets, in a new life: the message arrives once, and its sender gets one completion.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use drivers::udp::{UdpConfig, UdpDriver};
use drivers::{Driver, Payload as Gathered};
use nic_freeze::{Freeze, Payloads, Rail, SECTION_VERSION, append_payloads, dump, load, restart};
use transport::{
    Buffers, Epoch, Event, JobId, JobKey, Life, LinkIndex, OpId, Outgoing, Payload, Port, PortConfig, PortId,
    RailIndex, Rank, RawAddress, Receive, Space,
};

const ROLE: &str = "STILLWIRE_TEST_FIVE_STATES";
const KEY: JobKey = JobKey([4; 16]);
const FRAME_BYTES: usize = 1400;
const LIMIT: Duration = Duration::from_secs(20);
const SIZES: [usize; 3] = [600, 7000, 300_000];

#[derive(Default)]
struct Memory {
    sending: BTreeMap<OpId, Vec<u8>>,
    posted: BTreeMap<OpId, Vec<u8>>,
}

impl Buffers for Memory {
    fn place(&mut self, receive: OpId, offset: u64, bytes: &[u8]) {
        let from = usize::try_from(offset).expect("small");
        let buffer = self.posted.get_mut(&receive).expect("it was posted");
        buffer[from..from + bytes.len()].copy_from_slice(bytes);
    }
}

impl Payloads for Memory {
    fn send_payload(&self, op: OpId) -> Option<&[u8]> {
        self.sending.get(&op).map(Vec::as_slice)
    }

    fn receive_buffer(&self, op: OpId) -> Option<&[u8]> {
        self.posted.get(&op).map(Vec::as_slice)
    }
}

/// One process: a port on one socket, driven by hand.
struct Process {
    folder: PathBuf,
    me: u32,
    started: Instant,
    port: Port,
    driver: UdpDriver,
    memory: Memory,
    /// Messages received and sends reported, this process's predecessor included.
    completions: u32,
    payload: Vec<u8>,
}

fn port_id(rank: u32) -> PortId {
    PortId::of_rank(Rank(rank), 0)
}

fn config() -> PortConfig {
    PortConfig::new(JobId(77).tag())
}

fn socket() -> UdpDriver {
    UdpDriver::open(&UdpConfig::new(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0))).expect("a socket")
}

fn payload(bytes: usize) -> Vec<u8> {
    (0..=250u8).cycle().take(bytes).collect()
}

fn write_whole(path: &Path, bytes: &[u8]) {
    let part = path.with_extension("part");
    fs::write(&part, bytes).expect("the folder can be written");
    fs::rename(part, path).expect("the folder can be written");
}

fn read_when_there(path: &Path) -> Vec<u8> {
    let started = Instant::now();
    loop {
        if let Ok(bytes) = fs::read(path) {
            return bytes;
        }
        assert!(started.elapsed() < LIMIT, "{} never appears", path.display());
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Process {
    fn now(&self) -> transport::Instant {
        transport::Instant::from_nanos(u64::try_from(self.started.elapsed().as_nanos()).expect("not long"))
    }

    /// Tells the other process where we are, and learns where it is.
    fn meet(&mut self, phase: &str) {
        let own = self.driver.local_address();
        write_whole(&self.folder.join(format!("{phase}-address-{}", self.me)), own.as_bytes());
        let other = read_when_there(&self.folder.join(format!("{phase}-address-{}", 1 - self.me)));
        let address = self.driver.resolve(&RawAddress::new(&other).expect("an address")).expect("reachable");
        let link = self.port.connect(port_id(1 - self.me));
        self.port.set_path_limited(link, RailIndex(0), address, FRAME_BYTES);
    }

    fn transmit(&mut self) {
        let now = self.now();
        while let Some(frame) = self.driver.lease() {
            let Some(transmit) = self.port.poll_transmit(now, RailIndex(0), frame) else { break };
            let mut bytes = transmit.frame_bytes;
            if let Some(piece) = transmit.payload {
                let from = usize::try_from(piece.offset).expect("small");
                let part = &self.memory.sending[&piece.op][from..from + piece.bytes as usize];
                if let Some(seal) = transmit.seal {
                    self.port.authenticator().expect("it has a key").finish(seal, &mut frame[..bytes], part);
                }
                frame[bytes..bytes + part.len()].copy_from_slice(part);
                bytes += part.len();
            }
            self.driver.commit(transmit.to, bytes, Gathered::EMPTY);
        }
        self.driver.flush().expect("the socket works");
    }

    fn receive(&mut self) {
        let now = self.now();
        let Process { port, driver, memory, .. } = self;
        let mut each = |frame: &[u8]| port.handle_frame(now, RailIndex(0), frame, memory);
        driver.receive(64, &mut each).expect("the socket works");
        while let Some(event) = self.port.poll_event() {
            match event {
                Event::Received { op, bytes, .. } => {
                    let length = usize::try_from(bytes).expect("small");
                    assert_eq!(self.memory.posted[&op][..length], self.payload[..]);
                    self.completions += 1;
                }
                Event::SendDone { .. } => self.completions += 1,
                Event::Inconsistent { .. } => panic!("{event:?}"),
                _ => {}
            }
        }
    }

    fn run_until(&mut self, mut done: impl FnMut(&Process) -> bool) {
        let started = Instant::now();
        while !done(self) {
            self.receive();
            let now = self.now();
            self.port.handle_timeout(now);
            self.transmit();
            assert!(started.elapsed() < LIMIT, "process {} waits for ever", self.me);
            std::thread::yield_now();
        }
    }

    fn send(&mut self) {
        let outgoing = Outgoing { space: Space(0), tag: 1, data: 2, context: 3, silent: false };
        if self.payload.len() <= config().eager_bytes_max {
            self.port.send(LinkIndex(0), outgoing, Payload::Copied(&self.payload)).expect("there is room");
        } else {
            let bytes = self.payload.len() as u64;
            let op = self.port.send(LinkIndex(0), outgoing, Payload::User { bytes }).expect("there is room");
            self.memory.sending.insert(op, self.payload.clone());
        }
    }

    fn post(&mut self) {
        let op = self.port.next_op();
        self.memory.posted.insert(op, vec![0; self.payload.len()]);
        let bytes_max = self.payload.len() as u64;
        let receive =
            Receive { space: Space(0), source: None, tag: 1, ignore: 0, bytes_max, context: 0, multi: None };
        assert_eq!(self.port.post_receive(receive, &mut self.memory), Ok(op));
    }

    /// Freezes, writes the dump, and waits for its end.
    fn die(self) -> ! {
        let now = self.now();
        let Process { folder, me, port, mut driver, memory, completions, .. } = self;
        let mut freeze = Freeze::quiesce(port, 1, now, Duration::from_secs(5));
        let frozen = loop {
            match freeze.poll(now, |_| driver.drain()).expect("a socket keeps nothing") {
                Freeze::Frozen(frozen) => break frozen,
                other => freeze = other,
            }
        };
        let mut frozen = frozen;
        frozen.set_epoch(Epoch(1));
        let mut section = completions.to_le_bytes().to_vec();
        let mut bytes = Vec::new();
        dump(&frozen, &mut bytes);
        append_payloads(&frozen, &memory, &mut bytes).expect("the memory is this port's");
        let census = frozen.census();
        let states = [
            census.to_be_sent,
            census.sent_unacknowledged,
            census.acknowledged,
            census.received_unacknowledged,
            census.delivered_waiting,
        ];
        section.extend(states.iter().flat_map(|count| count.to_le_bytes()));
        section.extend(bytes);
        write_whole(&folder.join(format!("dump-{me}")), &section);
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
}

/// Brings the message into its state and is killed there.
fn first(folder: PathBuf, me: u32, state: u32, bytes: usize) -> ! {
    let life = Life { counter: 1, nonce: 11 };
    let driver = socket();
    let mut port = Port::new(config(), port_id(me), life, Epoch(0), Some(&KEY));
    port.add_rail(driver.local_address(), driver.caps().frame_bytes_max);
    let mut process = Process {
        folder,
        me,
        started: Instant::now(),
        port,
        driver,
        memory: Memory::default(),
        completions: 0,
        payload: payload(bytes),
    };
    process.meet("first");
    if me == 0 {
        process.send();
        match state {
            1 => {}
            2 | 4 => process.transmit(),
            _ => {
                // Until the other one has all that it can get: everything, or for state 5 as much as fits without a receive.
                let quiet = process.folder.join("dump-1");
                process.run_until(|_| quiet.exists());
            }
        }
        process.die();
    }
    match state {
        1 | 2 => process.post(),
        3 => {
            process.post();
            process.run_until(|process| process.completions == 1);
            let started = Instant::now();
            process.run_until(|_| started.elapsed() > Duration::from_millis(50));
        }
        4 => {
            process.post();
            let started = Instant::now();
            while process.port.counters().frames_counted == 0 {
                process.receive();
                assert!(started.elapsed() < LIMIT, "nothing comes");
            }
        }
        _ => {
            process.run_until(|process| process.port.counters().messages_unexpected > 0);
            let started = Instant::now();
            process.run_until(|_| started.elapsed() > Duration::from_millis(50));
        }
    }
    process.die()
}

/// Goes on from the dump.
fn second(folder: PathBuf, me: u32, state: u32, bytes: usize) {
    let saved = fs::read(folder.join(format!("dump-{me}"))).expect("the dump");
    let completions = u32::from_le_bytes(saved[..4].try_into().expect("four bytes"));
    let loaded = load(SECTION_VERSION, &saved[44..], config(), Some(&KEY)).expect("a whole section");
    let driver = socket();
    let rail = Rail { address: driver.local_address(), frame_bytes_max: driver.caps().frame_bytes_max };
    let life = Life { counter: 2, nonce: 22 };
    let mut memory = Memory::default();
    memory.sending.extend(loaded.carried.sends);
    for receive in loaded.carried.receives {
        let mut buffer = receive.filled;
        buffer.resize(usize::try_from(receive.buffer_bytes).expect("small"), 0);
        memory.posted.insert(receive.op, buffer);
    }
    let started = Instant::now();
    let port = restart(loaded.port, transport::Instant::ZERO, life, &[rail], []);
    let payload = payload(bytes);
    let mut process = Process { folder, me, started, port, driver, memory, completions, payload };
    process.meet("second");
    if me == 1 && state == 5 {
        process.post();
    }
    process.run_until(|process| process.completions >= 1 && process.port.is_settled());
    // A completion that could come twice comes now.
    let settled = Instant::now();
    process.run_until(|_| settled.elapsed() > Duration::from_millis(100));
    let other = process.folder.join(format!("result-{}", 1 - me));
    write_whole(&process.folder.join(format!("result-{me}")), &process.completions.to_le_bytes());
    process.run_until(|_| other.exists());
}

/// Not a test: the work of the test's processes.
#[test]
fn a_process_of_the_test() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.splitn(5, ' ').collect();
    let [phase, me, state, bytes, folder] = words[..] else { panic!("{role}") };
    let (me, state) = (me.parse().expect("a rank"), state.parse().expect("a state"));
    let (bytes, folder) = (bytes.parse().expect("a length"), PathBuf::from(folder));
    match phase {
        "first" => first(folder, me, state, bytes),
        _ => second(folder, me, state, bytes),
    }
}

/// Kills its process when the test ends, however it ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(phase: &str, me: u32, state: u32, bytes: usize, folder: &Path) -> Killed {
    let own = std::env::current_exe().expect("it runs");
    let role = format!("{phase} {me} {state} {bytes} {}", folder.display());
    let mut command = Command::new(own);
    command.args(["--exact", "five_states::a_process_of_the_test", "--nocapture"]).env(ROLE, role);
    Killed(command.stdout(Stdio::null()).spawn().expect("it can be started"))
}

fn killed_and_started(state: u32, bytes: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let processes = [0, 1].map(|me| start("first", me, state, bytes, folder));
    let counts = [0, 1].map(|me| {
        let dump = read_when_there(&folder.join(format!("dump-{me}")));
        dump[4..44]
            .chunks_exact(8)
            .map(|count| u64::from_le_bytes(count.try_into().expect("8")))
            .collect::<Vec<_>>()
    });
    // SIGKILL, to both, wherever they are.
    drop(processes);
    let place = usize::try_from(state - 1).expect("small");
    let holder = if state >= 4 { 1 } else { 0 };
    assert!(counts[holder][place] > 0, "state {state}, {bytes} bytes: {counts:?}");
    let mut processes = [0, 1].map(|me| start("second", me, state, bytes, folder));
    for process in &mut processes {
        assert!(process.0.wait().expect("ours").success(), "state {state}, {bytes} bytes");
    }
    for me in [0, 1] {
        let result = fs::read(folder.join(format!("result-{me}"))).expect("its result");
        assert_eq!(result, 1u32.to_le_bytes(), "state {state}, {bytes} bytes, process {me}: not once");
    }
}

#[test]
fn state_1_to_be_sent() {
    SIZES.into_iter().for_each(|bytes| killed_and_started(1, bytes));
}

#[test]
fn state_2_sent_not_acknowledged() {
    SIZES.into_iter().for_each(|bytes| killed_and_started(2, bytes));
}

#[test]
fn state_3_acknowledged() {
    SIZES.into_iter().for_each(|bytes| killed_and_started(3, bytes));
}

#[test]
fn state_4_received_not_acknowledged() {
    SIZES.into_iter().for_each(|bytes| killed_and_started(4, bytes));
}

#[test]
fn state_5_received_and_acknowledged() {
    SIZES.into_iter().for_each(|bytes| killed_and_started(5, bytes));
}
