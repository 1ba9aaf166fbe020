//! Any fault of a program, a peer or a launcher gets an error number or a message, never a crash and never a call that
//! does not return.

use core::ffi::c_int;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use stillwire_fi::abi::*;

use crate::processes::{Peer, address, at, hear, hex, is_child, say};
use crate::rig::{ADDRESS_BYTES, Rig, accepted, close, getinfo, pair, pattern, provider};

const EINVAL: isize = -(libc::EINVAL as isize);
const EBADF: isize = -(libc::EBADF as isize);
const ENOMEM: isize = -(libc::ENOMEM as isize);
const EMSGSIZE: isize = -(libc::EMSGSIZE as isize);

/// Longest time that closing may take although peers are gone: the wait for a silent peer, many times over on
/// a busy machine.
const CLOSED_WITHIN: Duration = Duration::from_secs(60);

fn iov(start: usize, bytes: usize) -> libc::iovec {
    libc::iovec { iov_base: at(start), iov_len: bytes }
}

fn insert(rig: &Rig, bytes: &[u8; ADDRESS_BYTES]) -> (c_int, u64) {
    let mut number = 7;
    // SAFETY: one address.
    let inserted = unsafe {
        ((*(*rig.vector).ops).insert)(rig.vector, bytes.as_ptr().cast(), 1, &raw mut number, 0, null_mut())
    };
    (inserted, number)
}

/// The endpoint still works.
fn still_works(one: &Rig, two: &Rig, to_two: u64) {
    let mut buffer = [0u8; 8];
    // SAFETY: the buffer lives until the completion has been read.
    accepted(&[one], || unsafe {
        (two.tagged().recv)(two.ep, buffer.as_mut_ptr().cast(), 8, null_mut(), ADDR_UNSPEC, 77, 0, at(77))
    });
    // SAFETY: injected bytes are copied at once.
    accepted(&[two], || unsafe { (one.tagged().inject)(one.ep, b"as usual".as_ptr().cast(), 8, to_two, 77) });
    let done = two.next(&[one]);
    assert_eq!((done.context, done.error, &buffer), (77, None, b"as usual"));
}

#[test]
fn absurd_lengths_are_refused_before_anything_is_reserved() {
    let (one, two, to_two, _) = pair();
    let byte = [1u8; 8];
    let huge = 1usize << 41;
    let halves = [iov(byte.as_ptr() as usize, usize::MAX / 2), iov(byte.as_ptr() as usize, usize::MAX / 2)];
    let beyond = [iov(byte.as_ptr() as usize, usize::MAX), iov(byte.as_ptr() as usize, usize::MAX)];
    // SAFETY: lengths are wrong on purpose, in ways that the interface must notice before it touches the memory.
    unsafe {
        let start = byte.as_ptr().cast();
        let place = byte.as_ptr().cast_mut().cast();
        assert_eq!((one.plain().send)(one.ep, start, huge, null_mut(), to_two, at(1)), EMSGSIZE);
        assert_eq!((one.tagged().send)(one.ep, start, huge, null_mut(), to_two, 1, at(1)), EMSGSIZE);
        assert_eq!((one.tagged().inject)(one.ep, start, usize::MAX, to_two, 1), EMSGSIZE);
        assert_eq!((one.remote().write)(one.ep, start, huge, null_mut(), to_two, 0, 1, at(1)), EMSGSIZE);
        assert_eq!((one.remote().read)(one.ep, place, huge, null_mut(), to_two, 0, 1, at(1)), EMSGSIZE);
        assert_eq!((one.plain().sendv)(one.ep, halves.as_ptr(), null_mut(), 2, to_two, at(1)), EMSGSIZE);
        assert_eq!((one.plain().sendv)(one.ep, beyond.as_ptr(), null_mut(), 2, to_two, at(1)), EINVAL);
        // Segments are received into memory of ours first: more than there is.
        assert_eq!((one.plain().recvv)(one.ep, halves.as_ptr(), null_mut(), 2, ADDR_UNSPEC, at(1)), ENOMEM);
        assert_eq!((one.plain().recvv)(one.ep, beyond.as_ptr(), null_mut(), 2, ADDR_UNSPEC, at(1)), EINVAL);
        let readv = one.remote().readv;
        assert_eq!(readv(one.ep, halves.as_ptr(), null_mut(), 2, to_two, 0, 1, at(1)), EMSGSIZE);
        assert_eq!((one.plain().sendv)(one.ep, null(), null_mut(), 3, to_two, at(1)), EINVAL, "no vector");
        let many = usize::MAX;
        assert_eq!(
            (one.plain().recvv)(one.ep, halves.as_ptr(), null_mut(), many, ADDR_UNSPEC, at(1)),
            EINVAL
        );
        let atomic = one.atomics().write;
        assert_eq!(atomic(one.ep, start, usize::MAX, null_mut(), to_two, 0, 1, 7, 2, at(1)), EINVAL);
        assert_eq!(atomic(one.ep, start, 1 << 40, null_mut(), to_two, 0, 1, 7, 2, at(1)), EMSGSIZE);
        let unknown = -(libc::EOPNOTSUPP as isize);
        assert_eq!(atomic(one.ep, start, 1, null_mut(), to_two, 0, 1, 999, 2, at(1)), unknown, "type");
        assert_eq!(atomic(one.ep, start, 1, null_mut(), to_two, 0, 1, 7, 999, at(1)), unknown, "operation");
    }
    still_works(&one, &two, to_two);
}

#[test]
fn memory_of_a_peer_that_is_not_there_is_an_error_of_the_request() {
    let (one, two, to_two, _) = pair();
    let mut memory = vec![0u8; 4096];
    let region = two.register(&mut memory, 5);
    let mut byte = [1u8; 8];
    // Beyond the end, beyond the end of numbers, an unknown key.
    for (address, key, error) in
        [(4090, 5, libc::EINVAL), (u64::MAX - 3, 5, libc::EINVAL), (0, 6, errno::ENOKEY)]
    {
        // SAFETY: the bytes live until the completions have been read.
        unsafe {
            let place = byte.as_mut_ptr();
            accepted(&[&two], || {
                (one.remote().write)(one.ep, place.cast(), 8, null_mut(), to_two, address, key, at(1))
            });
            assert_eq!(one.next(&[&two]).error, Some((error, 0)), "write at {address} of {key}");
            accepted(&[&two], || {
                (one.remote().read)(one.ep, place.cast(), 8, null_mut(), to_two, address, key, at(2))
            });
            assert_eq!(one.next(&[&two]).error, Some((error, 0)), "read at {address} of {key}");
        }
    }
    assert_eq!(close(region), 0);
    // SAFETY: as above.
    accepted(&[&two], || unsafe {
        (one.remote().read)(one.ep, byte.as_mut_ptr().cast(), 8, null_mut(), to_two, 0, 5, at(3))
    });
    assert_eq!(one.next(&[&two]).error, Some((errno::ENOKEY, 0)), "a region that has been closed");
    still_works(&one, &two, to_two);
}

#[test]
fn what_is_no_address_is_not_inserted() {
    let (one, two, to_two, _) = pair();
    let whole = two.address();
    let damaged = |change: fn(&mut [u8; ADDRESS_BYTES])| {
        let mut bytes = whole;
        change(&mut bytes);
        bytes
    };
    for (what, bytes) in [
        ("nothing", [0; ADDRESS_BYTES]),
        ("noise", [0xa5; ADDRESS_BYTES]),
        ("cut off behind its identity", damaged(|bytes| bytes[10..].fill(0))),
        ("a rail behind the end", damaged(|bytes| bytes[10] = 200)),
        ("of a later version", damaged(|bytes| bytes[1] = 9)),
    ] {
        assert_eq!(insert(&one, &bytes), (0, ADDR_NOTAVAIL), "{what}");
    }
    // Cut off in its last rail: the rest cannot be distinguished from an address, but leads nowhere.
    let strange = damaged(|bytes| bytes[11..].fill(0xee));
    if let (1, number) = insert(&one, &strange) {
        // SAFETY: injected bytes are copied at once.
        let answer = unsafe { (one.plain().inject)(one.ep, b"x".as_ptr().cast(), 1, number) };
        assert_eq!(answer, -(libc::EHOSTUNREACH as isize));
    }
    // SAFETY: numbers that were never given.
    unsafe {
        let byte = b"x".as_ptr().cast();
        for number in [2, 1 << 40, ADDR_UNSPEC] {
            assert_eq!((one.plain().inject)(one.ep, byte, 1, number), EINVAL, "peer {number}");
        }
        let ops = &*(*one.vector).ops;
        let mut number = 99;
        assert_eq!((ops.remove)(one.vector, &raw mut number, 1, 0) as isize, EINVAL);
        assert_eq!((ops.insert)(one.vector, null(), 1, &raw mut number, 0, null_mut()) as isize, EINVAL);
        let sym = ops.insertsym;
        let (node, service) = (c"127.0.0.1".as_ptr(), c"7000".as_ptr());
        let all = usize::MAX;
        assert_eq!(sym(one.vector, node, all, service, all, null_mut(), 0, null_mut()) as isize, EINVAL);
        let svc = ops.insertsvc;
        let words = c"no port at all".as_ptr();
        assert_eq!(svc(one.vector, node, words, &raw mut number, 0, null_mut()) as isize, EINVAL);
    }
    still_works(&one, &two, to_two);
}

#[test]
fn absurd_attributes_are_refused() {
    let rig = Rig::new();
    // SAFETY: attributes are wrong on purpose; every structure is whole.
    unsafe {
        let ops = &*(*rig.domain).ops;
        let mut queue = null_mut();
        let mut attr: FiCqAttr = core::mem::zeroed();
        attr.size = usize::MAX;
        assert_eq!((ops.cq_open)(rig.domain, &raw mut attr, &raw mut queue, null_mut()) as isize, EINVAL);
        (attr.size, attr.format) = (0, 99);
        assert_eq!((ops.cq_open)(rig.domain, &raw mut attr, &raw mut queue, null_mut()) as isize, EINVAL);
        (attr.format, attr.wait_obj) = (0, 99);
        assert_eq!((ops.cq_open)(rig.domain, &raw mut attr, &raw mut queue, null_mut()), -libc::ENOSYS);
        assert_eq!(
            (ops.cq_open)(rig.domain, null_mut(), null_mut(), null_mut()) as isize,
            EINVAL,
            "no place"
        );
        let mut entry: FiCqTaggedEntry = core::mem::zeroed();
        let read = (*(*rig.queue).ops).read;
        assert_eq!(read(rig.queue, null_mut(), 1), EINVAL, "nowhere to put a completion");
        assert_eq!(read(rig.queue, (&raw mut entry).cast(), usize::MAX), -(libc::EAGAIN as isize));
        let mut vector: FiAvAttr = core::mem::zeroed();
        let mut opened = null_mut();
        vector.rx_ctx_bits = 60;
        assert_eq!((ops.av_open)(rig.domain, &raw mut vector, &raw mut opened, null_mut()), -libc::ENOSYS);
        (vector.rx_ctx_bits, vector.count) = (0, usize::MAX);
        // A hint, of which nothing depends.
        assert_eq!((ops.av_open)(rig.domain, &raw mut vector, &raw mut opened, null_mut()), 0);
        assert_eq!(close(opened), 0);
        let setopt = (*(*rig.ep).ops).setopt;
        let all = usize::MAX;
        let value: *const core::ffi::c_void = (&raw const all).cast();
        assert_eq!(setopt(rig.ep.cast(), OPT_ENDPOINT, 77, value, 8), -libc::ENOPROTOOPT);
        assert_eq!(setopt(rig.ep.cast(), OPT_ENDPOINT, OPT_MIN_MULTI_RECV, value, 3) as isize, EINVAL);
        assert_eq!(setopt(rig.ep.cast(), OPT_ENDPOINT, OPT_MIN_MULTI_RECV, null(), 8) as isize, EINVAL);
        let mut hints: FiInfo = core::mem::zeroed();
        let mut endpoint: FiEpAttr = core::mem::zeroed();
        let mut transmit: FiTxAttr = core::mem::zeroed();
        endpoint.max_msg_size = usize::MAX;
        hints.ep_attr = &raw mut endpoint;
        assert_eq!(getinfo(&raw const hints).err(), Some(-libc::ENODATA), "longest message");
        hints.ep_attr = null_mut();
        transmit.size = usize::MAX;
        hints.tx_attr = &raw mut transmit;
        assert_eq!(getinfo(&raw const hints).err(), Some(-libc::ENODATA), "requests at a time");
        let mut info = null_mut();
        // An application of any version gets an answer that it understands.
        for api in [0, version(1, 0), u32::MAX] {
            assert_eq!((provider().getinfo)(api, null(), null(), 0, null(), &raw mut info), 0);
        }
        assert_eq!(
            (provider().getinfo)(version(1, 20), null(), null(), 0, null(), null_mut()) as isize,
            EINVAL
        );
        assert_eq!((provider().fabric)(null_mut(), null_mut(), null_mut()) as isize, EINVAL);
    }
}

#[test]
fn every_object_says_that_it_is_closed() {
    let rig = Rig::new();
    let two = Rig::new();
    // SAFETY: handles are used after their end on purpose; they are kept recognisable.
    unsafe {
        let domain = &*(*rig.domain).ops;
        let info = getinfo(null()).unwrap();
        let (mut ep, mut queue, mut counter, mut vector) = (null_mut(), null_mut(), null_mut(), null_mut());
        assert_eq!((domain.endpoint)(rig.domain, info, &raw mut ep, null_mut()), 0);
        assert_eq!((domain.cq_open)(rig.domain, null_mut(), &raw mut queue, null_mut()), 0);
        assert_eq!((domain.cntr_open)(rig.domain, null_mut(), &raw mut counter, null_mut()), 0);
        assert_eq!((domain.av_open)(rig.domain, null_mut(), &raw mut vector, null_mut()), 0);
        let mut memory = [0u8; 16];
        let region = rig.register(&mut memory, 3);
        let bind = (*(*ep).fid.ops).bind;
        let (cq_ops, cntr_ops, av_ops) = (&*(*queue).ops, &*(*counter).ops, &*(*vector).ops);
        let mr_bind = (*(*region).fid.ops).bind;
        for object in [ep.cast::<Fid>(), queue.cast(), counter.cast(), vector.cast(), region.cast()] {
            assert_eq!(close(object), 0);
            assert_eq!(close(object) as isize, EBADF, "closed twice");
        }
        let mut entry: FiCqErrEntry = core::mem::zeroed();
        assert_eq!((cq_ops.read)(queue, (&raw mut entry).cast(), 1), EBADF);
        assert_eq!((cq_ops.sread)(queue, (&raw mut entry).cast(), 1, null(), -1), EBADF, "and does not wait");
        assert_eq!((cq_ops.readerr)(queue, &raw mut entry, 0), EBADF);
        assert_eq!((cntr_ops.wait)(counter, 1, -1) as isize, EBADF);
        assert_eq!((cntr_ops.read)(counter), 0);
        let mut number = 0;
        let some = two.address();
        let insert = av_ops.insert;
        assert_eq!(insert(vector, some.as_ptr().cast(), 1, &raw mut number, 0, null_mut()) as isize, EBADF);
        assert_eq!(bind(ep.cast(), rig.queue.cast(), flag::SEND) as isize, EBADF);
        assert_eq!(mr_bind(region.cast(), rig.counter.cast(), flag::REMOTE_WRITE) as isize, EBADF);
        assert_eq!((two.plain().inject)(ep, some.as_ptr().cast(), 1, 0), EBADF);
        assert_eq!((two.tagged().recv)(ep, null_mut(), 0, null_mut(), 0, 0, 0, null_mut()), EBADF);
        // A closed object cannot be bound either.
        let mut fresh = null_mut();
        assert_eq!((domain.endpoint)(rig.domain, info, &raw mut fresh, null_mut()), 0);
        for object in [queue.cast::<Fid>(), counter.cast(), vector.cast(), null_mut()] {
            assert_eq!(bind(fresh.cast(), object, flag::SEND) as isize, EINVAL);
        }
        let enable = (*(*fresh).fid.ops).control;
        assert_eq!(enable(fresh.cast(), CONTROL_ENABLE, null_mut()), -errno::ENOAV, "nothing is bound");
        assert_eq!(close(fresh), 0);
        assert_eq!(close(rig.domain), -libc::EBUSY, "objects of it are open");
    }
}

/// Posts more receives than there is room for, and more unmatched messages than a peer takes: back-pressure, and all can be taken back.
#[test]
fn bounds_push_back() {
    let (one, two, to_two, _) = pair();
    let mut posted = 0u64;
    let mut buffer = [0u8; 8];
    let refused = loop {
        // SAFETY: the buffer outlives the receives, which are all taken back below.
        let answer = unsafe {
            let place = buffer.as_mut_ptr().cast();
            (two.tagged().recv)(two.ep, place, 8, null_mut(), ADDR_UNSPEC, 1 << 40, 0, at(5))
        };
        if answer != 0 {
            break answer;
        }
        posted += 1;
        assert!(posted < 1 << 22, "receives without end");
    };
    assert_eq!(refused, -(libc::EAGAIN as isize));
    assert!(posted >= 4096, "rx_attr promises as many");
    let mut sent = 0u64;
    let refused = loop {
        // SAFETY: injected bytes are copied at once.
        let answer = unsafe { (one.tagged().inject)(one.ep, [3u8; 16384].as_ptr().cast(), 16384, to_two, 9) };
        two.counted();
        if answer != 0 {
            break answer;
        }
        sent += 1;
        assert!(sent < 1 << 20, "16 GB that nobody takes");
    };
    assert_eq!(refused, -(libc::EAGAIN as isize));
    // SAFETY: the table is static.
    let cancel = unsafe { (*(*two.ep).ops).cancel };
    // SAFETY: the context of the receives.
    assert_eq!(unsafe { cancel(two.ep.cast(), at(5)) }, 0);
    assert_eq!(two.next(&[&one]).error, Some((libc::ECANCELED, 0)));
    let mut large = vec![0u8; 16384];
    for _ in 0..sent {
        // SAFETY: the buffer lives until the completion has been read.
        accepted(&[&one], || unsafe {
            let place = large.as_mut_ptr().cast();
            (two.tagged().recv)(two.ep, place, 16384, null_mut(), ADDR_UNSPEC, 9, 0, at(6))
        });
        assert_eq!(two.next(&[&one]).error, None);
        // SAFETY: one receive less waits, so that the next finds room.
        unsafe { cancel(two.ep.cast(), at(5)) };
        assert_eq!(two.next(&[&one]).error, Some((libc::ECANCELED, 0)));
    }
}

/// The child is killed in the middle of the parent's requests.
fn victim() {
    let rig = Rig::new();
    let mut memory = vec![0u8; 64 << 20];
    let _region = rig.register(&mut memory, 9);
    say(&hex(&rig.address()));
    let to = rig.insert(&address(&hear()));
    // A long message is under way in both directions when it ends.
    let payload = pattern(64 << 20, 3);
    // SAFETY: the buffers live as long as the process.
    unsafe {
        let place = memory.as_mut_ptr().cast();
        accepted(&[], || (rig.tagged().recv)(rig.ep, place, 64 << 20, null_mut(), ADDR_UNSPEC, 1, 0, at(1)));
        accepted(&[], || {
            (rig.tagged().send)(rig.ep, payload.as_ptr().cast(), 64 << 20, null_mut(), to, 2, at(2))
        });
        rig.counted();
        say("ready");
        // SAFETY: the test is about the end of this process.
        libc::raise(libc::SIGKILL);
    }
}

#[test]
fn a_peer_that_is_killed_in_the_middle_harms_nobody_else() {
    if is_child() {
        return victim();
    }
    let mut peer = Peer::start("hostile::a_peer_that_is_killed_in_the_middle_harms_nobody_else");
    let (one, two, to_two, _) = pair();
    let dead = one.insert(&address(&peer.hear()));
    peer.send(&hex(&one.address()));
    let payload = pattern(64 << 20, 4);
    let mut landing = vec![0u8; 64 << 20];
    let mut back = vec![0u8; 1 << 20];
    // SAFETY: the buffers outlive the endpoint, which is closed below.
    unsafe {
        let bytes = 64 << 20;
        let place = landing.as_mut_ptr().cast();
        accepted(&[], || (one.tagged().recv)(one.ep, place, bytes, null_mut(), dead, 2, 0, at(1)));
        let start = payload.as_ptr().cast();
        accepted(&[], || (one.tagged().send)(one.ep, start, bytes, null_mut(), dead, 1, at(2)));
        accepted(&[], || (one.remote().write)(one.ep, start, bytes, null_mut(), dead, 0, 9, at(3)));
        let place = back.as_mut_ptr().cast();
        accepted(&[], || (one.remote().read)(one.ep, place, 1 << 20, null_mut(), dead, 0, 9, at(4)));
    }
    one.counted();
    assert_eq!(peer.hear(), "ready");
    assert_eq!(peer.ends(), Some(libc::SIGKILL));
    // Incomplete operations stay open, without a false entry; all other peers are served.
    let (to_one, to_itself) = (two.insert(&one.address()), two.insert(&two.address()));
    for _ in 0..100 {
        still_works(&two, &two, to_itself);
        while let Some(done) = one.poll() {
            assert_eq!(done.error, None, "nothing fails that could still come");
        }
    }
    still_works(&one, &two, to_two);
    still_works(&two, &one, to_one);
    let started = Instant::now();
    drop(one);
    assert!(started.elapsed() < CLOSED_WITHIN, "closing took {:?}", started.elapsed());
    drop((payload, landing, back));
}

/// The child has another key: its frames do not count here, and it reports why no answer arrives.
fn stranger() {
    let rig = Rig::new();
    let to = rig.insert(&address(&hear()));
    // SAFETY: injected bytes are copied at once.
    accepted(&[], || unsafe { (rig.plain().inject)(rig.ep, b"stranger".as_ptr().cast(), 8, to) });
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(12) {
        rig.counted();
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(rig);
    say("done");
}

#[test]
fn a_peer_of_another_job_is_not_heard_and_is_reported() {
    if is_child() {
        return stranger();
    }
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("another");
    let mut peer = Peer::with_key("hostile::a_peer_of_another_job_is_not_heard_and_is_reported", &key);
    let (one, two, to_two, _) = pair();
    let mut buffer = [0u8; 8];
    // SAFETY: the buffer outlives the endpoint.
    accepted(&[], || unsafe {
        (two.plain().recv)(two.ep, buffer.as_mut_ptr().cast(), 8, null_mut(), ADDR_UNSPEC, at(1))
    });
    peer.send(&hex(&two.address()));
    assert_eq!(peer.hear(), "done");
    let said = peer.errors();
    assert!(said.contains("has not answered") && said.contains("another job's key"), "{said}");
    assert!(said.contains(&format!("the key here is in {};", key.display())), "{said}");
    assert_eq!(two.poll(), None, "a stranger's message");
    // SAFETY: as above.
    accepted(&[&two], || unsafe { (one.plain().inject)(one.ep, b"a friend".as_ptr().cast(), 8, to_two) });
    assert_eq!(two.next(&[&one]).error, None);
    assert_eq!(&buffer, b"a friend");
}
