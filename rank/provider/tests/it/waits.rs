//! Waiting for completions: for several at once, until another thread signals the end.

use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use stillwire_fi::abi::*;

use crate::processes::at;
use crate::rig::{Rig, accepted, close, getinfo, provider};

const EAGAIN: isize = -(libc::EAGAIN as isize);
const THREADS: usize = 4;

fn queue(rig: &Rig, wait_cond: u32) -> (i32, *mut FidCq) {
    let mut opened = null_mut();
    // SAFETY: as fi_cq_open(3) says.
    let answer = unsafe {
        let mut attr: FiCqAttr = core::mem::zeroed();
        (attr.format, attr.wait_obj, attr.wait_cond) = (CQ_FORMAT_CONTEXT, WAIT_FD, wait_cond);
        ((*(*rig.domain).ops).cq_open)(rig.domain, &raw mut attr, &raw mut opened, null_mut())
    };
    (answer, opened)
}

/// One more endpoint of the rig's domain, with completions in this queue.
fn endpoint(rig: &Rig, queue: *mut FidCq) -> *mut FidEp {
    let mut ep = null_mut();
    // SAFETY: as fi_endpoint(3) says.
    unsafe {
        let info = getinfo(null()).unwrap();
        assert_eq!(((*(*rig.domain).ops).endpoint)(rig.domain, info, &raw mut ep, null_mut()), 0);
        let ops = &*(*ep).fid.ops;
        assert_eq!((ops.bind)(ep.cast(), queue.cast(), flag::SEND | flag::RECV), 0);
        assert_eq!((ops.bind)(ep.cast(), rig.vector.cast(), 0), 0);
        assert_eq!((ops.control)(ep.cast(), CONTROL_ENABLE, null_mut()), 0);
    }
    ep
}

#[test]
fn a_threshold_is_waited_for() {
    let rig = Rig::new();
    let (answer, queue_of_two) = queue(&rig, CQ_COND_THRESHOLD);
    assert_eq!(answer, 0);
    let ep = endpoint(&rig, queue_of_two);
    let mut entries = [0usize; 8];
    let mut read = |count: usize, least: usize, timeout_ms: i32| {
        // SAFETY: room for `count` entries.
        unsafe {
            let ops = &*(*queue_of_two).ops;
            (ops.sread)(queue_of_two, entries.as_mut_ptr().cast(), count, at(least), timeout_ms)
        }
    };
    let cancelled = |context: usize| {
        let mut buffer = [0u8; 8];
        // SAFETY: taken back before the buffer goes.
        unsafe {
            let recv = (*(*ep).msg).recv;
            accepted(&[], || recv(ep, buffer.as_mut_ptr().cast(), 8, null_mut(), ADDR_UNSPEC, at(context)));
            assert_eq!(
                ((*(*ep).fid.ops.cast::<FiOps>()).size > 0, ((*(*ep).ops).cancel)(ep.cast(), at(context))),
                (true, 0)
            );
        }
    };
    // Sends to a peer of the same process: each leaves an entry.
    let to = rig.insert(&rig.address());
    let send = |context: usize| {
        // SAFETY: eight bytes that live for ever.
        accepted(&[&rig], || unsafe {
            ((*(*ep).msg).send)(ep, b"whatever".as_ptr().cast(), 8, null_mut(), to, at(context))
        });
    };
    let mut buffers = [[0u8; 8]; 3];
    for (i, buffer) in buffers.iter_mut().enumerate() {
        // SAFETY: the buffers outlive the rig's endpoint.
        accepted(&[], || unsafe {
            (rig.plain().recv)(rig.ep, buffer.as_mut_ptr().cast(), 8, null_mut(), ADDR_UNSPEC, at(i))
        });
    }
    send(1);
    let started = Instant::now();
    assert_eq!(read(8, 2, 300), 1, "what there is when the time is over");
    assert!(started.elapsed() >= Duration::from_millis(300), "one entry is less than two");
    send(2);
    send(3);
    assert_eq!(read(8, 2, 60_000), 2);
    assert_eq!(read(8, 1, 0), EAGAIN);
    // The wait ends at the entries that the call has room for; a failure ends it, too.
    cancelled(9);
    assert_eq!(read(8, 5, 60_000), -(errno::EAVAIL as isize));
    // SAFETY: zeros are a value.
    let mut error: FiCqErrEntry = unsafe { core::mem::zeroed() };
    // SAFETY: a place for one entry.
    assert_eq!(unsafe { ((*(*queue_of_two).ops).readerr)(queue_of_two, &raw mut error, 0) }, 1);
    assert_eq!(queue(&rig, 7).0, -libc::ENOSYS, "a condition that nobody knows");
    assert_eq!((close(ep), close(queue_of_two)), (0, 0));
}

/// Reads one entry of the rig's queue.
fn read(rig: &Rig, timeout_ms: i32) -> isize {
    let mut entry = [0u8; size_of::<FiCqTaggedEntry>()];
    // SAFETY: room for one entry.
    unsafe { ((*(*rig.queue).ops).sread)(rig.queue, entry.as_mut_ptr().cast(), 1, null(), timeout_ms) }
}

#[test]
fn a_signal_wakes_all_who_wait() {
    const LONGEST_MS: i32 = 30_000;
    let rig = Rig::with(0, WAIT_FD);
    let entering = AtomicUsize::new(0);
    // SAFETY: a queue of ours.
    let signal = || unsafe { ((*(*rig.queue).ops).signal)(rig.queue) };
    let (rig, entering) = (&rig, &entering);
    // A thread may be late on its way in: such a round proves nothing.
    let woken = |_: usize| {
        entering.store(0, Ordering::SeqCst);
        let started = Instant::now();
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(move || {
                        entering.fetch_add(1, Ordering::SeqCst);
                        read(rig, LONGEST_MS)
                    })
                })
                .collect();
            while entering.load(Ordering::SeqCst) < THREADS {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(signal(), 0);
            assert!(waiting.into_iter().all(|thread| thread.join().unwrap() == EAGAIN));
        });
        started.elapsed() < Duration::from_millis(LONGEST_MS as u64)
    };
    assert!((0..3).any(woken), "some slept on");
    // One that comes while no thread waits is for the next.
    assert_eq!(signal(), 0);
    let started = Instant::now();
    assert_eq!(read(rig, LONGEST_MS), EAGAIN);
    assert!(started.elapsed() < Duration::from_millis(LONGEST_MS as u64));
    assert_eq!(read(rig, 0), EAGAIN);
}

#[test]
fn flags_of_getinfo_are_honoured() {
    let ask = |node: &core::ffi::CStr, flags: u64, hints: *const FiInfo| {
        let mut info = null_mut();
        // SAFETY: as libfabric calls it.
        let answer = unsafe {
            (provider().getinfo)(version(1, 20), node.as_ptr(), c"5000".as_ptr(), flags, hints, &raw mut info)
        };
        (answer, !info.is_null())
    };
    let none = (-libc::ENODATA, false);
    assert_eq!(ask(c"localhost", 0, null()), (0, true));
    assert_eq!(ask(c"localhost", flag::NUMERICHOST, null()), none);
    assert_eq!(ask(c"127.0.0.1", flag::NUMERICHOST, null()), (0, true));
    // For any hints, and any call: there is this provider. SAFETY: zeros are a value of every field.
    let mut hints: FiInfo = unsafe { core::mem::zeroed() };
    hints.caps = flag::HMEM;
    assert_eq!(ask(c"127.0.0.1", 0, &raw const hints), none);
    assert_eq!(ask(c"no such host", flag::PROV_ATTR_ONLY, &raw const hints), (0, true));
}
