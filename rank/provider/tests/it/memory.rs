//! Reading, writing and operating on peers' memory.

use core::ffi::c_void;
use std::ptr::null_mut;

use stillwire_fi::abi::*;

use crate::rig::{Rig, accepted, close, pair, pattern};

fn at(number: usize) -> *mut c_void {
    number as *mut c_void
}

#[test]
fn peers_memory_is_written_and_read() {
    let (one, two, to_two, _) = pair();
    let mut memory = vec![0u8; 1_000_000];
    let region = two.register(&mut memory, 42);
    for (bytes, offset) in
        [(0usize, 0u64), (1, 999_999), (8, 16), (16_384, 100), (16_385, 200), (900_000, 1000)]
    {
        let sent = pattern(bytes, 1);
        let mut back = vec![0u8; bytes];
        // SAFETY: buffers live until the completions have been read.
        unsafe {
            accepted(&[&two], || {
                (one.remote().write)(
                    one.ep,
                    sent.as_ptr().cast(),
                    bytes,
                    null_mut(),
                    to_two,
                    offset,
                    42,
                    at(1),
                )
            });
            let done = one.next(&[&two]);
            assert_eq!((done.context, done.flags, done.error), (1, flag::RMA | flag::WRITE, None));
            let start = usize::try_from(offset).unwrap();
            assert_eq!(memory[start..start + bytes], sent);
            accepted(&[&two], || {
                (one.remote().read)(
                    one.ep,
                    back.as_mut_ptr().cast(),
                    bytes,
                    null_mut(),
                    to_two,
                    offset,
                    42,
                    at(2),
                )
            });
            let done = one.next(&[&two]);
            assert_eq!((done.context, done.flags, done.error), (2, flag::RMA | flag::READ, None));
        }
        assert_eq!(back, sent);
    }
    assert_eq!(close(region), 0);
}

#[test]
fn what_the_owner_has_not_opened_is_refused() {
    let (one, two, to_two, _) = pair();
    let mut memory = vec![7u8; 1000];
    let region = two.register(&mut memory, 1);
    let payload = vec![9u8; 100_000];
    let mut buffer = vec![0u8; 100_000];
    let cases =
        [(2u64, 0u64, 8usize, errno::ENOKEY), (1, 993, 8, libc::EINVAL), (1, 0, 100_000, libc::EINVAL)];
    for (key, address, bytes, error) in cases {
        // SAFETY: buffers live to the end.
        unsafe {
            accepted(&[&two], || {
                (one.remote().write)(
                    one.ep,
                    payload.as_ptr().cast(),
                    bytes,
                    null_mut(),
                    to_two,
                    address,
                    key,
                    at(1),
                )
            });
            assert_eq!(one.next(&[&two]).error.map(|error| error.0), Some(error), "write {bytes}");
            accepted(&[&two], || {
                (one.remote().read)(
                    one.ep,
                    buffer.as_mut_ptr().cast(),
                    bytes,
                    null_mut(),
                    to_two,
                    address,
                    key,
                    at(1),
                )
            });
            assert_eq!(one.next(&[&two]).error.map(|error| error.0), Some(error), "read {bytes}");
        }
    }
    assert!(memory.iter().all(|byte| *byte == 7));
    assert_eq!(close(region), 0);
    // SAFETY: buffers live to the end.
    accepted(&[&two], || unsafe {
        (one.remote().write)(one.ep, payload.as_ptr().cast(), 8, null_mut(), to_two, 0, 1, at(1))
    });
    assert_eq!(one.next(&[&two]).error.map(|error| error.0), Some(errno::ENOKEY), "closed");
}

/// Writes `number` to the start of the region with key 5.
fn inject(one: &Rig, two: &Rig, to_two: u64, number: u64) {
    let bytes = number.to_le_bytes();
    // SAFETY: injected bytes are copied at once.
    accepted(&[two], || unsafe { (one.remote().inject)(one.ep, bytes.as_ptr().cast(), 8, to_two, 0, 5) });
}

#[test]
fn an_injected_write_is_counted_when_the_peer_can_see_it() {
    const WRITES: u64 = 500;
    let (one, two, to_two, _) = pair();
    let mut memory = vec![0u8; 8];
    let region = two.register(&mut memory, 5);
    for number in 1..=WRITES {
        inject(&one, &two, to_two, number);
        while one.counted() < number {
            two.counted();
        }
        assert_eq!(memory, number.to_le_bytes(), "counted before it was there");
    }
    assert_eq!(one.poll(), None, "an injected write has no entry");
    assert_eq!(close(region), 0);
}

/// FI_ORDER_WAW, also of requests that find no window and are announced, while later requests find one again.
#[test]
fn writes_to_one_place_happen_in_order() {
    const WRITES: u64 = 400;
    for _ in 0..20 {
        let (one, two, to_two, _) = pair();
        let mut memory = vec![0u8; 8];
        let region = two.register(&mut memory, 5);
        for number in 1..=WRITES {
            inject(&one, &two, to_two, number);
        }
        while one.counted() < WRITES {
            two.counted();
        }
        assert_eq!(memory, WRITES.to_le_bytes(), "an earlier write came after the last one");
        assert_eq!(close(region), 0);
    }
}

#[test]
fn data_beside_a_write_reaches_the_peers_queue() {
    let (one, two, to_two, to_one) = pair();
    let mut memory = vec![0u8; 40_000];
    let region = two.register(&mut memory, 5);
    for bytes in [8usize, 40_000] {
        let payload = pattern(bytes, 2);
        // SAFETY: the payload lives until the completion has been read.
        accepted(&[&two], || unsafe {
            (one.remote().writedata)(
                one.ep,
                payload.as_ptr().cast(),
                bytes,
                null_mut(),
                77,
                to_two,
                0,
                5,
                at(1),
            )
        });
        let reported = two.next(&[&one]);
        assert_eq!(reported.flags, flag::REMOTE_CQ_DATA | flag::RMA | flag::REMOTE_WRITE);
        assert_eq!((reported.data, reported.source), (77, to_one));
        assert_eq!(memory[..bytes], payload, "told before it was there");
        one.next(&[&two]);
    }
    assert_eq!(close(region), 0);
}

#[test]
fn atomic_operations_change_memory_and_answer_with_what_was_there() {
    const SUM: u32 = 2;
    const CSWAP: u32 = 12;
    const INT64: u32 = 6;
    let (one, two, to_two, _) = pair();
    let mut memory = 40i64.to_le_bytes().to_vec();
    let region = two.register(&mut memory, 5);
    let (add, mut before) = (2i64, 0i64);
    // SAFETY: buffers live until the completions have been read.
    unsafe {
        let operand: *const c_void = (&raw const add).cast();
        let result: *mut c_void = (&raw mut before).cast();
        accepted(&[&two], || {
            (one.atomics().write)(one.ep, operand, 1, null_mut(), to_two, 0, 5, INT64, SUM, at(1))
        });
        assert_eq!(one.next(&[&two]).flags, flag::ATOMIC | flag::WRITE);
        assert_eq!(memory, 42i64.to_le_bytes());
        accepted(&[&two], || {
            (one.atomics().readwrite)(
                one.ep,
                operand,
                1,
                null_mut(),
                result,
                null_mut(),
                to_two,
                0,
                5,
                INT64,
                SUM,
                at(2),
            )
        });
        assert_eq!(one.next(&[&two]).flags, flag::ATOMIC | flag::READ);
        assert_eq!((before, &memory[..]), (42, &44i64.to_le_bytes()[..]));
        let (swap, compare) = (7i64, 44i64);
        accepted(&[&two], || {
            (one.atomics().compwrite)(
                one.ep,
                (&raw const swap).cast(),
                1,
                null_mut(),
                (&raw const compare).cast(),
                null_mut(),
                result,
                null_mut(),
                to_two,
                0,
                5,
                INT64,
                CSWAP,
                at(3),
            )
        });
        one.next(&[&two]);
        assert_eq!((before, &memory[..]), (44, &7i64.to_le_bytes()[..]));
        let unknown = (one.atomics().write)(one.ep, operand, 1, null_mut(), to_two, 0, 5, 12, SUM, at(1));
        assert_eq!(unknown, -(libc::EOPNOTSUPP as isize), "long double");
    }
    assert_eq!(close(region), 0);
}
