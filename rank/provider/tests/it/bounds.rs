//! A peer's request to our memory can neither crash us nor exceed our bounds.

use std::ptr::null_mut;
use std::time::{Duration, Instant};

use stillwire_fi::abi::*;

use crate::processes::{Peer, address, at, hear, hex, is_child, say};
use crate::rig::{Done, Rig, accepted, close, pair, pattern};

/// The size of a piece in the provider, in bytes.
const PIECE: usize = 4 << 20;

/// All addresses, as MPI libraries register them for windows without bounds.
fn register_everything(rig: &Rig, key: u64) -> *mut FidMr {
    let mut region = null_mut();
    let access = flag::REMOTE_READ | flag::REMOTE_WRITE;
    // SAFETY: only the tests use the memory named in it.
    let answer = unsafe {
        let reg = (*(*rig.domain).mr).reg;
        reg(rig.domain.cast(), std::ptr::null(), usize::MAX, access, 0, key, 0, &raw mut region, null_mut())
    };
    assert_eq!(answer, 0);
    region
}

/// Memory of this process, whose second half has `protection`. An unmapped half could be taken by others
/// meanwhile.
fn half_missing(bytes: usize, protection: i32) -> usize {
    // SAFETY: a new mapping, of which half is changed.
    unsafe {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start = libc::mmap(null_mut(), 2 * bytes, both, kind, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        let answer = libc::mprotect(start.byte_add(bytes), bytes, protection);
        assert_eq!(answer, 0);
        start as usize
    }
}

fn write(one: &Rig, two: &Rig, to: u64, payload: &[u8], place: usize) -> Done {
    // SAFETY: the payload outlives the completion.
    accepted(&[two], || unsafe {
        let start = payload.as_ptr().cast();
        (one.remote().write)(one.ep, start, payload.len(), null_mut(), to, place as u64, 8, at(1))
    });
    one.next(&[two])
}

fn read(one: &Rig, two: &Rig, to: u64, buffer: &mut [u8], place: usize) -> Done {
    // SAFETY: the buffer outlives the completion.
    accepted(&[two], || unsafe {
        let start = buffer.as_mut_ptr().cast();
        (one.remote().read)(one.ep, start, buffer.len(), null_mut(), to, place as u64, 8, at(2))
    });
    one.next(&[two])
}

#[test]
fn memory_that_the_peer_does_not_have_is_an_error_of_the_request() {
    let (one, two, to_two, _) = pair();
    let region = register_everything(&two, 8);
    let fault = Some((libc::EFAULT, 0));
    // One frame, a payload of its own, several pieces.
    for half in [1 << 16, 1 << 20, 2 * PIECE] {
        let hidden = half_missing(half, libc::PROT_NONE);
        let constant = half_missing(half, libc::PROT_READ);
        for bytes in [8, half / 2, half] {
            let sent = pattern(bytes, 3);
            let mut back = vec![0; bytes];
            for start in [hidden, constant] {
                assert_eq!(
                    write(&one, &two, to_two, &sent, start).error,
                    None,
                    "{bytes} bytes that are there"
                );
                assert_eq!(read(&one, &two, to_two, &mut back, start).error, None);
                assert!(back == sent, "{bytes} bytes came back otherwise");
                for place in [start + half, start + half - 4] {
                    assert_eq!(write(&one, &two, to_two, &sent, place).error, fault, "{bytes} bytes");
                    let read = read(&one, &two, to_two, &mut back, place).error;
                    assert_eq!(read, if start == constant { None } else { fault }, "{bytes} bytes");
                }
            }
            assert_eq!(read(&one, &two, to_two, &mut back, 8).error, fault);
        }
    }
    assert_eq!(close(region), 0);
}

#[test]
fn operations_on_memory_that_the_peer_does_not_have_are_errors_of_the_request() {
    const SUM: u32 = 2;
    const READ: u32 = 10;
    const INT64: u32 = 6;
    let (one, two, to_two, _) = pair();
    let region = register_everything(&two, 8);
    let constant = half_missing(4096, libc::PROT_READ);
    let operand = 5i64;
    let mut before = 0i64;
    let mut fetch = |place: usize, op: u32| {
        // SAFETY: operand and result outlive the completion.
        accepted(&[&two], || unsafe {
            (one.atomics().readwrite)(
                one.ep,
                (&raw const operand).cast(),
                1,
                null_mut(),
                (&raw mut before).cast(),
                null_mut(),
                to_two,
                place as u64,
                8,
                INT64,
                op,
                at(1),
            )
        });
        (one.next(&[&two]).error, before)
    };
    assert_eq!(fetch(constant, SUM), (None, 0));
    assert_eq!(fetch(constant, READ), (None, 5));
    assert_eq!(fetch(constant + 4096, READ), (None, 0), "reading needs no right to write");
    assert_eq!(fetch(constant + 4096, SUM).0, Some((libc::EFAULT, 0)));
    assert_eq!(fetch(16, SUM).0, Some((libc::EFAULT, 0)));
    assert_eq!(fetch(constant, READ), (None, 5));
    assert_eq!(close(region), 0);
}

/// Both ask each other for more than either holds for the other, while their own payloads fill the link.
#[test]
fn peers_that_ask_much_of_each_other_are_both_served() {
    const LONG: usize = 20_000;
    const READS: usize = 24;
    const WRITES: usize = 1500;
    let (one, two, to_two, to_one) = pair();
    let mut memories = [pattern(2 * PIECE, 1), pattern(2 * PIECE, 2)];
    let mut windows = [vec![0u8; LONG], vec![0u8; LONG]];
    let regions = [
        one.register(&mut memories[0], 5),
        two.register(&mut memories[1], 5),
        one.register(&mut windows[0], 6),
        two.register(&mut windows[1], 6),
    ];
    let payload = pattern(LONG, 7);
    let mut back = vec![vec![vec![0u8; 2 * PIECE - 3]; READS]; 2];
    let sides = [(&one, to_two), (&two, to_one)];
    let (mut reads, mut writes, mut done) = ([0; 2], [0; 2], [0; 2]);
    let started = Instant::now();
    while done != [READS + WRITES; 2] {
        for (side, (rig, to)) in sides.into_iter().enumerate() {
            // SAFETY: buffers outlive the completions.
            unsafe {
                if reads[side] < READS {
                    let place = &mut back[side][reads[side]];
                    let (start, bytes) = (place.as_mut_ptr().cast(), place.len());
                    let answer = (rig.remote().read)(rig.ep, start, bytes, null_mut(), to, 3, 5, at(2));
                    reads[side] += usize::from(answer == 0);
                } else if writes[side] < WRITES {
                    let start = payload.as_ptr().cast();
                    let answer = (rig.remote().write)(rig.ep, start, LONG, null_mut(), to, 0, 6, at(1));
                    writes[side] += usize::from(answer == 0);
                }
            }
            if reads[side] + writes[side] == READS + WRITES || done[side] + 64 < reads[side] + writes[side] {
                while let Some(completion) = rig.poll() {
                    assert_eq!(completion.error, None);
                    done[side] += 1;
                }
            }
        }
        assert!(
            started.elapsed() < Duration::from_secs(120),
            "{reads:?} reads, {writes:?} writes, {done:?} done"
        );
    }
    for (side, copies) in back.iter().enumerate() {
        assert!(
            copies.iter().all(|copy| copy[..] == memories[1 - side][3..]),
            "what was read is not what is there"
        );
    }
    assert!(windows.iter().all(|window| *window == payload));
    for region in regions {
        assert_eq!(close(region), 0);
    }
}

/// Most memory that this process has had, bytes.
fn memory_most() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

const ASKED: usize = 100;

/// The owner of the read memory: it reports how much more memory it needed. The other child asks, and takes nothing.
fn owner_or_asker() {
    let rig = Rig::new();
    say(&hex(&rig.address()));
    let to = hear();
    if to == "own" {
        let mut memory = pattern(PIECE, 5);
        let region = rig.register(&mut memory, 9);
        let before = memory_most();
        say("registered");
        while hear() == "how much" {
            say(&format!("{}", memory_most() - before));
        }
        assert_eq!(close(region), 0);
        return;
    }
    let owner = rig.insert(&address(&to));
    let mut buffers = vec![vec![1u8; PIECE]; ASKED];
    for buffer in &mut buffers {
        // SAFETY: the buffers outlive the completions.
        accepted(&[], || unsafe {
            (rig.remote().read)(rig.ep, buffer.as_mut_ptr().cast(), PIECE, null_mut(), owner, 0, 9, at(1))
        });
    }
    // SAFETY: stops this process.
    unsafe { libc::raise(libc::SIGSTOP) };
    for _ in 0..ASKED {
        assert_eq!(rig.next(&[]).error, None);
    }
    assert!(buffers.iter().all(|buffer| *buffer == pattern(PIECE, 5)));
    say("read");
}

#[test]
fn a_peer_that_takes_nothing_does_not_make_its_target_hold_more_and_more() {
    if is_child() {
        return owner_or_asker();
    }
    let test = "bounds::a_peer_that_takes_nothing_does_not_make_its_target_hold_more_and_more";
    let (mut owner, mut asker) = (Peer::start(test), Peer::start(test));
    let place = owner.hear();
    asker.hear();
    owner.send("own");
    assert_eq!(owner.hear(), "registered");
    asker.send(&place);
    asker.stops();
    // The owner's helper has long processed all arrived requests; the memory still held would never be freed
    // again.
    std::thread::sleep(Duration::from_millis(500));
    owner.send("how much");
    let held: usize = owner.hear().parse().unwrap();
    // Four pieces are held and four kept for the next copies, with frames and bookkeeping; without a bound it would be 400 MB.
    assert!(held < 12 * PIECE, "{held} bytes for {ASKED} reads of {PIECE}");
    asker.goes_on();
    assert_eq!(asker.hear(), "read");
    asker.ends_well();
    owner.send("end");
    owner.ends_well();
}

/// The child stops in the middle of a write, and later receives its outcome.
fn writer_that_stops() {
    let rig = Rig::new();
    let owner = rig.insert(&address(&hear()));
    let payload = pattern(16 * PIECE, 6);
    // SAFETY: the payload outlives the completion.
    accepted(&[], || unsafe {
        let start = payload.as_ptr().cast();
        (rig.remote().write)(rig.ep, start, payload.len(), null_mut(), owner, 0, 9, at(1))
    });
    // SAFETY: stops this process.
    unsafe { libc::raise(libc::SIGSTOP) };
    say(&format!("{:?}", rig.next(&[]).error));
}

#[test]
fn a_region_can_be_closed_although_a_peer_has_died_or_stopped_in_the_middle_of_a_write() {
    if is_child() {
        return writer_that_stops();
    }
    let test = "bounds::a_region_can_be_closed_although_a_peer_has_died_or_stopped_in_the_middle_of_a_write";
    let mut peer = Peer::over(test, "udp");
    let rig = Rig::new();
    let mut memory = vec![0u8; 16 * PIECE];
    let region = rig.register(&mut memory, 9);
    peer.send(&hex(&rig.address()));
    peer.stops();
    rig.counted();
    assert_eq!(close(region), 0);
    let landed = memory.clone();
    assert!(landed != pattern(16 * PIECE, 6), "it was to stop in the middle");
    peer.goes_on();
    // The pieces that were open are cut off; one that comes later finds no region.
    let heard = peer.hear();
    assert!(
        [libc::ECANCELED, errno::ENOKEY].map(|error| format!("{:?}", Some((error, 0)))).contains(&heard),
        "{heard}"
    );
    assert!(memory == landed, "a closed region was written to");
    // The key is free, and its memory works.
    let region = rig.register(&mut memory, 9);
    let to_itself = rig.insert(&rig.address());
    // SAFETY: the bytes are copied at once.
    accepted(&[], || unsafe { (rig.remote().inject)(rig.ep, b"anew".as_ptr().cast(), 4, to_itself, 0, 9) });
    while rig.counted() == 0 {}
    assert_eq!(&memory[..4], b"anew");
    assert_eq!(close(region), 0);
    peer.ends_well();
}
