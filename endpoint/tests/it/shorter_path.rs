//! A path that becomes shorter while frames cut for the longer one are unacknowledged: they keep their numbers, so they keep
//! their lengths, and must arrive all the same (R4, R14).
//!
//! The interface whose MTU falls is the loopback of a network namespace of the test's own, so the test runs itself again in
//! one, with the tools `unshare` and `ip`.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use drivers::Driver;
use drivers::fault::{FaultDriver, Faults, Rate};
use drivers::udp::{UdpConfig, UdpDriver};
use endpoint::{Completion, Endpoint, EndpointConfig, ReceiveBuffer, SendBuffer};
use transport::{Epoch, JobId, JobKey, Life, Outgoing, Port, PortConfig, PortId, Rank, Receive, Space};

const ROLE: &str = "STILLWIRE_TEST_SHORTER_PATH";
const SIZES: [usize; 4] = [8000, 100, 1_000_000, 8000];

fn id(rank: u32) -> PortId {
    PortId::of_rank(Rank(rank), 0)
}

fn open(rank: u32, rail: Box<dyn Driver>) -> Endpoint {
    let config = PortConfig::new(JobId(5).tag());
    let port = Port::new(config, id(rank), Life { counter: 1, nonce: 7 }, Epoch(0), Some(&JobKey([1; 16])));
    Endpoint::open(port, vec![rail], EndpointConfig { helper: false, ..EndpointConfig::default() })
        .expect("an endpoint")
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("the tool `ip`");
    assert!(status.success(), "ip {arguments}");
}

fn udp(bind: SocketAddr) -> UdpDriver {
    UdpDriver::open(&UdpConfig::new(bind)).expect("a socket")
}

/// Not a test by itself: the part that runs in the namespace.
#[test]
fn inside_of_the_namespace() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    ip("link set lo up");
    for bind in ["127.0.0.1:0", "[::1]:0"] {
        ip("link set lo mtu 65536");
        let bind: SocketAddr = bind.parse().expect("an address");
        let faulty = FaultDriver::new(udp(bind), Faults::NONE);
        let switch = faulty.switch();
        let (a, b) = (open(0, Box::new(faulty)), open(1, Box::new(udp(bind))));
        let link = a.connect(id(1), &b.addresses()).expect("reachable");
        let payload = |i: usize| vec![u8::try_from(i + 1).expect("small"); SIZES[i]];
        for tag in 0..SIZES.len() as u64 {
            let receive = Receive {
                space: Space(0),
                source: None,
                tag,
                ignore: 0,
                bytes_max: 1 << 20,
                context: tag,
                multi: None,
            };
            b.post_receive(receive, ReceiveBuffer::Owned(vec![0; 1 << 20])).expect("there is room");
        }
        for (i, tag) in (0..SIZES.len()).zip(0..) {
            let outgoing = Outgoing { space: Space(0), tag, data: 0, context: tag, silent: false };
            a.send(link, outgoing, SendBuffer::Owned(payload(i))).expect("there is room");
        }
        // The long one is granted, and frames as long as the wide path takes are on their way, when all of them get lost.
        let started = Instant::now();
        while a.with_port(|port| port.counters().frames_counted) == 0 {
            assert!(started.elapsed() < Duration::from_secs(10), "no CTS");
            let _ = b.poll();
            if b.with_port(|port| port.counters().frames_counted) > 0 {
                switch.set_faults(Faults { loss: Rate::percent(100), ..Faults::NONE });
            }
            let _ = a.poll();
        }
        assert!(!a.with_port(Port::is_settled));
        ip("link set lo mtu 1500");
        switch.set_faults(Faults::NONE);
        let (mut received, mut sent) = (0, 0);
        while received + sent < 2 * SIZES.len() {
            assert!(started.elapsed() < Duration::from_secs(30), "{bind}: {received} received, {sent} sent");
            match b.poll() {
                Some(Completion::Received { tag, bytes, buffer: Some(buffer), .. }) => {
                    let i = usize::try_from(tag).expect("small");
                    assert_eq!(buffer[..usize::try_from(bytes).expect("small")], payload(i));
                    received += 1;
                }
                Some(Completion::Report(event)) => panic!("{event:?}"),
                _ => {}
            }
            if let Some(Completion::SendDone { .. }) = a.poll() {
                sent += 1;
            }
        }
    }
}

#[test]
fn what_was_cut_for_the_longer_path_arrives() {
    let own = std::env::current_exe().expect("it runs");
    let run = |program: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", "--", program]);
        command
    };
    if !run("true").status().is_ok_and(|status| status.success())
        || !Command::new("ip").arg("-V").status().is_ok_and(|status| status.success())
    {
        crate::skipped::skipped(
            "what_was_cut_for_the_longer_path_arrives",
            "no network namespace of one's own here (unshare --user --net, ip)",
        );
        return;
    }
    let mut command = run(&own.display().to_string());
    command.args(["--exact", "shorter_path::inside_of_the_namespace", "--nocapture"]).env(ROLE, "1");
    let done = command.output().expect("it can be started");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
