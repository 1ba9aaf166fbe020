//! A completion queue that is not read.

use std::ptr::null_mut;

use stillwire_fi::abi::*;

use crate::processes::at;
use crate::rig::{Rig, accepted, close, pair};

const EAGAIN: isize = -(libc::EAGAIN as isize);

/// Entries that a queue holds which was opened without a size.
const QUEUE_ENTRIES: usize = 1 << 16;

/// Messages beyond those.
const MORE: usize = 300;

/// A buffer into which several messages go.
fn post_for_many(rig: &Rig, buffer: &mut [u8]) {
    let part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let message = FiMsg {
        msg_iov: &raw const part,
        desc: null_mut(),
        iov_count: 1,
        addr: ADDR_UNSPEC,
        context: at(7),
        data: 0,
    };
    // SAFETY: the buffer lives to the end of the test.
    accepted(&[], || unsafe { (rig.plain().recvmsg)(rig.ep, &raw const message, flag::MULTI_RECV) });
}

#[test]
fn peers_are_served_however_full_a_queue_is() {
    let (one, two, to_two, to_one) = pair();
    let third = Rig::new();
    let third_to_two = third.insert(&two.address());
    let (mut memory, mut own, mut many) = ([0u8; 64], [9u8; 8], vec![0u8; 8 * (QUEUE_ENTRIES + MORE) + 100]);
    let region = two.register(&mut memory, 5);
    let other = one.register(&mut own, 6);
    post_for_many(&two, &mut many);
    for i in 0..QUEUE_ENTRIES + MORE {
        let bytes = i.to_le_bytes();
        // SAFETY: injected bytes are copied at once.
        accepted(&[&two], || unsafe { (one.plain().inject)(one.ep, bytes.as_ptr().cast(), 8, to_two) });
    }
    // No entry has been read: the queue is full, and calls that would add to it are refused.
    let mut byte = [1u8; 8];
    let mut receive = || unsafe {
        // SAFETY: the buffer lives to the end of the test.
        (two.tagged().recv)(two.ep, byte.as_mut_ptr().cast(), 8, null_mut(), ADDR_UNSPEC, 1, 0, at(8))
    };
    let started = std::time::Instant::now();
    while receive() == 0 {
        assert!(started.elapsed().as_secs() < 60, "the queue does not become full");
        // Few of them: an endpoint does not take any number of receives.
        two.counted();
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(receive(), EAGAIN);

    // Requests of peers are served, and its own ones counted.
    let mut back = [0u8; 8];
    // SAFETY: buffers outlive the completions.
    unsafe {
        let start = b"8 bytes.".as_ptr().cast();
        accepted(&[&two], || (one.remote().write)(one.ep, start, 8, null_mut(), to_two, 0, 5, at(1)));
        assert_eq!((one.next(&[&two]).context, &memory[..8]), (1, &b"8 bytes."[..]));
        let place = back.as_mut_ptr().cast();
        accepted(&[&two], || (one.remote().read)(one.ep, place, 8, null_mut(), to_two, 0, 5, at(2)));
        assert_eq!((one.next(&[&two]).context, &back), (2, b"8 bytes."));
    }
    let _ = to_one;

    // A write whose completion goes to the full queue waits, and so do later ones. SAFETY: the bytes live on.
    unsafe {
        let write = third.remote().writedata;
        let start = b"9 bytes..".as_ptr().cast();
        accepted(&[&two], || write(third.ep, start, 9, null_mut(), 77, third_to_two, 8, 5, at(3)));
        accepted(&[&two], || {
            (third.remote().write)(third.ep, start, 9, null_mut(), third_to_two, 20, 5, at(4))
        });
        accepted(&[&two], || (one.remote().write)(one.ep, start, 9, null_mut(), to_two, 40, 5, at(5)));
    }
    assert_eq!(one.next(&[&two, &third]).context, 5);
    assert_eq!(third.poll(), None, "its queue is full");

    let (mut reported, mut heard) = (0, vec![false; QUEUE_ENTRIES + MORE]);
    for _ in 0..QUEUE_ENTRIES + MORE {
        let mut done = two.next(&[&one, &third]);
        if done.flags & flag::REMOTE_WRITE != 0 {
            assert_eq!(done.data, 77);
            reported += 1;
            done = two.next(&[&one, &third]);
        }
        assert_eq!((done.context, done.bytes, done.error), (7, 8, None));
        // SAFETY: a part of the buffer, complete.
        let number = unsafe { (done.buffer as *const [u8; 8]).read() };
        // Complete in any order, each once.
        assert!(!core::mem::replace(&mut heard[usize::from_le_bytes(number)], true));
    }
    assert_eq!((third.next(&[&two]).context, third.next(&[&two]).context), (3, 4));
    if reported == 0 {
        let done = two.next(&[&one, &third]);
        assert_eq!((done.flags & flag::REMOTE_WRITE != 0, done.data), (true, 77));
    }
    assert_eq!(
        (&memory[8..17], &memory[20..29], &memory[40..49]),
        (&b"9 bytes.."[..], &b"9 bytes.."[..], &b"9 bytes.."[..])
    );
    accepted(&[&two], receive);
    assert_eq!((close(region), close(other)), (0, 0));
}
