//! Two ports between network namespaces, moved from driver to driver under traffic, life after life, in every order (R5, R7, R10): no message is lost,
//! doubled or changed. Verbs take a guest with RDMA devices: tests/guest/verbs.

mod hosts;
mod killed;

use std::time::{Duration, Instant};

use crate::support::{End, exchange, id, post_rest, settle};
use drivers::fault::Faults;
use drivers::udp::UdpAddress;
use drivers::{Driver, DriverError};
use endpoint::Endpoint;
use hosts::{Host, KEY, LENGTHS, Nic, by_hand, config, on_hosts};
use transport::{Epoch, JobKey, Life, LinkIndex, Port, RawAddress, Restart};

const LIMIT: Duration = Duration::from_secs(60);
const DRAIN: Duration = Duration::from_secs(1);
/// Of each side, in each life.
const MESSAGES: u64 = 12;

fn open(host: &Host) -> End {
    open_with(host, Nic::Udp, &KEY)
}

fn open_with(host: &Host, nic: Nic, key: &JobKey) -> End {
    let life = Life { counter: 1, nonce: 5 };
    let port = Port::new(config(), id(host.rank), life, Epoch(0), Some(key));
    let rails = host.rail(nic).expect("a socket, or rights and a device");
    let endpoint = Endpoint::open(port, rails, by_hand()).expect("an endpoint");
    End::new(host.rank, endpoint, LinkIndex(0), LENGTHS)
}

/// The time of one move of a port, without opening the new NIC, which is the kernel's part.
struct Took {
    from: Nic,
    to: Nic,
    /// Freeze, dump with the payload that the port holds, and thaw: from the section to a port that can send.
    times: [Duration; 3],
}

/// Prints medians of each pair of kinds.
fn report(took: &[Took]) {
    let mut pairs: Vec<(Nic, Nic)> = Vec::new();
    took.iter().for_each(|one| {
        if !pairs.contains(&(one.from, one.to)) {
            pairs.push((one.from, one.to));
        }
    });
    for (from, to) in pairs {
        let medians = [0, 1, 2].map(|at| {
            let of = took.iter().filter(|one| (one.from, one.to) == (from, to));
            let mut times: Vec<Duration> = of.map(|one| one.times[at]).collect();
            times.sort_unstable();
            times[times.len() / 2].as_secs_f64() * 1e6
        });
        let [freeze, dump, thaw] = medians;
        eprintln!("from {from:?} to {to:?}: freeze {freeze:.0} us, dump {dump:.0} us, thaw {thaw:.0} us");
    }
}

/// Freezes the port and writes it down; the end is good for nothing then.
fn cut(end: &mut End, life: u32, took: &mut [Duration; 3]) -> Vec<u8> {
    let endpoint = end.endpoint.clone();
    let started = Instant::now();
    let mut frozen = endpoint.freeze(DRAIN).expect("nothing is held");
    took[0] = started.elapsed();
    frozen.port_mut().set_epoch(Epoch(life));
    for completion in frozen.take_completions() {
        assert_eq!(end.note(completion).map(|other| format!("{other:?}")), None);
    }
    let mut section = Vec::new();
    let started = Instant::now();
    nic_freeze::dump(frozen.port(), &mut section);
    nic_freeze::append_payloads(frozen.port(), frozen.buffers(), &mut section).expect("its memory");
    took[1] = started.elapsed();
    section
}

/// Opens the rails. The kernel frees a queue some time after its socket was closed: on a busy machine much later than a driver waits for it.
fn free_again(host: &Host, nic: Nic) -> Vec<Box<dyn Driver>> {
    let until = Instant::now() + LIMIT;
    let is_busy = |error: &DriverError| match error {
        DriverError::CannotOpen { errno, .. } => {
            std::io::Error::from_raw_os_error(errno.0).kind() == std::io::ErrorKind::ResourceBusy
        }
        _ => false,
    };
    loop {
        match host.rail(nic) {
            Err(error) if is_busy(&error) && Instant::now() < until => {}
            rails => return rails.expect("the device is free again"),
        }
    }
}

/// The port continues from the dump, when its old rails are closed.
fn go_on(host: &Host, end: End, section: &[u8], life: u32, nic: Nic, took: &mut Duration) -> End {
    end.replace_endpoint(|| {
        let rails = free_again(host, nic);
        let started = Instant::now();
        let loaded = nic_freeze::load(nic_freeze::SECTION_VERSION, section, config(), Some(&KEY));
        let loaded = loaded.expect("a whole section");
        let restart = Restart::in_life(Life { counter: life, nonce: 5 });
        let endpoint = Endpoint::restart(loaded.port, loaded.carried, rails, restart, by_hand());
        *took = started.elapsed();
        endpoint.expect("an endpoint")
    })
}

fn connect(hosts: &[Host; 2], ends: &mut [End; 2]) {
    let addresses = ends.each_ref().map(|end| end.endpoint.addresses());
    for ((host, end), other) in hosts.iter().zip(ends).zip([&addresses[1], &addresses[0]]) {
        host.enter();
        end.link = end.endpoint.connect(id(1 - end.rank), other).expect("reachable");
    }
}

/// `nics`: the NICs of the two ports in each life.
fn moves(hosts: [Host; 2], nics: impl Iterator<Item = [Nic; 2]>) {
    let started = std::time::Instant::now();
    let mut ends = hosts.each_ref().map(open);
    let (mut moved, mut over, mut took) = (0, [Nic::Udp; 2], Vec::new());
    connect(&hosts, &mut ends);
    for (life, nics) in (2..).zip(nics) {
        let before = u64::from(life) % 7 * 2;
        exchange(&mut ends, MESSAGES, before);
        for _ in 0..life % 50 * 3 {
            ends.iter_mut().for_each(End::poll);
        }
        let mut times = [[Duration::ZERO; 3]; 2];
        let sections = [0, 1].map(|at| cut(&mut ends[at], life, &mut times[at]));
        let [a, b] = ends;
        ends = [
            go_on(&hosts[0], a, &sections[0], life, nics[0], &mut times[0][2]),
            go_on(&hosts[1], b, &sections[1], life, nics[1], &mut times[1][2]),
        ];
        took.extend([0, 1].map(|at| Took { from: over[at], to: nics[at], times: times[at] }));
        over = nics;
        connect(&hosts, &mut ends);
        post_rest(&ends, MESSAGES, before);
        settle(&mut ends, LIMIT, &format!("life {life}, {nics:?}"));
        moved += 1;
    }
    let messages: u64 = ends.iter().map(|end| end.sent).sum();
    report(&took);
    eprintln!("moved {moved} times, {messages} messages checked, {:.1} s", started.elapsed().as_secs_f32());
}

fn run(test: &str, faults: Faults, needs_verbs: bool, nics: impl Iterator<Item = [Nic; 2]> + Send) {
    on_hosts(test, needs_verbs, |hosts| moves(hosts.map(|host| host.with(faults)), nics));
}

#[test]
fn ports_move_between_udp_and_af_xdp_under_traffic() {
    // Rails of the two reach each other: all four pairs in turn.
    let of = |number: u32| if (number / 2).is_multiple_of(2) { Nic::Xdp } else { Nic::Udp };
    let nics = (2..202).map(|life: u32| [of(life), of(life + life / 4)]);
    run("ports_move_between_udp_and_af_xdp_under_traffic", Faults::NONE, false, nics);
}

#[test]
fn what_a_nic_holds_back_is_given_back_when_nothing_else_is_sent() {
    // The last copies of acknowledged frames stay with the NIC until it is called again.
    let faults = "late=5%,seed=11".parse().expect("faults");
    let nics = (0..20).map(|life| if life % 2 == 0 { [Nic::Udp; 2] } else { [Nic::Xdp; 2] });
    run("what_a_nic_holds_back_is_given_back_when_nothing_else_is_sent", faults, false, nics);
}

/// From each of the four to each, itself included, and back to the first.
fn every_ordered_pair() -> impl Iterator<Item = [Nic; 2]> + Clone + Send {
    use Nic::{Shm, Udp, Verbs, Xdp};
    let way = [Udp, Verbs, Verbs, Udp, Xdp, Xdp, Verbs, Shm, Shm, Verbs, Xdp, Shm, Xdp, Udp, Shm, Udp];
    way.into_iter().map(|nic| [nic, nic])
}

#[test]
fn the_way_has_every_ordered_pair() {
    let way: Vec<[Nic; 2]> = every_ordered_pair().collect();
    let pairs: Vec<_> = (0..way.len()).map(|i| (way[i][0], way[(i + 1) % way.len()][0])).collect();
    for (i, pair) in pairs.iter().enumerate() {
        assert!(!pairs[..i].contains(pair), "{pair:?} is there twice");
    }
    assert_eq!(pairs.len(), 16);
}

#[test]
fn ports_move_between_all_drivers_under_traffic() {
    let nics = every_ordered_pair().cycle().take(16 * 2 + 1);
    run("ports_move_between_all_drivers_under_traffic", Faults::NONE, true, nics);
}

#[test]
fn ports_move_between_all_drivers_under_traffic_that_is_lossy() {
    let faults = "loss=2%,dup=2%,reorder=2%,late=5%,seed=11".parse().expect("faults");
    let nics = every_ordered_pair().cycle().take(16 * 2 + 1);
    run("ports_move_between_all_drivers_under_traffic_that_is_lossy", faults, true, nics);
}

/// Long against the other tests in a guest, so only if STILLWIRE_TEST_LONG is set.
#[test]
fn ports_move_a_thousand_times_round_all_drivers() {
    const MOVES: usize = 1000;
    let test = "ports_move_a_thousand_times_round_all_drivers";
    if std::env::var_os("STILLWIRE_TEST_LONG").is_none_or(|long| long.is_empty()) {
        return crate::skipped::skipped(
            test,
            "STILLWIRE_TEST_LONG=yes and a guest with RDMA devices (tests/guest/verbs starts one)",
        );
    }
    let nics = [Nic::Verbs, Nic::Udp, Nic::Xdp, Nic::Shm].map(|nic| [nic; 2]).into_iter().cycle().take(MOVES);
    run(test, Faults::NONE, true, nics);
}

/// The rail goes on over another driver, at the same address.
fn hand_over(host: &Host, end: &End, nic: Nic) {
    let mut open = |address: &RawAddress| {
        let at = UdpAddress::try_from(address).expect("both kinds have such addresses");
        host.rail_at(at.0, nic)
    };
    let mut never = |_: &RawAddress| -> Result<Box<dyn Driver>, DriverError> { panic!("it opens") };
    end.endpoint.hand_over(0, &mut open, &mut never).expect("the device is free");
}

fn hands_over(hosts: [Host; 2]) {
    let mut ends = hosts.each_ref().map(open);
    connect(&hosts, &mut ends);
    for turn in 0..200u32 {
        for _ in 0..MESSAGES {
            for end in &mut ends {
                end.send();
                end.post(end.sent - 1);
                end.poll();
            }
        }
        for _ in 0..turn % 50 * 3 {
            ends.iter_mut().for_each(End::poll);
        }
        // Now the one, now the other, so that all four pairs of kinds come in turn.
        let nic = if (turn / 2).is_multiple_of(2) { Nic::Xdp } else { Nic::Udp };
        let at = (turn % 2) as usize;
        hand_over(&hosts[at], &ends[at], nic);
        settle(&mut ends, LIMIT, &format!("turn {turn}"));
    }
}

/// R24: in one life, under the program that runs.
#[test]
fn rails_are_handed_over_between_udp_and_af_xdp_under_traffic() {
    on_hosts("rails_are_handed_over_between_udp_and_af_xdp_under_traffic", false, hands_over);
}

/// R21: a stranger that knows all of the job but its key is not heard.
fn is_not_heard_without_the_key(hosts: &[Host; 2], nic: Nic) {
    let mut ends = [open_with(&hosts[0], nic, &KEY), open_with(&hosts[1], nic, &JobKey([2; 16]))];
    connect(hosts, &mut ends);
    let dropped = |end: &End| end.endpoint.with_port(|port| port.counters().dropped_tag);
    let started = Instant::now();
    ends.iter_mut().for_each(|end| {
        end.send();
        end.post(0);
    });
    // Each retransmits unacknowledged frames.
    while ends.iter().any(|end| dropped(end) < 3) {
        ends.iter_mut().for_each(End::poll);
        assert!(
            started.elapsed() < LIMIT,
            "{nic:?}: {:?} frames came and were refused",
            ends.each_ref().map(dropped)
        );
    }
    assert_eq!(ends.map(|end| (end.received, end.done)), [(0, 0); 2], "{nic:?}");
}

#[test]
fn a_port_with_another_key_is_not_heard() {
    on_hosts("a_port_with_another_key_is_not_heard", false, |hosts| {
        for nic in [Nic::Udp, Nic::Xdp] {
            is_not_heard_without_the_key(&hosts, nic);
        }
    });
}

#[test]
fn over_verbs_a_port_with_another_key_is_not_heard() {
    on_hosts("over_verbs_a_port_with_another_key_is_not_heard", true, |hosts| {
        is_not_heard_without_the_key(&hosts, Nic::Verbs);
    });
}
