//! Frames that are longer than a chunk, over devices of a longer MTU.

use std::time::{Duration, Instant};

use drivers::fault::Faults;
use drivers::xdp::Attach;
use drivers::{Driver, Payload};

use crate::xdp::bridged::bridged;
use crate::xdp::conforms_with;

const MTU: u32 = 9000;

fn jumbo(name: &str, attach: Attach, v6: bool, faults: Option<Faults>) {
    conforms_with(name, attach, v6, faults, |bridge| bridge.mtu = MTU);
}

#[test]
fn long_frames_native_v4_conform() {
    jumbo("long_frames_native_v4_conform", Attach::Native, false, None);
}

#[test]
fn long_frames_generic_v6_conform() {
    jumbo("long_frames_generic_v6_conform", Attach::Generic, true, None);
}

/// The next frame that comes.
fn next(rail: &mut dyn Driver) -> Vec<u8> {
    let (mut came, start) = (None, Instant::now());
    while came.is_none() {
        assert!(start.elapsed() < Duration::from_secs(20), "nothing comes");
        rail.receive(1, &mut |frame| came = Some(frame.to_vec())).expect("a live rail");
    }
    came.unwrap_or_default()
}

/// Frames of all lengths around where a part ends, both ways, around the kernel.
#[test]
fn long_frames_pass_around_the_kernel() {
    for (attach, by_helper) in [(Attach::Native, false), (Attach::Generic, false), (Attach::Native, true)] {
        let name = "long_frames_pass_around_the_kernel";
        let ran = bridged(name, attach, false, None, |mut bridge| {
            (bridge.mtu, bridge.by_helper) = (MTU, by_helper);
            let (near, far) = (bridge.host(), bridge.host());
            let (a, mut b) = (near.open(), far.open());
            assert!(a.divides_frames() && b.divides_frames());
            assert_eq!(a.caps().frame_bytes_max, 9000 - 28);
            // The kernel gives a path's MTU in the namespace of the asking thread.
            let (mut a, to) = near.resolve(a, b.local_address());
            let _ = crate::xdp::numbers(&mut a, &mut b);
            let (sent, received) = (a.direct_frames().1, b.direct_frames().0);
            let longest = a.caps().frame_bytes_max;
            let ends = [1 << 11, 3798, 3926, 3968, 4096, 7638, 7680, 8022, 8192, longest];
            let mut frames = 0;
            for bytes in ends.into_iter().flat_map(|end| end - 2..=end + 2).filter(|bytes| *bytes <= longest)
            {
                let frame: Vec<u8> = (0..=250u8).cycle().skip(bytes % 251).take(bytes).collect();
                a.lease().expect("a free slot")[..bytes].copy_from_slice(&frame);
                a.commit(to, bytes, Payload::EMPTY);
                assert_eq!(a.flush(), Ok(1));
                let came = next(&mut b);
                assert!(came == frame, "{bytes} bytes: {} came, or altered", came.len());
                frames += 1;
            }
            assert_eq!(a.completed_total(), a.staged_total());
            assert_eq!(a.direct_frames().1 - sent, frames);
            assert_eq!(b.direct_frames().0 - received, frames);
        });
        if !ran {
            return;
        }
    }
}

/// On a device of the usual MTU nothing is divided, and nothing asked for that an old kernel does not have.
#[test]
fn short_frames_are_not_divided() {
    bridged("short_frames_are_not_divided", Attach::Native, false, None, |mut bridge| {
        assert!(!bridge.host().open().divides_frames());
    });
}
