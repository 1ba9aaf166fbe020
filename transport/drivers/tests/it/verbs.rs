//! The verbs driver over two RDMA devices that are made of a pair of network devices (Soft-RoCE). They take a
//! kernel that has them, and are there for the whole system: tests/guest/verbs starts a guest, and names the
//! devices that it has made there in STILLWIRE_TEST_VERBS.

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use drivers::conformance::{CASES, Fixture};
use drivers::fault::{FaultDriver, Faults};
use drivers::verbs::{VerbsConfig, VerbsDriver};
use drivers::{Driver, DriverError, Errno, Operation, Payload, Wake};
use transport::{AddressId, RawAddress};

/// Long against all that a guest without hardware support does between two steps.
const LONG: Duration = Duration::from_secs(60);

/// One of the two ends.
#[derive(Clone, Debug)]
struct End {
    device: String,
    interface: String,
    ip: std::net::Ipv4Addr,
}

/// Both ends; held by one test at a time, because each may change the network.
struct Pair {
    ends: [End; 2],
    _alone: MutexGuard<'static, ()>,
}

/// The two ends that STILLWIRE_TEST_VERBS names, as `rxe0,va,10.9.0.1 rxe1,vb,10.9.0.2`; where it does not,
/// the test reports that it is skipped.
fn pair(test: &str) -> Option<Pair> {
    static ALONE: Mutex<()> = Mutex::new(());
    let Ok(named) = std::env::var("STILLWIRE_TEST_VERBS") else {
        crate::skipped::skipped(test, "a guest with RDMA devices (tests/guest/verbs starts one)");
        return None;
    };
    let ends: Vec<End> = named
        .split_whitespace()
        .map(|end| {
            let [device, interface, ip] = end.split(',').collect::<Vec<_>>()[..] else { panic!("{end}") };
            let ip = ip.parse().expect("an address");
            End { device: device.to_owned(), interface: interface.to_owned(), ip }
        })
        .collect();
    let ends = ends.try_into().expect("two ends");
    Some(Pair { ends, _alone: ALONE.lock().unwrap_or_else(PoisonError::into_inner) })
}

impl End {
    fn try_open(&self) -> Result<VerbsDriver, DriverError> {
        VerbsDriver::open(&VerbsConfig::new(&self.device))
    }

    fn open(&self) -> VerbsDriver {
        self.try_open().expect("a device")
    }
}

impl Pair {
    fn open(&self) -> [VerbsDriver; 2] {
        self.ends.each_ref().map(End::open)
    }
}

fn tool(name: &str, arguments: &str) {
    let output = Command::new(name).args(arguments.split_whitespace()).output().expect("iproute2");
    assert!(output.status.success(), "{name} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Rails on one device and the other in turn.
struct InTurn {
    pair: Pair,
    opened: usize,
    faults: Faults,
    /// By the wrapper, or by the network.
    loses: bool,
}

impl Fixture for InTurn {
    fn open(&mut self) -> Box<dyn Driver> {
        self.opened += 1;
        let rail = self.pair.ends[self.opened % 2].open();
        if self.faults == Faults::NONE {
            Box::new(rail)
        } else {
            Box::new(FaultDriver::new(rail, self.faults))
        }
    }

    /// Every frame that is lost is waited for so long.
    fn patience_steps(&self) -> usize {
        if self.loses { 100 } else { 2000 }
    }

    fn loses(&self) -> bool {
        self.loses
    }

    fn hang_steps(&self) -> usize {
        200_000
    }
}

fn conforms(name: &str, faults: &str, loses: bool) {
    let begun = Instant::now();
    let is_long = std::env::var_os("STILLWIRE_TEST_LONG").is_some_and(|long| !long.is_empty());
    for (case, run) in CASES {
        // Under the wrapper it takes half a minute in a guest.
        if *case == "random_frames_arrive_unaltered" && !faults.is_empty() && !is_long {
            continue;
        }
        let Some(pair) = pair(name) else { return };
        let faults = if faults.is_empty() { Faults::NONE } else { faults.parse().expect("faults") };
        let started = Instant::now();
        run(&mut InTurn { pair, opened: 0, faults, loses });
        eprintln!("{case}: {:.1} s", started.elapsed().as_secs_f32());
    }
    eprintln!("{name}: {:.1} s", begun.elapsed().as_secs_f32());
}

#[test]
fn it_conforms() {
    conforms("it_conforms", "", false);
}

#[test]
fn it_conforms_under_a_wrapper_that_delays_completions() {
    conforms("it_conforms_under_a_wrapper_that_delays_completions", "late=30%,seed=3", false);
}

#[test]
fn it_conforms_where_frames_are_lost() {
    conforms("it_conforms_where_frames_are_lost", "loss=0.5%,late=10%,seed=5", true);
}

#[test]
fn it_conforms_over_a_network_that_loses_frames() {
    let name = "it_conforms_over_a_network_that_loses_frames";
    let _undo = {
        let Some(pair) = pair(name) else { return };
        pair.ends.map(|End { interface, .. }| {
            tool("tc", &format!("qdisc add dev {interface} root netem loss 0.5%"));
            Undo("tc", format!("qdisc del dev {interface} root"))
        })
    };
    conforms(name, "", true);
}

const FRAMES: u32 = 2000;

/// Sends numbers, each with its complement, in bursts of 16, of which every other is too long to go inside
/// its request. Returns the received frames.
fn numbers(a: &mut dyn Driver, b: &mut dyn Driver, patience: Duration) -> Vec<Vec<u8>> {
    let to = a.resolve(&b.local_address()).expect("a neighbour");
    let mut came: Vec<Vec<u8>> = Vec::new();
    for first in (0..FRAMES).step_by(16) {
        for number in first..first + 16 {
            while a.lease().is_none() {
                a.flush().expect("a live rail");
            }
            let bytes = if number % 2 == 0 { 8 } else { 1000 };
            let buffer = a.lease().expect("just there");
            buffer[..4].copy_from_slice(&number.to_le_bytes());
            buffer[4..8].copy_from_slice(&(!number).to_le_bytes());
            buffer[8..bytes].fill(number.to_le_bytes()[0]);
            a.commit(to, bytes, Payload::EMPTY);
        }
        a.flush().expect("a live rail");
        while b.wait(patience).expect("a live rail") == Wake::Frame {
            b.receive(64, &mut |frame| came.push(frame.to_vec())).expect("a live rail");
            a.receive(64, &mut |_| ()).expect("a live rail");
            if came.len() > first as usize + 15 {
                break;
            }
        }
    }
    came
}

fn number(frame: &[u8]) -> Option<u32> {
    let number = u32::from_le_bytes(*frame.first_chunk()?);
    let complement = u32::from_le_bytes(*frame.get(4..)?.first_chunk()?);
    let bytes = if number % 2 == 0 { 8 } else { 1000 };
    let is_whole = frame.len() == bytes && frame[8..].iter().all(|byte| *byte == number.to_le_bytes()[0]);
    (complement == !number && is_whole).then_some(number)
}

/// Undoes a test's change of a network device.
struct Undo(&'static str, String);

impl Drop for Undo {
    fn drop(&mut self) {
        tool(self.0, &self.1);
    }
}

#[test]
fn what_the_network_loses_doubles_and_mixes_up_is_whole() {
    let Some(pair) = pair("what_the_network_loses_doubles_and_mixes_up_is_whole") else { return };
    let interface = &pair.ends[0].interface;
    tool("tc", &format!("qdisc add dev {interface} root netem delay 1ms loss 5% duplicate 5% reorder 25%"));
    let _undo = Undo("tc", format!("qdisc del dev {interface} root"));
    let [mut a, mut b] = pair.open();
    let came = numbers(&mut a, &mut b, Duration::from_millis(20));
    let read: Vec<u32> = came.iter().map(|frame| number(frame).expect("an altered frame")).collect();
    let once: std::collections::BTreeSet<u32> = read.iter().copied().collect();
    let lost = FRAMES as usize - once.len();
    assert!(lost > 0 && lost * 5 < FRAMES as usize, "{lost} lost of {FRAMES}");
    assert!(read.len() > once.len(), "nothing came twice");
    assert!(!read.is_sorted(), "nothing overtook anything");
}

#[test]
fn what_the_wrapper_alters_and_nothing_else_is_altered() {
    let Some(pair) = pair("what_the_wrapper_alters_and_nothing_else_is_altered") else { return };
    let faults = "loss=2%,dup=2%,reorder=5%,corrupt=5%,seed=7".parse().expect("faults");
    let [a, mut b] = pair.open();
    let mut a = FaultDriver::new(a, faults);
    let came = numbers(&mut a, &mut b, Duration::from_millis(20));
    let altered = came.iter().filter(|frame| number(frame).is_none()).count() as u64;
    let done = a.tally().corrupted;
    assert!(done > 0 && altered * 2 >= done, "{altered} of {done} came");
    // Some of them twice.
    assert!(altered <= done + a.tally().duplicated, "{altered} came, {done} were altered");
    assert!(came.len() * 10 >= FRAMES as usize * 9, "only {} came", came.len());
}

/// Uses the rail until it reports that it is dead.
fn until_dead(rail: &mut dyn Driver, to: Option<AddressId>) -> (Operation, Errno) {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < LONG, "the rail does not say that its port is down");
        if let Some(to) = to
            && rail.lease().is_some()
        {
            rail.commit(to, 100, Payload::EMPTY);
        }
        let outcome = rail.flush().and_then(|_| rail.receive(64, &mut |_| ()));
        match outcome {
            Ok(_) => {}
            Err(DriverError::RailDead { operation, errno }) => return (operation, errno),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Waits until the device's port is active again.
fn open_again(end: &End) -> VerbsDriver {
    let start = Instant::now();
    loop {
        match end.try_open() {
            Ok(rail) => return rail,
            Err(error) => assert!(start.elapsed() < LONG, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_port_that_goes_down_under_load_is_the_end_of_the_rail() {
    let Some(pair) = pair("a_port_that_goes_down_under_load_is_the_end_of_the_rail") else { return };
    let [mut a, mut b] = pair.open();
    let mut idle = pair.ends[0].open();
    let before = a.own_address();
    let _ = numbers(&mut a, &mut b, LONG);
    let to = a.resolve(&b.local_address()).expect("resolved before");
    let waiter = std::thread::spawn(move || {
        // It sleeps, and no peer sends to it.
        assert_eq!(idle.wait(LONG), Ok(Wake::Frame), "the port's end wakes nobody");
        until_dead(&mut idle, None)
    });
    let interface = &pair.ends[0].interface;
    tool("ip", &format!("link set {interface} down"));
    assert_eq!(until_dead(&mut a, Some(to)), (Operation::WatchPort, Errno(libc::ENETDOWN)));
    assert_eq!(waiter.join().expect("the sleeper"), (Operation::WatchPort, Errno(libc::ENETDOWN)));
    let error = pair.ends[0].try_open().err().expect("the port is down");
    let DriverError::CannotOpen { operation: Operation::FindPort, .. } = error else { panic!("{error}") };
    assert!(error.to_string().contains("rdma link"), "{error}");
    drop(a);
    tool(&setup(), &format!("up {interface}"));
    let mut a = open_again(&pair.ends[0]);
    assert_ne!(a.own_address(), before, "a new pair has a new number and key");
    drop(b);
    let mut b = open_again(&pair.ends[1]);
    let came = numbers(&mut a, &mut b, LONG);
    assert!(came.len() * 10 >= FRAMES as usize * 9, "only {} came over the new rail", came.len());
}

/// Takes a device out of the system, which waits until no process has it open. If the test does not put it back,
/// dropping this does.
struct Removal<'a> {
    device: &'a str,
    interface: &'a str,
    under_way: Option<std::thread::JoinHandle<()>>,
}

impl Removal<'_> {
    fn begin(&mut self) {
        let device = self.device.to_owned();
        self.under_way = Some(std::thread::spawn(move || tool("rdma", &format!("link del {device}"))));
    }

    fn is_over(&self) -> bool {
        self.under_way.as_ref().is_none_or(std::thread::JoinHandle::is_finished)
    }

    fn end(&mut self) {
        self.under_way.take().expect("it was begun").join().expect("nobody has it open");
    }
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        let _ = self.under_way.take().map(std::thread::JoinHandle::join);
        if !Path::new("/sys/class/infiniband").join(self.device).exists() {
            let words = ["link", "add", self.device, "type", "rxe", "netdev", self.interface];
            let _ = Command::new("rdma").args(words).status();
        }
    }
}

/// Soft-RoCE ends no pairs: a removed device goes when the last process that has it open closes it, and works until
/// then. (DEVICE_FATAL, the event of a device that goes at once, is for the driver's own tests.)
#[test]
fn a_device_that_is_removed_under_load_goes_with_its_rail() {
    let Some(pair) = pair("a_device_that_is_removed_under_load_goes_with_its_rail") else { return };
    let End { device, interface, .. } = &pair.ends[0];
    // Dropped after the rails, also after a failure: later tests find the device.
    let mut removal = Removal { device, interface, under_way: None };
    let [mut a, mut b] = pair.open();
    let _ = numbers(&mut a, &mut b, LONG);
    removal.begin();
    // It is under way for most of the next frames.
    std::thread::sleep(Duration::from_millis(500));
    let came = numbers(&mut a, &mut b, LONG);
    assert!(came.len() * 10 >= FRAMES as usize * 9, "only {} came over the rail that was there", came.len());
    assert!(!removal.is_over(), "it is removed while a rail has it open");
    drop(a);
    removal.end();
    let error = pair.ends[0].try_open().err().expect("the device is gone");
    assert!(matches!(error, DriverError::DeviceMissing { .. }), "{error}");
    tool("rdma", &format!("link add {device} type rxe netdev {interface}"));
    let mut a = open_again(&pair.ends[0]);
    let came = numbers(&mut a, &mut b, LONG);
    assert!(came.len() * 10 >= FRAMES as usize * 9, "only {} came over the new rail", came.len());
}

/// The script that has set the network up, and repeats the settings that a device forgets when it is taken
/// down.
fn setup() -> String {
    std::env::var("STILLWIRE_TEST_VERBS_SETUP").expect("named beside the devices")
}

#[test]
fn a_key_that_is_not_the_peers_reaches_nobody() {
    let Some(pair) = pair("a_key_that_is_not_the_peers_reaches_nobody") else { return };
    let [mut a, mut b] = pair.open();
    let mut bytes = b.local_address().as_bytes().to_vec();
    bytes[8] ^= 1;
    let wrong = a.resolve(&RawAddress::new(&bytes).expect("as long")).expect("well formed");
    let right = a.resolve(&b.local_address()).expect("a neighbour");
    for round in 0..50u8 {
        for to in [wrong, right] {
            let buffer = a.lease().expect("few are used");
            buffer[..2].copy_from_slice(&[round, u8::from(to == right)]);
            a.commit(to, 2, Payload::EMPTY);
        }
        a.flush().expect("a live rail");
    }
    let mut came = Vec::new();
    let start = Instant::now();
    while came.len() < 50 && start.elapsed() < LONG {
        b.receive(64, &mut |frame| came.push(frame.to_vec())).expect("a live rail");
    }
    assert!(came.iter().all(|frame| frame[1] == 1), "a frame with another key was received");
    assert_eq!(came.len(), 50, "those with the right key");
}

#[test]
fn a_path_is_as_long_as_both_ports_permit() {
    let Some(pair) = pair("a_path_is_as_long_as_both_ports_permit") else { return };
    let [a, b] = &pair.ends;
    let interface = &b.interface;
    let wide = b.open();
    tool("ip", &format!("link set {interface} mtu 1500"));
    let _undo = Undo("ip", format!("link set {interface} mtu 4200"));
    let (mut near, mut far) = (a.open(), b.open());
    assert_eq!((near.caps().frame_bytes_max, far.caps().frame_bytes_max), (4096, 1024));
    let to_wide = near.resolve(&wide.local_address()).expect("a neighbour");
    let to_far = near.resolve(&far.local_address()).expect("a neighbour");
    assert_eq!(near.path(to_wide).expect("resolved").frame_bytes_max, 4096);
    assert_eq!(near.path(to_far).expect("resolved").frame_bytes_max, 1024);
    for bytes in [1025, 1024] {
        let buffer = near.lease().expect("few are used");
        buffer[..bytes].fill(7);
        near.commit(to_far, bytes, Payload::EMPTY);
    }
    near.flush().expect("a live rail");
    assert_eq!(near.counters().lost_too_long, 1);
    assert_eq!(far.wait(LONG), Ok(Wake::Frame));
    let mut came = Vec::new();
    far.receive(8, &mut |frame| came.push(frame.len())).expect("a live rail");
    assert_eq!(came, [1024]);
}

#[test]
fn the_gid_is_the_interfaces_address() {
    let Some(pair) = pair("the_gid_is_the_interfaces_address") else { return };
    for (rail, end) in pair.open().iter().zip(&pair.ends) {
        assert_eq!(rail.gid(), end.ip.to_ipv6_mapped(), "not link-local, which is the first");
    }
    let named = VerbsConfig { gid_index: Some(0), ..VerbsConfig::new(&pair.ends[0].device) };
    let rail = VerbsDriver::open(&named).expect("the first GID is always there");
    assert!(rail.gid().is_unicast_link_local(), "{}", rail.gid());
}

#[test]
fn a_peer_to_which_no_way_leads_costs_frames_and_not_the_rail() {
    let Some(pair) = pair("a_peer_to_which_no_way_leads_costs_frames_and_not_the_rail") else { return };
    let [mut a, mut b] = pair.open();
    let mut near = pair.ends[0].open();
    let _ = numbers(&mut a, &mut b, LONG);
    let to_b = a.resolve(&b.local_address()).expect("resolved before");
    let to_near = a.resolve(&near.local_address()).expect("the same device");
    let (interface, far) = (&pair.ends[0].interface, pair.ends[1].ip);
    // Its frames go to an unused Ethernet address.
    tool("ip", &format!("neigh replace {far} lladdr 02:00:00:00:00:99 dev {interface} nud permanent"));
    let mut came = 0;
    let start = Instant::now();
    for round in 0..20u8 {
        for to in [to_b, to_near] {
            while a.lease().is_none() {
                assert!(start.elapsed() < LONG, "no slot comes back");
                a.flush().expect("a live rail");
            }
            a.commit(to, 100, Payload::EMPTY);
            a.flush().expect("a live rail");
            while a.completed_total() < a.staged_total() {
                assert!(start.elapsed() < LONG, "round {round}: a request never completes");
                a.flush().expect("a live rail");
            }
        }
        came += near.receive(64, &mut |_| ()).expect("a live rail");
    }
    tool(&setup(), &format!("up {interface}"));
    assert_eq!(b.receive(64, &mut |_| ()), Ok(0), "there was a way");
    while came < 20 && near.wait(Duration::from_millis(100)).expect("a live rail") == Wake::Frame {
        came += near.receive(64, &mut |_| ()).expect("a live rail");
    }
    assert!(came >= 10, "only {came} of 20 frames to another peer came");
    let came = numbers(&mut a, &mut b, LONG);
    assert!(came.len() * 10 >= FRAMES as usize * 9, "only {} came when the way was back", came.len());
}

/// Sends a short frame now and then, and takes received ones, until so many address handles have been made.
fn until_handles(rail: &mut VerbsDriver, to: AddressId, handles: u64) {
    let start = Instant::now();
    while rail.handles_made() < handles {
        assert!(start.elapsed() < LONG, "{} of {handles} address handles", rail.handles_made());
        rail.receive(64, &mut |_| ()).expect("a live rail");
        if rail.lease().is_some() {
            rail.commit(to, 8, Payload::EMPTY);
        }
        rail.flush().expect("a live rail");
    }
    assert_eq!(rail.handles_made(), handles);
}

#[test]
fn a_neighbour_that_has_another_ethernet_address_is_followed() {
    let Some(pair) = pair("a_neighbour_that_has_another_ethernet_address_is_followed") else { return };
    let [mut a, b] = pair.open();
    let to = a.resolve(&b.local_address()).expect("a neighbour");
    until_handles(&mut a, to, 1);
    let (interface, far) = (&pair.ends[0].interface, pair.ends[1].ip);
    tool("ip", &format!("neigh replace {far} lladdr 02:00:00:00:00:99 dev {interface} nud permanent"));
    until_handles(&mut a, to, 2);
    tool(&setup(), &format!("up {interface}"));
    until_handles(&mut a, to, 3);
    // News about other neighbours changes nothing.
    tool("ip", &format!("neigh replace 10.9.0.78 lladdr 02:00:00:00:00:78 dev {interface} nud permanent"));
    tool("ip", &format!("neigh del 10.9.0.78 dev {interface}"));
    for _ in 0..1000 {
        until_handles(&mut a, to, 3);
        a.receive(64, &mut |_| ()).expect("a live rail");
    }
}

#[test]
fn a_neighbour_that_does_not_answer_holds_up_nobody() {
    let Some(pair) = pair("a_neighbour_that_does_not_answer_holds_up_nobody") else { return };
    let [mut a, mut b] = pair.open();
    let mut bytes = b.local_address().as_bytes().to_vec();
    *bytes.last_mut().expect("an address") = 77;
    let silent = a.resolve(&RawAddress::new(&bytes).expect("as long")).expect("well formed");
    assert_eq!(a.handles_made(), 0, "the kernel would have waited for the neighbour");
    let to = a.resolve(&b.local_address()).expect("a neighbour");
    for _ in 0..10 {
        for (peer, bytes) in [(silent, 8), (to, 9), (silent, 8)] {
            a.lease().expect("few are used");
            a.commit(peer, bytes, Payload::EMPTY);
        }
        a.flush().expect("a live rail");
    }
    assert_eq!((a.counters().lost_unreachable, a.handles_made()), (20, 1));
    let start = Instant::now();
    let mut came = 0;
    while came < 10 {
        assert!(start.elapsed() < LONG, "{came} of 10 frames to another peer came");
        came += b.receive(64, &mut |frame| assert_eq!(frame.len(), 9)).expect("a live rail");
    }
    // It is there now: frames to it go to the other end's device.
    let (interface, other) = (&pair.ends[0].interface, &pair.ends[1].interface);
    let mac = std::fs::read_to_string(format!("/sys/class/net/{other}/address")).expect("a device");
    tool("ip", &format!("neigh replace 10.9.0.77 lladdr {} dev {interface} nud permanent", mac.trim()));
    let _undo = Undo("ip", format!("neigh del 10.9.0.77 dev {interface}"));
    let lost = a.counters().lost_unreachable;
    until_handles(&mut a, silent, 2);
    assert_eq!(a.counters().lost_unreachable, lost, "the first frame that is sent then finds the way");
}

#[test]
fn frames_lie_on_huge_pages_where_there_are_some() {
    let Some(pair) = pair("frames_lie_on_huge_pages_where_there_are_some") else { return };
    let set_aside = |pages: &str| std::fs::write("/proc/sys/vm/nr_hugepages", pages).expect("root");
    for (pages, is_huge) in [("8", true), ("0", false)] {
        set_aside(pages);
        let [mut a, mut b] = pair.open();
        assert_eq!(a.is_on_huge_pages(), is_huge);
        assert_eq!(numbers(&mut a, &mut b, LONG).len(), FRAMES as usize, "huge pages: {is_huge}");
    }
}

/// Half round trips of frames of this length, beside the figure of rdma-core's own program for the same two
/// devices: for function, in a guest without hardware support.
#[test]
fn a_ping_pong_runs_beside_rdma_cores_own() {
    const TURNS: u32 = 300;
    const BYTES: usize = 1024;
    let Some(pair) = pair("a_ping_pong_runs_beside_rdma_cores_own") else { return };
    let theirs = |end: &End, server: Option<&End>| {
        let gids = format!("/sys/class/infiniband/{}/ports/1/gids", end.device);
        let wanted = end.ip.to_ipv6_mapped();
        let is_own = |index: &u32| {
            let gid = std::fs::read_to_string(format!("{gids}/{index}")).unwrap_or_default();
            gid.trim().parse() == Ok(wanted)
        };
        let index = (0..16).find(is_own).expect("a GID that is the interface's address");
        let mut command = Command::new("timeout");
        command.args(["60", "ibv_ud_pingpong", "-d", &end.device, "-g", &index.to_string()]);
        command.args(["-n", &TURNS.to_string(), "-s", &BYTES.to_string()]);
        command.args(server.map(|server| server.ip.to_string()));
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command.spawn().expect("ibverbs-utils")
    };
    let mut server = theirs(&pair.ends[0], None);
    let start = Instant::now();
    let client = loop {
        let done = theirs(&pair.ends[1], Some(&pair.ends[0])).wait_with_output().expect("it ends");
        let words = String::from_utf8_lossy(&done.stdout).into_owned();
        if done.status.success() {
            break words;
        }
        // The other one may not listen yet.
        assert!(start.elapsed() < LONG, "{words}{}", String::from_utf8_lossy(&done.stderr));
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(server.wait().expect("it ends").success());
    let theirs = client.lines().find(|line| line.contains("usec/iter")).expect("its result");
    eprintln!("ping-pong: ibv_ud_pingpong, {BYTES} bytes: {theirs}");

    let [mut a, mut b] = pair.open();
    let (to_b, to_a) = (
        a.resolve(&b.local_address()).expect("a neighbour"),
        b.resolve(&a.local_address()).expect("likewise"),
    );
    let turn = |rail: &mut VerbsDriver, to, number: u32| {
        let buffer = rail.lease().expect("one is used");
        buffer[..BYTES].fill(0);
        buffer[..4].copy_from_slice(&number.to_le_bytes());
        rail.commit(to, BYTES, Payload::EMPTY);
        rail.flush().expect("a live rail");
    };
    let take = |rail: &mut VerbsDriver, number: u32| {
        let start = Instant::now();
        let mut came = None;
        while came.is_none() {
            assert!(start.elapsed() < LONG, "turn {number} does not come");
            rail.receive(1, &mut |frame| came = Some(frame.to_vec())).expect("a live rail");
        }
        let frame = came.expect("just there");
        assert_eq!((frame.len(), &frame[..4]), (BYTES, &number.to_le_bytes()[..]));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..TURNS {
                take(&mut b, number);
                turn(&mut b, to_a, number);
            }
        });
        let start = Instant::now();
        for number in 0..TURNS {
            turn(&mut a, to_b, number);
            take(&mut a, number);
        }
        let each = start.elapsed().as_secs_f64() * 1e6 / f64::from(TURNS);
        eprintln!("ping-pong: this driver, {BYTES} bytes: {TURNS} iters, {each:.2} usec/iter");
    });
}

#[test]
fn nothing_of_the_device_is_inherited_or_unnamed() {
    let Some(pair) = pair("nothing_of_the_device_is_inherited_or_unnamed") else { return };
    let rail = pair.ends[0].open();
    let mapped = rail.device_mappings();
    let lines = |of: &str| std::fs::read_to_string(format!("/proc/{of}/maps")).expect("/proc");
    let devices: Vec<String> =
        lines("self").lines().filter(|line| line.contains("/dev/infiniband/")).map(str::to_owned).collect();
    assert!(!devices.is_empty(), "Soft-RoCE maps its queues");
    for line in &devices {
        let (start, end) =
            line.split_once(' ').and_then(|(range, _)| range.split_once('-')).expect("a range");
        let number = |hex| usize::from_str_radix(hex, 16).expect("a number");
        assert!(mapped.contains(&(number(start)..number(end))), "{line} is not named");
    }
    let named = rail.descriptors();
    for entry in std::fs::read_dir("/proc/self/fd").expect("/proc").flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        if target.starts_with("/dev/infiniband") || target == Path::new("anon_inode:[infinibandevent]") {
            let number = entry.file_name().to_string_lossy().parse().expect("a number");
            assert!(named.contains(&number), "{} is not named", target.display());
        }
    }
    // SAFETY: the child only waits, and is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: as above.
            unsafe { libc::pause() };
        }
    }
    let of_child = lines(&child.to_string());
    // SAFETY: our own child.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, core::ptr::null_mut(), 0);
    }
    for range in &mapped {
        let start = format!("{:x}-", range.start);
        assert!(!of_child.lines().any(|line| line.starts_with(&start)), "{range:x?} is inherited");
    }
    drop(rail);
    assert!(!lines("self").contains("/dev/infiniband/"), "a closed rail leaves mappings");
}

#[test]
fn a_device_that_is_not_there_is_reported_with_what_to_do() {
    let error = VerbsDriver::open(&VerbsConfig::new("none")).err().expect("no device has that name");
    let expected = match error {
        DriverError::LibraryMissing => "apt-get install libibverbs1 ibverbs-providers",
        DriverError::DeviceMissing { .. } => "rdma link add",
        other => panic!("{other}"),
    };
    assert!(error.to_string().contains(expected), "{error}");
    assert!(!error.is_rail_dead());
}

/// A file that is not libibverbs, in its place: the test starts itself again with it.
#[test]
fn a_library_that_cannot_be_loaded_is_reported_with_what_to_do() {
    const CHILD: &str = "STILLWIRE_TEST_NO_LIBRARY";
    if std::env::var_os(CHILD).is_some() {
        let error = VerbsDriver::open(&VerbsConfig::new("none")).err();
        assert_eq!(error, Some(DriverError::LibraryMissing));
        return;
    }
    let place = std::env::temp_dir().join(format!("stillwire-no-library-{}", std::process::id()));
    std::fs::create_dir_all(&place).expect("a directory");
    std::fs::write(place.join("libibverbs.so.1"), "not a library").expect("a file");
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "verbs::a_library_that_cannot_be_loaded_is_reported_with_what_to_do"])
        .env(CHILD, "1")
        .env("LD_LIBRARY_PATH", &place)
        .output();
    std::fs::remove_dir_all(&place).expect("made above");
    let output = output.expect("this program");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
