//! Messages with and without tags.

use core::ffi::c_void;
use std::ptr::null_mut;

use stillwire_fi::abi::*;

use crate::rig::{ADDRESS_BYTES, Done, Rig, accepted, close, getinfo, pair, pattern};

fn at(number: usize) -> *mut c_void {
    number as *mut c_void
}

#[test]
fn what_is_offered_is_what_was_asked_for_or_nothing() {
    let info = getinfo(std::ptr::null()).unwrap();
    // SAFETY: the answer of getinfo is whole.
    unsafe {
        assert_eq!((*(*info).ep_attr).r#type, EP_RDM);
        assert!(
            (*info).next.is_null(),
            "MPICH scores every info and takes the caps of the first: there is one"
        );
        assert_eq!((*(*info).domain_attr).mr_mode, 0);
        assert_eq!((*info).src_addrlen, ADDRESS_BYTES);
        assert_eq!((*(*info).domain_attr).av_type, AV_TABLE, "MPICH finds addresses more quickly in a table");
        let mut hints: FiInfo = core::mem::zeroed();
        let ep: *mut FiEpAttr = Box::into_raw(Box::new(core::mem::zeroed()));
        let domain: *mut FiDomainAttr = Box::into_raw(Box::new(core::mem::zeroed()));
        hints.ep_attr = ep;
        hints.domain_attr = domain;
        (*ep).r#type = EP_MSG;
        assert_eq!(getinfo(&raw const hints).err(), Some(-libc::ENODATA), "connected endpoints");
        (*ep).r#type = EP_RDM;
        hints.caps = flag::MSG | flag::HMEM;
        assert_eq!(getinfo(&raw const hints).err(), Some(-libc::ENODATA), "device memory");
        hints.caps = flag::TAGGED;
        (*domain).threading = THREAD_DOMAIN;
        (*ep).mem_tag_format = 0xffff;
        let info = getinfo(&raw const hints).unwrap();
        assert_eq!((*(*info).domain_attr).threading, THREAD_DOMAIN);
        assert_eq!((*(*info).ep_attr).mem_tag_format, 0xffff);
        assert_eq!((*(*info).domain_attr).av_type, AV_UNSPEC, "both kinds are there");
        assert_ne!((*info).caps & flag::SEND, 0, "tagged messages are sent");
        assert_eq!((*info).caps & flag::RMA, 0);
    }
}

#[test]
fn tagged_messages_of_all_lengths_arrive_with_their_data() {
    let (one, two, to_two, to_one) = pair();
    for (i, bytes) in [0, 1, 8, 4095, 16384, 16385, 70_000, 3_000_000].into_iter().enumerate() {
        let sent = pattern(bytes, i);
        let mut received = vec![0u8; bytes];
        // SAFETY: buffers live until their completions have been read.
        unsafe {
            let recv = two.tagged().recv;
            accepted(&[&one], || {
                recv(two.ep, received.as_mut_ptr().cast(), bytes, null_mut(), to_one, 7, 0, at(100 + i))
            });
            let senddata = one.tagged().senddata;
            accepted(&[&two], || {
                senddata(one.ep, sent.as_ptr().cast(), bytes, null_mut(), 0xabc, to_two, 7, at(200 + i))
            });
        }
        let done = two.next(&[&one]);
        assert_eq!((done.context, done.bytes, done.tag, done.data), (100 + i, bytes, 7, 0xabc));
        assert_eq!(done.flags, flag::RECV | flag::TAGGED | flag::REMOTE_CQ_DATA);
        assert_eq!((done.source, done.error), (to_one, None));
        assert_eq!(received, sent);
        let done = one.next(&[&two]);
        assert_eq!((done.context, done.flags), (200 + i, flag::SEND | flag::TAGGED));
    }
}

#[test]
fn messages_are_matched_in_the_order_of_sending_whatever_their_length() {
    let (one, two, to_two, _) = pair();
    let lengths = [10, 50_000, 20, 0, 100_000, 30];
    let payloads: Vec<_> = lengths.iter().enumerate().map(|(i, bytes)| pattern(*bytes, i)).collect();
    for (i, payload) in payloads.iter().enumerate() {
        // SAFETY: payloads live to the end.
        accepted(&[&two], || unsafe {
            (one.tagged().send)(one.ep, payload.as_ptr().cast(), payload.len(), null_mut(), to_two, 1, at(i))
        });
    }
    let mut buffers = vec![vec![0u8; 100_000]; lengths.len()];
    for (i, buffer) in buffers.iter_mut().enumerate() {
        // SAFETY: buffers live to the end.
        accepted(&[&one], || unsafe {
            let (start, room) = (buffer.as_mut_ptr().cast(), buffer.len());
            (two.tagged().recv)(two.ep, start, room, null_mut(), ADDR_UNSPEC, 0, u64::MAX, at(i))
        });
    }
    for _ in &lengths {
        let done = two.next(&[&one]);
        assert_eq!(done.bytes, lengths[done.context], "receive {} got another message", done.context);
        assert_eq!(buffers[done.context][..done.bytes], payloads[done.context]);
    }
    for _ in &lengths {
        one.next(&[&two]);
    }
}

#[test]
fn a_sender_that_is_pushed_back_loses_neither_message_nor_order() {
    const MESSAGES: u64 = 30_000;
    let (one, two, to_two, _) = pair();
    let mut expected = 0;
    let mut pushed_back = 0;
    let mut buffer = [0u8; 8];
    let mut take = |expected: &mut u64| {
        // SAFETY: the buffer is read before the next receive is posted.
        accepted(&[&one], || unsafe {
            (two.plain().recv)(two.ep, buffer.as_mut_ptr().cast(), 8, null_mut(), ADDR_UNSPEC, null_mut())
        });
        assert_eq!(two.next(&[&one]).error, None);
        assert_eq!(u64::from_le_bytes(buffer), *expected);
        *expected += 1;
    };
    for number in 0..MESSAGES {
        let bytes = number.to_le_bytes();
        // SAFETY: injected bytes are copied at once.
        while unsafe { (one.plain().inject)(one.ep, bytes.as_ptr().cast(), 8, to_two) } != 0 {
            pushed_back += 1;
            take(&mut expected);
        }
    }
    while expected < MESSAGES {
        take(&mut expected);
    }
    assert!(pushed_back > 0 || MESSAGES < 10_000, "nothing ever filled up");
}

#[test]
fn a_message_to_oneself_arrives() {
    let rig = Rig::new();
    let own = rig.insert(&rig.address());
    let sent = pattern(40_000, 1);
    let mut received = vec![0u8; 40_000];
    // SAFETY: buffers live to the end.
    unsafe {
        accepted(&[], || (rig.plain().send)(rig.ep, sent.as_ptr().cast(), 40_000, null_mut(), own, at(1)));
        accepted(&[], || {
            (rig.plain().recv)(rig.ep, received.as_mut_ptr().cast(), 40_000, null_mut(), own, at(2))
        });
    }
    let mut contexts = [rig.next(&[]).context, rig.next(&[]).context];
    contexts.sort_unstable();
    assert_eq!(contexts, [1, 2]);
    assert_eq!(received, sent);
}

#[test]
fn segments_are_gathered_and_scattered() {
    let (one, two, to_two, _) = pair();
    for bytes in [300usize, 90_000] {
        let sent = pattern(bytes, 5);
        let mut received = vec![0u8; bytes];
        let part = |start: *const u8, from: usize, to: usize| libc::iovec {
            // SAFETY: within the buffers.
            iov_base: unsafe { start.add(from) }.cast_mut().cast(),
            iov_len: to - from,
        };
        let (a, b) = (sent.as_ptr(), received.as_mut_ptr());
        let from = [part(a, 0, 7), part(a, 7, 7), part(a, 7, bytes / 2), part(a, bytes / 2, bytes)];
        let to = [part(b, 0, 100), part(b, 100, bytes)];
        // SAFETY: buffers live to the end.
        unsafe {
            accepted(&[&one], || (two.plain().recvv)(two.ep, to.as_ptr(), null_mut(), 2, ADDR_UNSPEC, at(1)));
            accepted(&[&two], || (one.plain().sendv)(one.ep, from.as_ptr(), null_mut(), 4, to_two, at(2)));
        }
        assert_eq!(two.next(&[&one]).bytes, bytes);
        one.next(&[&two]);
        assert_eq!(received, sent);
    }
}

#[test]
fn what_does_not_fit_is_cut_off_and_reported() {
    let (one, two, to_two, _) = pair();
    for bytes in [100usize, 60_000] {
        let sent = pattern(bytes, 3);
        let mut buffer = [0u8; 40];
        // SAFETY: buffers live to the end.
        unsafe {
            accepted(&[&one], || {
                (two.tagged().recv)(
                    two.ep,
                    buffer.as_mut_ptr().cast(),
                    40,
                    null_mut(),
                    ADDR_UNSPEC,
                    9,
                    0,
                    at(1),
                )
            });
            accepted(&[&two], || {
                (one.tagged().send)(one.ep, sent.as_ptr().cast(), bytes, null_mut(), to_two, 9, at(2))
            });
        }
        let done = two.next(&[&one]);
        assert_eq!(done.error, Some((errno::ETRUNC, bytes - 40)));
        assert_eq!((done.context, done.bytes, done.tag), (1, 40, 9));
        assert_eq!(buffer, sent[..40]);
        assert_eq!(one.next(&[&two]).error, None, "the sender has done its part");
    }
}

fn look(rig: &Rig, flags: u64, context: usize, buffer: &mut [u8]) -> isize {
    let part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let message = FiMsgTagged {
        msg_iov: &raw const part,
        desc: null_mut(),
        iov_count: usize::from(!buffer.is_empty()),
        addr: ADDR_UNSPEC,
        tag: 4,
        ignore: 0,
        context: at(context),
        data: 0,
    };
    // SAFETY: the buffer lives through the test.
    unsafe { (rig.tagged().recvmsg)(rig.ep, &raw const message, flags) }
}

#[test]
fn messages_can_be_looked_at_claimed_and_thrown_away() {
    let (one, two, to_two, _) = pair();
    assert_eq!(look(&two, flag::PEEK, 5, &mut []), 0);
    let nothing = two.next(&[&one]);
    assert_eq!((nothing.context, nothing.error), (5, Some((libc::ENOMSG, 0))));
    for bytes in [50usize, 50_000, 60] {
        let sent = pattern(bytes, bytes);
        // SAFETY: long payloads are leaked on purpose, so that they live long enough.
        accepted(&[&two], || unsafe {
            let sent: &'static [u8] = Vec::leak(sent.clone());
            (one.tagged().send)(one.ep, sent.as_ptr().cast(), bytes, null_mut(), to_two, 4, at(1))
        });
    }
    let seen = |flags: u64, context: usize| loop {
        assert_eq!(look(&two, flags, context, &mut []), 0);
        let done = two.next(&[&one]);
        if done.error.is_none() {
            return (done.context, done.bytes, done.tag);
        }
        one.counted();
    };
    assert_eq!(seen(flag::PEEK, 6), (6, 50, 4));
    assert_eq!(seen(flag::PEEK | flag::CLAIM, 7), (7, 50, 4));
    assert_eq!(seen(flag::PEEK | flag::CLAIM, 8), (8, 50_000, 4), "the first is out of matching");
    assert_eq!(seen(flag::PEEK | flag::DISCARD, 9), (9, 60, 4));
    let mut buffer = vec![0u8; 60_000];
    assert_eq!(look(&two, flag::CLAIM, 8, &mut buffer), 0);
    let done = two.next(&[&one]);
    assert_eq!((done.context, done.bytes), (8, 50_000));
    assert_eq!(buffer[..50_000], pattern(50_000, 50_000));
    assert_eq!(look(&two, flag::CLAIM | flag::DISCARD, 7, &mut []), 0);
    let thrown = two.next(&[&one]);
    assert_eq!((thrown.context, thrown.bytes, thrown.tag), (7, 50, 4));
    assert_eq!(
        look(&two, flag::CLAIM, 7, &mut buffer),
        -(libc::EINVAL as isize),
        "claimed once, received once"
    );
    for _ in 0..3 {
        assert_eq!(one.next(&[&two]).error, None, "every send completes");
    }
}

/// FI_PEEK's promises (fi_tagged(3)): a look takes nothing, ends at once either way, and shows the oldest message that
/// matches. A look for any source right after a send may once find nothing.
#[test]
fn looks_change_nothing_and_what_was_shown_stays() {
    let (one, two, to_two, to_one) = pair();
    let three = Rig::new();
    let from_three = two.insert(&three.address());
    let to_two_too = three.insert(&two.address());
    // SAFETY: injected bytes are copied at once.
    let inject = |rig: &Rig, to: u64, tag: u64, bytes: usize| {
        // SAFETY: injected bytes are copied at once.
        accepted(&[], || unsafe { (rig.tagged().inject)(rig.ep, [0u8; 64].as_ptr().cast(), bytes, to, tag) });
    };
    inject(&one, to_two, 4, 10);
    inject(&one, to_two, 4, 20);
    while look_from(&two, to_one, 4).error.is_some() {
        one.counted();
    }
    inject(&three, to_two_too, 4, 30);
    while look_from(&two, from_three, 4).error.is_some() {
        three.counted();
    }
    let any = || look_from(&two, ADDR_UNSPEC, 4);
    // Each time the oldest, of any source or of the one that is named, also after a send.
    for _ in 0..3 {
        assert_eq!(
            (any().bytes, look_from(&two, to_one, 4).bytes, look_from(&two, from_three, 4).bytes),
            (10, 10, 30)
        );
        inject(&two, to_one, 9, 1);
        assert_eq!(look_from(&two, to_one, 4).bytes, 10, "of one source: after a send too");
        assert_eq!(any().bytes, 10, "it has been shown");
    }
    assert_eq!(look_from(&two, ADDR_UNSPEC, 5).error, Some((libc::ENOMSG, 0)), "another tag");
    let mut buffer = [0u8; 64];
    for bytes in [10, 20, 30] {
        // SAFETY: the buffer lives until the completion has been read.
        accepted(&[], || unsafe {
            (two.tagged().recv)(two.ep, buffer.as_mut_ptr().cast(), 64, null_mut(), ADDR_UNSPEC, 4, 0, at(1))
        });
        assert_eq!(two.next(&[&one, &three]).bytes, bytes);
        inject(&two, to_one, 9, 1);
        // At most one look in vain, regardless of sends.
        let found = (0..2).map(|_| any()).find(|done| done.error.is_none());
        assert_eq!(
            found.map(|done| done.bytes),
            [(10, Some(20)), (20, Some(30)), (30, None)]
                .into_iter()
                .find(|(now, _)| *now == bytes)
                .unwrap()
                .1
        );
    }
}

/// One look, and its result.
fn look_from(rig: &Rig, from: u64, tag: u64) -> Done {
    let message = FiMsgTagged {
        msg_iov: null_mut(),
        desc: null_mut(),
        iov_count: 0,
        addr: from,
        tag,
        ignore: 0,
        context: at(3),
        data: 0,
    };
    // SAFETY: no buffer is named.
    accepted(&[], || unsafe { (rig.tagged().recvmsg)(rig.ep, &raw const message, flag::PEEK) });
    loop {
        let done = rig.next(&[]);
        if done.context == 3 {
            return done;
        }
    }
}

#[test]
fn only_unmatched_receives_can_be_taken_back() {
    let (one, two, to_two, _) = pair();
    let mut buffers = [[0u8; 8]; 2];
    for (i, buffer) in buffers.iter_mut().enumerate() {
        // SAFETY: the buffers live to the end.
        accepted(&[], || unsafe {
            (two.plain().recv)(two.ep, buffer.as_mut_ptr().cast(), 8, null_mut(), ADDR_UNSPEC, at(i + 1))
        });
    }
    // SAFETY: a call of ours.
    let cancel = |context| unsafe { ((*(*two.ep).ops).cancel)(two.ep.cast(), at(context)) };
    assert_eq!(cancel(1), 0);
    assert_eq!(two.next(&[]).error, Some((libc::ECANCELED, 0)));
    assert_eq!(cancel(1), 0);
    assert_eq!(two.poll(), None, "nothing is cancelled twice");
    // SAFETY: injected bytes are copied at once.
    accepted(&[], || unsafe { (one.plain().inject)(one.ep, b"whatever".as_ptr().cast(), 8, to_two) });
    let done = two.next(&[&one]);
    assert_eq!((done.context, &buffers[1]), (2, b"whatever"));
}

#[test]
fn one_buffer_takes_several_messages_and_is_given_back_once() {
    let (one, two, to_two, _) = pair();
    let free_min = 40_000usize;
    let mut buffer = vec![0u8; 100_000];
    let part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let message = FiMsg {
        msg_iov: &raw const part,
        desc: null_mut(),
        iov_count: 1,
        addr: ADDR_UNSPEC,
        context: at(3),
        data: 0,
    };
    // SAFETY: the buffer lives to the end.
    unsafe {
        let value: *const c_void = (&raw const free_min).cast();
        let setopt = (*(*two.ep).ops).setopt;
        assert_eq!(setopt(two.ep.cast(), OPT_ENDPOINT, OPT_MIN_MULTI_RECV, value, size_of::<usize>()), 0);
        assert_eq!((two.plain().recvmsg)(two.ep, &raw const message, flag::MULTI_RECV), 0);
    }
    let lengths = [30_000usize, 10, 0, 35_000];
    let payloads: Vec<_> = lengths.iter().map(|bytes| pattern(*bytes, *bytes)).collect();
    for payload in &payloads {
        // SAFETY: payloads live to the end.
        accepted(&[&two], || unsafe {
            (one.plain().send)(one.ep, payload.as_ptr().cast(), payload.len(), null_mut(), to_two, at(1))
        });
    }
    let mut released = 0;
    let mut seen = Vec::new();
    for i in 0..lengths.len() {
        let done = two.next(&[&one]);
        assert_eq!(done.context, 3);
        let offset = done.buffer - buffer.as_ptr() as usize;
        let payload = payloads.iter().find(|payload| payload.len() == done.bytes).unwrap();
        assert_eq!(&buffer[offset..offset + done.bytes], payload);
        seen.push(done.bytes);
        released += usize::from(done.flags & flag::MULTI_RECV != 0);
        assert!(released == 0 || i + 1 == lengths.len(), "given back while messages were still to come");
    }
    seen.sort_unstable();
    assert_eq!((seen, released), (vec![0, 10, 30_000, 35_000], 1));
    for _ in &lengths {
        one.next(&[&two]);
    }
}

#[test]
fn a_selective_queue_gets_what_asks_for_it() {
    let one = Rig::with(flag::SELECTIVE_COMPLETION, WAIT_NONE);
    let two = Rig::new();
    let to_two = one.insert(&two.address());
    let mut buffer = [0u8; 8];
    let mut take = || {
        // SAFETY: the buffer lives to the end.
        accepted(&[&one], || unsafe {
            (two.plain().recv)(two.ep, buffer.as_mut_ptr().cast(), 8, null_mut(), ADDR_UNSPEC, null_mut())
        });
        two.next(&[&one]);
    };
    // SAFETY: the bytes are static.
    accepted(&[&two], || unsafe {
        (one.plain().send)(one.ep, b"silently".as_ptr().cast(), 8, null_mut(), to_two, at(1))
    });
    take();
    let part = libc::iovec { iov_base: b"speaking".as_ptr().cast_mut().cast(), iov_len: 8 };
    let message = FiMsg {
        msg_iov: &raw const part,
        desc: null_mut(),
        iov_count: 1,
        addr: to_two,
        context: at(2),
        data: 0,
    };
    // SAFETY: the bytes are static.
    accepted(&[&two], || unsafe { (one.plain().sendmsg)(one.ep, &raw const message, flag::COMPLETION) });
    take();
    assert_eq!(one.next(&[&two]).context, 2);
    assert_eq!(one.poll(), None);
}

#[test]
fn a_reader_sleeps_until_a_message_comes() {
    let one = Rig::new();
    let two = Rig::with(0, WAIT_FD);
    let to_two = one.insert(&two.address());
    let mut buffer = [0u8; 8];
    // SAFETY: the buffer lives to the end; the handle is used by one thread at a time, as the queue allows.
    unsafe {
        accepted(&[], || {
            (two.plain().recv)(two.ep, buffer.as_mut_ptr().cast(), 8, null_mut(), ADDR_UNSPEC, at(1))
        });
        let mut entry: FiCqTaggedEntry = core::mem::zeroed();
        let sread = (*(*two.queue).ops).sread;
        let nothing = sread(two.queue, (&raw mut entry).cast(), 1, std::ptr::null(), 20);
        assert_eq!(nothing, -(libc::EAGAIN as isize), "the time is over");
        let queue = two.queue as usize;
        let reader = std::thread::spawn(move || {
            let mut entry: FiCqTaggedEntry = core::mem::zeroed();
            let read = sread(queue as *mut FidCq, (&raw mut entry).cast(), 1, std::ptr::null(), 60_000);
            (read, entry.op_context as usize)
        });
        std::thread::sleep(std::time::Duration::from_millis(30));
        accepted(&[], || (one.plain().inject)(one.ep, b"whatever".as_ptr().cast(), 8, to_two));
        assert_eq!(reader.join().unwrap(), (1, 1));
        let mut fd: i32 = -1;
        assert_eq!(
            ((*(*two.queue).fid.ops).control)(two.queue.cast(), CONTROL_GETWAIT, (&raw mut fd).cast()),
            0
        );
        assert!(fd > 2);
    }
    assert_eq!(&buffer, b"whatever");
}

#[test]
fn wrong_arguments_and_closed_handles_get_an_error() {
    let (one, two, to_two, _) = pair();
    let byte = [1u8; 1];
    // SAFETY: wrong on purpose, in ways that the interface must notice.
    unsafe {
        let inject = one.plain().inject;
        assert_eq!(inject(one.ep, byte.as_ptr().cast(), 1, 77), -(libc::EINVAL as isize), "no such address");
        assert_eq!(inject(one.ep, std::ptr::null(), 1, to_two), -(libc::EINVAL as isize), "no payload");
        assert_eq!(inject(one.ep, byte.as_ptr().cast(), 1 << 20, to_two), -(libc::EMSGSIZE as isize));
        assert_eq!(inject(null_mut(), byte.as_ptr().cast(), 1, to_two), -(libc::EINVAL as isize));
        let many = vec![libc::iovec { iov_base: at(1), iov_len: 1 }; 100];
        let sendv = one.plain().sendv;
        assert_eq!(sendv(one.ep, many.as_ptr(), null_mut(), 100, to_two, at(1)), -(libc::EINVAL as isize));
        let info = getinfo(std::ptr::null()).unwrap();
        let mut idle = null_mut();
        assert_eq!(((*(*one.domain).ops).endpoint)(one.domain, info, &raw mut idle, null_mut()), 0);
        let disabled = inject(idle, byte.as_ptr().cast(), 1, to_two);
        assert_eq!(disabled, -(errno::EOPBADSTATE as isize), "not enabled");
        assert_eq!(close(idle), 0);
        assert_eq!(inject(idle, byte.as_ptr().cast(), 1, to_two), -(libc::EBADF as isize), "closed");
    }
    drop(two);
}
