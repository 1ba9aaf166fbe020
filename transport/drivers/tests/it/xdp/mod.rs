//! The AF_XDP driver between network namespaces of its own: a bridge in one, and a pair of virtual Ethernet devices to each rail.
//! Namespaces and devices vanish with the threads and sockets that hold them.

mod bridged;
mod helper;
mod helper_attacks;
mod long;
mod packs;
mod queues;
mod rights;

use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use bridged::{Bridged, bridged};
use drivers::conformance::CASES;
use drivers::fault::{FaultDriver, Faults};
use drivers::udp::UdpAddress;
use drivers::xdp::{Attach, XdpDriver};
use drivers::{Driver, DriverError, Errno, Operation, Payload, Wake};
use transport::AddressId;

fn conforms(name: &str, attach: Attach, v6: bool, faults: Option<Faults>) {
    conforms_with(name, attach, v6, faults, |_| ());
}

fn conforms_with(
    name: &str,
    attach: Attach,
    v6: bool,
    faults: Option<Faults>,
    change: impl Fn(&mut Bridged) + Sync,
) {
    let begun = Instant::now();
    for (case, run) in CASES {
        eprintln!("{case}");
        let test = |mut bridge: Bridged| {
            change(&mut bridge);
            run(&mut bridge);
        };
        if !bridged(name, attach, v6, faults, test) {
            return;
        }
    }
    // Not by `eprintln`, which a test that passes does not show.
    let _ = writeln!(std::io::stderr(), "{name}: {:.1} s", begun.elapsed().as_secs_f32());
}

#[test]
fn native_v4_conforms() {
    conforms("native_v4_conforms", Attach::Native, false, None);
}

#[test]
fn native_v6_conforms() {
    conforms("native_v6_conforms", Attach::Native, true, None);
}

#[test]
fn generic_v4_conforms() {
    conforms("generic_v4_conforms", Attach::Generic, false, None);
}

#[test]
fn generic_v6_conforms() {
    conforms("generic_v6_conforms", Attach::Generic, true, None);
}

#[test]
fn it_conforms_under_a_wrapper_that_delays_completions() {
    let faults = "late=30%,seed=3".parse().expect("faults");
    conforms("it_conforms_under_a_wrapper_that_delays_completions", Attach::Generic, false, Some(faults));
}

fn conforms_with_loss(name: &str, attach: Attach, v6: bool) {
    let faults = "loss=0.5%,late=10%,seed=5".parse().expect("faults");
    conforms(name, attach, v6, Some(faults));
}

#[test]
fn native_v4_conforms_where_frames_are_lost() {
    conforms_with_loss("native_v4_conforms_where_frames_are_lost", Attach::Native, false);
}

#[test]
fn native_v6_conforms_where_frames_are_lost() {
    conforms_with_loss("native_v6_conforms_where_frames_are_lost", Attach::Native, true);
}

#[test]
fn generic_v4_conforms_where_frames_are_lost() {
    conforms_with_loss("generic_v4_conforms_where_frames_are_lost", Attach::Generic, false);
}

#[test]
fn generic_v6_conforms_where_frames_are_lost() {
    conforms_with_loss("generic_v6_conforms_where_frames_are_lost", Attach::Generic, true);
}

const FRAMES: u32 = 4000;

/// Sends numbers, each with its complement, in bursts of 16. Returns the received frames.
fn numbers(a: &mut dyn Driver, b: &mut dyn Driver) -> Vec<Vec<u8>> {
    let to = a.resolve(&b.local_address()).expect("on the same bridge");
    let mut came: Vec<Vec<u8>> = Vec::new();
    for first in (0..FRAMES).step_by(16) {
        for number in first..first + 16 {
            let buffer = a.lease().expect("far fewer than there are chunks");
            buffer[..4].copy_from_slice(&number.to_le_bytes());
            buffer[4..8].copy_from_slice(&(!number).to_le_bytes());
            a.commit(to, 8, Payload::EMPTY);
        }
        a.flush().expect("a live rail");
        // The first may wait for a neighbour to be found; later ones have come by the time of a few looks.
        let patience = Duration::from_millis(if first == 0 { 2000 } else { 1 });
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

fn is_intact(frame: &[u8]) -> bool {
    let complement = frame.iter().skip(4).map(|byte| !byte);
    frame.len() == 8 && frame[..4].iter().copied().eq(complement)
}

#[test]
fn what_the_wrapper_alters_and_nothing_else_is_altered() {
    let name = "what_the_wrapper_alters_and_nothing_else_is_altered";
    bridged(name, Attach::Native, false, None, |mut bridge| {
        let faults = "loss=2%,dup=2%,reorder=5%,corrupt=5%,seed=7".parse().expect("faults");
        let mut a = FaultDriver::new(bridge.host().open(), faults);
        let mut b = bridge.host().open();
        let came = numbers(&mut a, &mut b);
        let altered = came.iter().filter(|frame| !is_intact(frame)).count() as u64;
        let done = a.tally().corrupted;
        assert!(done > 0 && altered * 2 >= done, "{altered} of {done} came");
        // Some of them twice.
        assert!(altered <= done + a.tally().duplicated, "{altered} came, {done} were altered");
        assert!(came.len() * 10 >= FRAMES as usize * 9, "only {} came", came.len());
    });
}

#[test]
fn rails_over_udp_and_over_af_xdp_reach_each_other() {
    // Not attached generically: frames that the UDP driver has the kernel cut would come here uncut.
    for v6 in [false, true] {
        let name = "rails_over_udp_and_over_af_xdp_reach_each_other";
        let ran = bridged(name, Attach::Native, v6, None, |mut bridge| {
            let (mut udp, mut xdp) = (bridge.host().open_udp(), bridge.host().open());
            for came in [numbers(&mut udp, &mut xdp), numbers(&mut xdp, &mut udp)] {
                let altered = came.iter().find(|frame| !is_intact(frame));
                assert_eq!(altered, None);
                assert!(came.len() * 10 >= FRAMES as usize * 9, "only {} came", came.len());
            }
            let (received, sent) = xdp.direct_frames();
            let most = u64::from(FRAMES) / 2;
            assert!(received > most && sent > most, "{received} and {sent} passed around the kernel");
        });
        if !ran {
            return;
        }
    }
}

/// Uses the rail until it reports that it is dead.
fn until_dead(rail: &mut dyn Driver, mut sends_to: Option<AddressId>) -> Errno {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < Duration::from_secs(20), "the rail does not say that its device is gone");
        if let Some(to) = &mut sends_to
            && rail.lease().is_some()
        {
            rail.commit(*to, 100, Payload::EMPTY);
        }
        let outcome = rail.flush().and_then(|_| rail.receive(64, &mut |_| ()));
        match outcome {
            Ok(_) => {}
            Err(DriverError::RailDead { errno, .. }) => return errno,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_device_that_goes_away_under_load_is_the_end_of_the_rail() {
    let name = "a_device_that_goes_away_under_load_is_the_end_of_the_rail";
    bridged(name, Attach::Native, false, None, |mut bridge| {
        let (host_a, host_b) = (bridge.host(), bridge.host());
        let (mut a, mut b) = (host_a.open(), host_b.open());
        let _ = numbers(&mut a, &mut b);
        let to = a.resolve(&b.local_address()).expect("resolved before");
        host_a.ip("link set eth0 down");
        assert_eq!(until_dead(&mut a, Some(to)).0, libc::ENETDOWN);
        drop(a);
        host_a.ip("link set eth0 up");
        let mut a = host_a.open();
        let came = numbers(&mut a, &mut b);
        assert!(came.len() * 10 >= FRAMES as usize * 9, "only {} came over the new rail", came.len());
        let to = a.resolve(&b.local_address()).expect("resolved before");
        host_a.ip("link del eth0");
        until_dead(&mut a, Some(to));
        // This one only receives.
        host_b.ip("link del eth0");
        until_dead(&mut b, None);
        let again = host_b.try_open(|_| ()).err();
        let Some(DriverError::CannotOpen { operation, .. }) = again else { panic!("{again:?}") };
        assert_eq!(operation, Operation::FindDevice);
    });
}

#[test]
fn a_path_is_as_long_as_device_and_route_permit() {
    let name = "a_path_is_as_long_as_device_and_route_permit";
    bridged(name, Attach::Native, false, None, |mut bridge| {
        let (near, far, routed) = (bridge.host(), bridge.host(), bridge.host());
        far.ip("link set eth0 mtu 1000");
        routed.ip("route change 10.9.0.0/24 dev eth0 mtu 900");
        let (a, b, c) = (near.open(), far.open(), routed.open());
        let (at_a, at_b) = (a.local_address(), b.local_address());
        // The kernel gives a path's MTU in the namespace of the asking thread.
        let ((mut a, to_b), (mut b, to_a)) = (near.resolve(a, at_b), far.resolve(b, at_a));
        let (c, from_c) = routed.resolve(c, at_a);
        let longest = |rail: &XdpDriver, to| rail.path(to).expect("resolved").frame_bytes_max;
        // Its own device would send 1500: the peer's address contains its device's MTU.
        assert_eq!(longest(&a, to_b), 1000 - 28);
        assert_eq!(longest(&b, to_a), 1000 - 28);
        assert_eq!(longest(&c, from_c), 900 - 28);
        assert_eq!(b.lease().expect("free chunks").len(), 1000 - 28);
        let _ = numbers(&mut a, &mut b);
        let _ = a.lease().expect("free chunks");
        a.commit(to_b, 1000 - 27, Payload::EMPTY);
        assert_eq!(a.counters().lost_too_long, 1);
        // A later reduction of a device's MTU is not reported: longer frames are lost, and the rail continues.
        far.ip("link set eth0 mtu 800");
        for bytes in [1000 - 28, 800 - 28] {
            let _ = a.lease().expect("free chunks");
            a.commit(to_b, bytes, Payload::EMPTY);
            a.flush().expect("a live rail");
        }
        let (mut came, start) = (Vec::new(), Instant::now());
        while came.is_empty() {
            assert!(start.elapsed() < Duration::from_secs(20), "what the peer takes does not come");
            b.receive(64, &mut |frame| came.push(frame.len())).expect("a live rail");
            a.receive(64, &mut |_| ()).expect("a live rail");
        }
        assert_eq!(came, [800 - 28]);
    });
}

#[test]
fn over_udp_a_path_is_as_long_as_the_peers_device_takes() {
    let name = "over_udp_a_path_is_as_long_as_the_peers_device_takes";
    for (v6, headers) in [(false, 28), (true, 48)] {
        let ran = bridged(name, Attach::Native, v6, None, |mut bridge| {
            let (near, far) = (bridge.host(), bridge.host());
            far.ip("link set eth0 mtu 1300");
            let (a, mut b) = (near.open_udp(), far.open_udp());
            let at_b = b.local_address();
            let (mut a, to) = near.run(move |_| {
                let mut a = a;
                let place = UdpAddress::try_from(&at_b).expect("an address");
                // By its place alone its limit is our own device's; when its own is known, the id stays.
                let to = a.resolve(&place.into()).expect("on the same bridge");
                assert_eq!(a.path(to).expect("resolved").frame_bytes_max, 1500 - headers);
                assert_eq!(a.resolve(&at_b), Ok(to));
                assert_eq!(a.resolve(&place.into()), Ok(to));
                (a, to)
            });
            assert_eq!(a.path(to).expect("resolved").frame_bytes_max, 1300 - headers);
            a.lease().expect("free buffers")[..4].copy_from_slice(b"long");
            a.commit(to, 1300 - headers, Payload::EMPTY);
            a.flush().expect("a live rail");
            assert_eq!(b.wait(Duration::from_secs(20)), Ok(Wake::Frame));
            b.receive(1, &mut |frame| assert_eq!(frame.len(), 1300 - headers)).expect("a live rail");
        });
        if !ran {
            return;
        }
    }
}

/// A forked child of this process, killed at the end.
struct Child(libc::pid_t);

impl Child {
    /// It keeps these of the files that are open now, and then does nothing. (Others may be other tests'.)
    fn fork(kept: &[libc::c_int]) -> Child {
        let (read, write) = nix::unistd::pipe().expect("a pipe");
        let write_end = write.as_raw_fd();
        // SAFETY: the child calls nothing but the system.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "no child");
        if child == 0 {
            // SAFETY: system calls on the child's own files; it never returns to the test.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                for file in 3..1024 {
                    if file != write_end && !kept.contains(&file) {
                        libc::close(file);
                    }
                }
                libc::write(write_end, [1u8].as_ptr().cast(), 1);
                loop {
                    libc::pause();
                }
            }
        }
        let mut byte = [0];
        assert_eq!(nix::unistd::read(&read, &mut byte), Ok(1), "the child lives");
        Child(child)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our own child, not waited for yet.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, core::ptr::null_mut(), 0);
        }
    }
}

#[test]
fn a_forked_child_keeps_the_queue_only_with_its_files() {
    let name = "a_forked_child_keeps_the_queue_only_with_its_files";
    bridged(name, Attach::Native, false, None, |mut bridge| {
        let host = bridge.host();
        let rail = host.open();
        let writer = Child::fork(&[]);
        drop(rail);
        let rail = host.open();
        drop(writer);
        // The program is detached even if the child has descriptors; the socket is the child's as well.
        let child = Child::fork(&rail.descriptors());
        drop(rail);
        let error = host.try_open(|_| ()).err();
        let Some(DriverError::CannotOpen { operation, errno }) = error else { panic!("{error:?}") };
        assert_eq!((operation, errno.0), (Operation::BindQueue, libc::EBUSY));
        drop(child);
        drop(host.open());
    });
}

/// Sends until a frame comes that came around the kernel: nothing of it is in the companion's counters.
#[test]
fn frames_pass_around_the_kernel() {
    bridged("frames_pass_around_the_kernel", Attach::Generic, false, None, |mut bridge| {
        let mut a = bridge.host().open();
        let mut b = bridge.host().open();
        let to = a.resolve(&b.local_address()).expect("on the same bridge");
        for attempt in 0.. {
            assert!(attempt < 1000, "every frame went through the kernel's stack");
            a.lease().expect("free chunks")[..4].copy_from_slice(b"here");
            a.commit(to, 4, Payload::EMPTY);
            a.flush().expect("a live rail");
            b.wait(Duration::from_millis(10)).expect("a live rail");
            while b.receive(8, &mut |frame| assert_eq!(frame, b"here")).expect("a live rail") > 0 {}
            let ((_, sent), (received, _)) = (a.direct_frames(), b.direct_frames());
            if sent > 0 && received > 0 {
                return;
            }
        }
    });
}

#[test]
fn a_rail_that_was_closed_can_be_opened_again_at_once() {
    bridged(
        "a_rail_that_was_closed_can_be_opened_again_at_once",
        Attach::Native,
        false,
        None,
        |mut bridge| {
            let host = bridge.host();
            for _ in 0..5 {
                drop(host.open());
            }
        },
    );
}

#[test]
fn a_queue_that_is_taken_is_named() {
    bridged("a_queue_that_is_taken_is_named", Attach::Generic, false, None, |mut bridge| {
        let host = bridge.host();
        let _first = host.open();
        let error = host.try_open(|_| ()).err().expect("the device is taken");
        let DriverError::CannotOpen { operation, errno } = error else { panic!("{error}") };
        assert_eq!((operation, errno.0), (Operation::AttachProgram, libc::EBUSY));
    });
}

#[test]
fn a_device_that_is_not_there_is_named() {
    bridged("a_device_that_is_not_there_is_named", Attach::Generic, false, None, |mut bridge| {
        let error = bridge.host().try_open(|config| config.interface = "none".to_owned()).err();
        let Some(DriverError::CannotOpen { operation, errno }) = error else { panic!("{error:?}") };
        assert_eq!((operation, errno.0), (Operation::FindDevice, libc::ENODEV));
    });
}
