//! Several short frames in one datagram.

use std::net::UdpSocket;
use std::time::Duration;

use drivers::pack;
use drivers::udp::UdpAddress;
use drivers::xdp::Attach;
use drivers::{Driver, Payload, Wake};
use transport::AddressId;

use crate::xdp::bridged::bridged;

fn commit(rail: &mut dyn Driver, to: AddressId, frame: &[u8]) {
    let half = frame.len() / 2;
    rail.lease().expect("a free slot")[..half].copy_from_slice(&frame[..half]);
    let owner = std::sync::Arc::new(frame.to_vec());
    rail.commit(to, half, Payload::shared(&owner, half..frame.len()).expect("in range"));
}

/// The received frames, in order of arrival, taken `each` at a time.
fn come(rail: &mut dyn Driver, frames: usize, each: usize) -> Vec<Vec<u8>> {
    let mut came = Vec::new();
    while came.len() < frames && rail.wait(Duration::from_millis(500)).expect("a live rail") == Wake::Frame {
        let before = came.len();
        let given = rail.receive(each, &mut |frame| came.push(frame.to_vec())).expect("a live rail");
        assert!(given <= each && came.len() == before + given);
    }
    came
}

/// Has the neighbours known, so that frames leave around the kernel.
fn meet(a: &mut dyn Driver, to: AddressId, b: &mut dyn Driver) {
    for _ in 0..100 {
        commit(a, to, b"here");
        a.flush().expect("a live rail");
        if come(b, 1, 8) == [b"here"] {
            a.receive(8, &mut |_| ()).expect("a live rail");
            return;
        }
    }
    panic!("nothing comes");
}

#[test]
fn what_goes_together_is_what_fits_and_goes_to_one_address() {
    let name = "what_goes_together_is_what_fits_and_goes_to_one_address";
    bridged(name, Attach::Native, false, None, |mut bridge| {
        let (host, other) = (bridge.host(), bridge.host());
        let rail = host.open();
        let plain = |host: &crate::xdp::bridged::Host| {
            let socket = host.run(|config| UdpSocket::bind(config.bind)).expect("an address");
            socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a socket");
            let address = UdpAddress(socket.local_addr().expect("bound"));
            (socket, address)
        };
        let ((here, at_here), (there, at_there)) = (plain(&other), plain(&other));
        // The kernel gives a path's MTU in the namespace of the asking thread.
        let (rail, to_here) = host.resolve(rail, at_here.into());
        let (mut rail, to_there) = host.resolve(rail, at_there.into());
        let next = |socket: &UdpSocket| {
            let mut datagram = vec![0; 2000];
            let bytes = socket.recv(&mut datagram).expect("it was sent");
            datagram.truncate(bytes);
            datagram
        };
        for to in [to_here, to_there] {
            commit(&mut rail, to, b"first");
            rail.flush().expect("a live rail");
        }
        assert_eq!(next(&here), b"first");
        assert_eq!(next(&there), b"first");
        std::thread::sleep(Duration::from_millis(50));
        rail.receive(8, &mut |_| ()).expect("a live rail");
        // A single one is as it was; others go together as long as they fit, their payload behind them.
        let frames: Vec<Vec<u8>> = (1..=13).map(|i| vec![i; 120]).collect();
        let sent_before = rail.counters().frames_sent;
        commit(&mut rail, to_here, b"alone");
        rail.flush().expect("a live rail");
        assert_eq!(next(&here), b"alone");
        for frame in &frames {
            commit(&mut rail, to_here, frame);
        }
        commit(&mut rail, to_there, b"elsewhere");
        commit(&mut rail, to_here, b"after it");
        assert_eq!(rail.flush(), Ok(15));
        let twelve = pack::whole(frames[..12].iter().map(Vec::as_slice));
        assert!(next(&here) == twelve, "1472 bytes hold 12 frames of 120");
        assert_eq!(next(&here), frames[12]);
        assert_eq!(next(&here), b"after it");
        assert_eq!(next(&there), b"elsewhere");
        let counters = rail.counters();
        assert_eq!(counters.frames_sent - sent_before, 16);
        assert_eq!(counters.lost_on_send(), 0, "{counters:?}");
        // Neither a frame as long as the path takes, nor one that would be taken for a pack.
        let long = vec![9; 1472];
        for frame in [b"one".as_slice(), &long, b"two", b"PACKed"] {
            commit(&mut rail, to_here, frame);
        }
        rail.flush().expect("a live rail");
        for frame in [b"one".as_slice(), &long, b"two", b"PACKed"] {
            assert!(next(&here) == frame, "a frame of {} bytes", frame.len());
        }
    });
}

#[test]
fn packs_come_apart_whoever_receives_them() {
    // The rail, its companion (a frame that comes for an address that is no neighbour yet), and one over UDP.
    for v6 in [false, true] {
        let name = "packs_come_apart_whoever_receives_them";
        let ran = bridged(name, Attach::Native, v6, None, |mut bridge| {
            let frames: Vec<Vec<u8>> = (0..60u8).map(|i| vec![i; 1 + usize::from(i) * 3 % 150]).collect();
            let (near, far, kernel) = (bridge.host(), bridge.host(), bridge.host());
            let (mut a, mut xdp, mut udp) = (near.open(), far.open(), kernel.open_udp());
            for b in [&mut xdp as &mut dyn Driver, &mut udp] {
                let to = a.resolve(&b.local_address()).expect("on the same bridge");
                meet(&mut a, to, b);
                let (direct, received) = (a.direct_frames().1, b.counters().frames_received);
                for each in [1, 2, 7, 64] {
                    for frame in &frames {
                        commit(&mut a, to, frame);
                    }
                    assert_eq!(a.flush(), Ok(frames.len()));
                    assert_eq!(come(b, frames.len(), each), frames, "{each} at a time");
                    assert_eq!(a.completed_total(), a.staged_total());
                }
                assert_eq!(a.direct_frames().1 - direct, 4 * frames.len() as u64, "around the kernel");
                let counters = b.counters();
                assert_eq!(counters.frames_received - received, 4 * frames.len() as u64, "{counters:?}");
                assert_eq!(counters.lost_malformed, 0);
            }
            // To itself: by the companion, frame by frame.
            let to = a.resolve(&a.local_address()).expect("its own address");
            frames.iter().for_each(|frame| commit(&mut a, to, frame));
            assert_eq!(a.flush(), Ok(frames.len()));
            assert_eq!(come(&mut a, frames.len(), 5), frames);
        });
        if !ran {
            return;
        }
    }
}

#[test]
fn what_only_begins_as_a_pack_is_counted_and_nothing_else_is_lost() {
    let name = "what_only_begins_as_a_pack_is_counted_and_nothing_else_is_lost";
    bridged(name, Attach::Native, false, None, |mut bridge| {
        let (near, far, kernel) = (bridge.host(), bridge.host(), bridge.host());
        let stranger = near.run(|config| UdpSocket::bind(config.bind)).expect("an address");
        let (mut xdp, mut udp) = (far.open(), kernel.open_udp());
        let pack = pack::whole([b"one".as_slice(), b"two"]);
        let datagrams: [&[u8]; 5] = [b"before", &pack[..pack.len() - 1], &pack, b"PACK", b"after"];
        for rail in [&mut xdp as &mut dyn Driver, &mut udp] {
            let UdpAddress(at) = UdpAddress::try_from(&rail.local_address()).expect("of a socket");
            for datagram in datagrams {
                stranger.send_to(datagram, at).expect("on the same bridge");
            }
            assert_eq!(come(rail, 4, 3), [b"before".as_slice(), b"one", b"two", b"after"]);
            assert_eq!(rail.counters().lost_malformed, 2);
        }
    });
}

#[test]
fn what_is_thrown_away_is_counted_frame_by_frame() {
    let name = "what_is_thrown_away_is_counted_frame_by_frame";
    bridged(name, Attach::Native, false, None, |mut bridge| {
        let (near, far) = (bridge.host(), bridge.host());
        let (mut a, mut b) = (near.open(), far.open());
        let to = a.resolve(&b.local_address()).expect("on the same bridge");
        meet(&mut a, to, &mut b);
        let before = *a.counters();
        let stage = |a: &mut drivers::xdp::XdpDriver| (0..30u8).for_each(|i| commit(a, to, &[i; 100]));
        stage(&mut a);
        assert_eq!(a.staged_total() - a.completed_total(), 30);
        assert!(a.drain().expect("a live rail").is_ready());
        assert_eq!(a.counters().lost_drained - before.lost_drained, 30);
        stage(&mut a);
        a.forget(to);
        a.flush().expect("a live rail");
        assert_eq!(a.counters().lost_no_address - before.lost_no_address, 30);
        assert_eq!(a.completed_total(), a.staged_total());
    });
}
