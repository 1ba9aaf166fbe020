//! Promises of the man pages in corner cases: injected buffers, taken back buffers, fences, full queues, messages
//! without a reader.

use std::ptr::null_mut;

use stillwire_fi::abi::*;

use crate::processes::{Peer, at, hear, is_child, say};
use crate::rig::{ADDRESS_BYTES, Rig, accepted, close, pair, pattern};

/// Gives the calls without flags of their own these flags.
fn default_flags(rig: &Rig, flags: u64) {
    let mut flags = flags;
    // SAFETY: 64 bits of flags.
    let set =
        unsafe { ((*(*rig.ep).fid.ops).control)(rig.ep.cast(), CONTROL_SETOPSFLAG, (&raw mut flags).cast()) };
    assert_eq!(set, 0);
}

/// Posts a receive for the message with this tag.
fn receive(rig: &Rig, buffer: &mut [u8], tag: u64, context: usize) {
    let start = buffer.as_mut_ptr().cast();
    // SAFETY: the caller's buffer lives until the completion has been read.
    accepted(&[], || unsafe {
        (rig.tagged().recv)(rig.ep, start, buffer.len(), null_mut(), ADDR_UNSPEC, tag, 0, at(context))
    });
}

#[test]
fn an_injected_buffer_is_the_programs_at_once_whatever_level_is_the_default() {
    let (one, two, to_two, _) = pair();
    for level in [flag::MATCH_COMPLETE, flag::DELIVERY_COMPLETE, flag::TRANSMIT_COMPLETE] {
        default_flags(&one, flag::SEND | level);
        let mut bytes = *b"as it was";
        // SAFETY: injected bytes are copied at once: the test is about that.
        accepted(&[], || unsafe { (one.tagged().inject)(one.ep, bytes.as_ptr().cast(), 9, to_two, 1) });
        bytes.fill(b'!');
        std::hint::black_box(&bytes);
        let mut received = [0u8; 9];
        receive(&two, &mut received, 1, 1);
        assert_eq!(two.next(&[&one]).error, None);
        assert_eq!(&received, b"as it was", "level {level:#x}");
    }
    assert_eq!(one.poll(), None, "an injected message has no completion");
}

/// The child complains to a pipe without a reader.
fn unheard() {
    // SAFETY: the pipe's reading end is closed at once, and the signal is that of a program that does not care about it.
    unsafe {
        let mut ends = [0; 2];
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        assert_eq!(libc::dup2(ends[1], libc::STDERR_FILENO), libc::STDERR_FILENO);
        libc::close(ends[0]);
        libc::close(ends[1]);
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
    let rig = Rig::new();
    let nobody = [0xa5u8; ADDRESS_BYTES];
    let mut number = 0;
    // SAFETY: one address, which is invalid: a message would be printed.
    let inserted = unsafe {
        ((*(*rig.vector).ops).insert)(rig.vector, nobody.as_ptr().cast(), 1, &raw mut number, 0, null_mut())
    };
    assert_eq!(inserted, 0);
    // SAFETY: looks whether the signal waits.
    let waits = unsafe {
        let mut waiting: libc::sigset_t = core::mem::zeroed();
        libc::sigpending(&raw mut waiting);
        libc::sigismember(&raw const waiting, libc::SIGPIPE)
    };
    say(&format!("alive, {waits} signals"));
    assert_eq!(hear(), "end");
}

#[test]
fn a_complaint_that_nobody_reads_harms_nobody() {
    if is_child() {
        return unheard();
    }
    let mut peer = Peer::start("promises::a_complaint_that_nobody_reads_harms_nobody");
    assert_eq!(peer.hear(), "alive, 0 signals");
    peer.send("end");
    assert_eq!(peer.ends(), None);
}

#[test]
fn a_buffer_that_is_taken_back_loses_no_message() {
    taken_back();
    if !is_child() {
        // Where a message takes several steps.
        Peer::over("promises::a_buffer_that_is_taken_back_loses_no_message", "udp").ends_well();
    }
}

fn taken_back() {
    const BYTES: usize = 300_000;
    let (one, two, to_two, _) = pair();
    let mut came = [0u32; 2];
    for round in 0..120usize {
        let payload = pattern(BYTES, round);
        let mut many = vec![0u8; 2 * BYTES];
        let part = libc::iovec { iov_base: many.as_mut_ptr().cast(), iov_len: many.len() };
        let message = FiMsg {
            msg_iov: &raw const part,
            desc: null_mut(),
            iov_count: 1,
            addr: ADDR_UNSPEC,
            context: at(7),
            data: 0,
        };
        // SAFETY: buffers live until their completions have been read.
        unsafe {
            accepted(&[], || (two.plain().recvmsg)(two.ep, &raw const message, flag::MULTI_RECV));
            accepted(&[], || {
                (one.plain().send)(one.ep, payload.as_ptr().cast(), BYTES, null_mut(), to_two, at(1))
            });
            for _ in 0..round % 12 {
                one.counted();
                two.counted();
            }
            assert_eq!(((*(*two.ep).ops).cancel)(two.ep.cast(), at(7)), 0);
        }
        let first = two.next(&[&one]);
        assert_eq!(first.context, 7);
        if first.error.is_none() {
            came[0] += 1;
            assert_eq!((first.bytes, first.flags & flag::MULTI_RECV), (BYTES, 0));
            assert_eq!(many[..BYTES], payload, "round {round}");
            let last = two.next(&[&one]);
            assert_eq!((last.context, last.error), (7, Some((libc::ECANCELED, 0))), "round {round}");
        } else {
            came[1] += 1;
            assert_eq!(first.error, Some((libc::ECANCELED, 0)), "round {round}");
            // SAFETY: the buffer lives until the completion has been read.
            accepted(&[], || unsafe {
                let start = many.as_mut_ptr().cast();
                (two.plain().recv)(two.ep, start, many.len(), null_mut(), ADDR_UNSPEC, at(8))
            });
            let done = two.next(&[&one]);
            assert_eq!((done.context, done.bytes, done.error), (8, BYTES, None), "round {round}");
            assert_eq!(many[..BYTES], payload, "round {round}");
        }
        assert_eq!(one.next(&[&two]).error, None);
    }
    println!("{} messages came into the buffer that was taken back, {} later", came[0], came[1]);
}

#[test]
fn a_fenced_message_waits_for_what_was_sent_before() {
    let (one, two, to_two, _) = pair();
    let long = pattern(100_000, 3);
    let mut received = vec![0u8; 100_000];
    let part = libc::iovec { iov_base: long.as_ptr().cast_mut().cast(), iov_len: 8 };
    let fenced = FiMsgTagged {
        msg_iov: &raw const part,
        desc: null_mut(),
        iov_count: 1,
        addr: to_two,
        tag: 2,
        ignore: 0,
        context: at(2),
        data: 0,
    };
    // SAFETY: buffers live until their completions have been read.
    unsafe {
        let start = long.as_ptr().cast();
        accepted(&[], || (one.tagged().send)(one.ep, start, long.len(), null_mut(), to_two, 1, at(1)));
        let send = || (one.tagged().sendmsg)(one.ep, &raw const fenced, flag::FENCE | flag::COMPLETION);
        for _ in 0..100 {
            assert_eq!(send(), -(libc::EAGAIN as isize), "nobody has received what was sent before");
            two.counted();
        }
        receive(&two, &mut received, 1, 1);
        assert_eq!(two.next(&[&one]).context, 1);
        assert_eq!(one.next(&[&two]).context, 1);
        accepted(&[&two], send);
    }
    assert_eq!(one.next(&[&two]).context, 2);
    // SAFETY: zeros are a value of every field.
    let mut hints: FiInfo = unsafe { core::mem::zeroed() };
    hints.caps = flag::TAGGED | flag::FENCE;
    let info = crate::rig::getinfo(&raw const hints).expect("fences are there");
    // SAFETY: the answer of getinfo is whole.
    assert_ne!(unsafe { (*info).caps & (*(*info).tx_attr).caps & flag::FENCE }, 0);
}

/// Entries that a queue holds which was opened without a size.
const QUEUE_ENTRIES: usize = 1 << 16;

#[test]
fn a_queue_that_nobody_reads_does_not_grow_without_end() {
    let (one, two, to_two, _) = pair();
    // Sends are over when they are copied.
    default_flags(&one, flag::SEND | flag::COMPLETION);
    let mut many = vec![0u8; 16 * QUEUE_ENTRIES];
    let part = libc::iovec { iov_base: many.as_mut_ptr().cast(), iov_len: many.len() };
    let message = FiMsg {
        msg_iov: &raw const part,
        desc: null_mut(),
        iov_count: 1,
        addr: ADDR_UNSPEC,
        context: at(7),
        data: 0,
    };
    // SAFETY: the buffer lives to the end.
    accepted(&[], || unsafe { (two.plain().recvmsg)(two.ep, &raw const message, flag::MULTI_RECV) });
    let mut heard = 0;
    for i in 0..QUEUE_ENTRIES {
        // SAFETY: eight bytes, which are copied at once.
        accepted(&[&two], || unsafe {
            (one.plain().send)(one.ep, b"whatever".as_ptr().cast(), 8, null_mut(), to_two, at(i))
        });
        while two.poll().is_some() {
            heard += 1;
        }
    }
    while heard < QUEUE_ENTRIES {
        assert_eq!(two.next(&[]).error, None);
        heard += 1;
    }
    // SAFETY: as above.
    let send =
        || unsafe { (one.plain().send)(one.ep, b"whatever".as_ptr().cast(), 8, null_mut(), to_two, at(1)) };
    for _ in 0..1000 {
        assert_eq!(send(), -(libc::EAGAIN as isize), "the queue is full");
    }
    for i in 0..QUEUE_ENTRIES {
        assert_eq!(one.poll().map(|done| done.context), Some(i));
    }
    assert_eq!(send(), 0);
    assert_eq!((one.next(&[]).context, two.next(&[&one]).context), (1, 7));
}

#[test]
fn a_vector_that_would_report_events_is_not_there() {
    let rig = Rig::new();
    // SAFETY: attributes are whole.
    unsafe {
        let open = (*(*rig.domain).ops).av_open;
        for (flags, answer) in
            [(flag::COMPLETION, -libc::ENOSYS), (flag::READ, -libc::ENOSYS), (flag::SYMMETRIC, 0)]
        {
            let mut attr: FiAvAttr = core::mem::zeroed();
            attr.flags = flags;
            let mut vector = null_mut();
            assert_eq!(open(rig.domain, &raw mut attr, &raw mut vector, null_mut()), answer, "{flags:#x}");
            if answer == 0 {
                assert_eq!(crate::rig::close(vector), 0);
            }
        }
    }
}

/// The child may not make files as long as shared memory for its peers.
fn small_files() {
    let small = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
    // SAFETY: a bound for this process.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const small) }, 0);
    let (one, two, to_two, _) = pair();
    let mut received = [0u8; 8];
    receive(&two, &mut received, 1, 1);
    // SAFETY: injected bytes are copied at once.
    accepted(&[&two], || unsafe { (one.tagged().inject)(one.ep, b"whatever".as_ptr().cast(), 8, to_two, 1) });
    assert_eq!(two.next(&[&one]).error, None);
    assert_eq!(&received, b"whatever");
}

#[test]
fn a_bound_of_the_length_of_files_leaves_udp() {
    if is_child() {
        return small_files();
    }
    Peer::start("promises::a_bound_of_the_length_of_files_leaves_udp").ends_well();
}

#[test]
fn the_library_stays_when_it_is_closed() {
    if !is_child() {
        return Peer::start("promises::the_library_stays_when_it_is_closed").ends_well();
    }
    let path = std::ffi::CString::new(crate::rig::library().to_str().unwrap()).unwrap();
    // SAFETY: plain loading and closing of a library of ours.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        assert!(!handle.is_null());
        assert_eq!(libc::dlclose(handle), 0);
        assert!(!libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD).is_null());
    }
}

#[test]
fn an_event_queue_is_what_it_was_opened_for() {
    let rig = Rig::new();
    // SAFETY: attributes are whole, and entries as long as they say.
    unsafe {
        let fabric = rig.fabric();
        let open = (*(*fabric).ops).eq_open;
        let entry = [0u8; 24];
        for (flags, wait, answer) in [
            (0, WAIT_FD, -libc::ENOSYS),
            (flag::MORE, WAIT_NONE, -errno::EBADFLAGS),
            (0, WAIT_NONE, 0),
            (flag::WRITE, WAIT_UNSPEC, 0),
        ] {
            let mut attr: FiEqAttr = core::mem::zeroed();
            (attr.flags, attr.wait_obj) = (flags, wait);
            let mut queue = null_mut();
            assert_eq!(open(fabric, &raw mut attr, &raw mut queue, null_mut()), answer, "{flags:#x} {wait}");
            if answer == 0 {
                let written = ((*(*queue).ops).write)(queue, 0, entry.as_ptr().cast(), 24, 0);
                assert_eq!(written, if flags == 0 { -(libc::EINVAL as isize) } else { 24 });
                assert_eq!(crate::rig::close(queue), 0);
            }
        }
    }
}

#[test]
fn a_region_that_is_open_for_reading_is_not_changed() {
    const SUM: u32 = 2;
    const READ: u32 = 10;
    const INT64: u32 = 6;
    let (one, two, to_two, _) = pair();
    let memory = 40i64.to_le_bytes();
    let (add, mut before) = (2i64, 0i64);
    let mut region = null_mut();
    // SAFETY: memory and buffers live until the completions have been read, and the region is closed.
    unsafe {
        let (start, only) = (memory.as_ptr().cast(), flag::REMOTE_READ);
        let reg = (*(*two.domain).mr).reg;
        assert_eq!(reg(two.domain.cast(), start, 8, only, 0, 5, 0, &raw mut region, null_mut()), 0);
        for (op, answer) in [(READ, None), (SUM, Some((libc::EACCES, 0)))] {
            accepted(&[&two], || {
                (one.atomics().readwrite)(
                    one.ep,
                    (&raw const add).cast(),
                    1,
                    null_mut(),
                    (&raw mut before).cast(),
                    null_mut(),
                    to_two,
                    0,
                    5,
                    INT64,
                    op,
                    at(1),
                )
            });
            assert_eq!(one.next(&[&two]).error, answer, "operation {op}");
        }
        assert_eq!((before, std::hint::black_box(&memory)), (40, &40i64.to_le_bytes()));
    }
    assert_eq!(crate::rig::close(region), 0);
}

#[test]
fn flags_that_are_not_honoured_are_refused() {
    const BAD: isize = -(errno::EBADFLAGS as isize);
    let (one, two, to_two, _) = pair();
    let mut bytes = [1u8; 8];
    let region = two.register(&mut bytes, 5);
    let part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 8 };
    let message = FiMsg {
        msg_iov: &raw const part,
        desc: null_mut(),
        iov_count: 1,
        addr: to_two,
        context: at(1),
        data: 0,
    };
    let place = FiRmaIov { addr: 0, len: 8, key: 5 };
    // SAFETY: zero is a value of every field.
    let (mut tagged, mut remote): (FiMsgTagged, FiMsgRma) = unsafe { core::mem::zeroed() };
    tagged.msg_iov = &raw const part;
    tagged.iov_count = 1;
    tagged.addr = to_two;
    remote.msg_iov = &raw const part;
    remote.iov_count = 1;
    remote.addr = to_two;
    remote.rma_iov = &raw const place;
    remote.rma_iov_count = 1;
    for bad in [1u64 << 63, flag::TRIGGER, flag::COMMIT_COMPLETE, flag::RECV | flag::SEND] {
        let flags = bad | flag::COMPLETION;
        // SAFETY: refused before anything is touched.
        unsafe {
            assert_eq!((one.plain().sendmsg)(one.ep, &raw const message, flags), BAD, "{bad:x}");
            assert_eq!((one.plain().recvmsg)(one.ep, &raw const message, flags), BAD, "{bad:x}");
            assert_eq!((one.tagged().sendmsg)(one.ep, &raw const tagged, flags), BAD, "{bad:x}");
            assert_eq!((one.tagged().recvmsg)(one.ep, &raw const tagged, flags), BAD, "{bad:x}");
            assert_eq!((one.remote().writemsg)(one.ep, &raw const remote, flags), BAD, "{bad:x}");
            assert_eq!((one.remote().readmsg)(one.ep, &raw const remote, flags), BAD, "{bad:x}");
        }
    }
    // Looks are for messages with tags.
    // SAFETY: as above.
    assert_eq!(unsafe { (one.plain().recvmsg)(one.ep, &raw const message, flag::PEEK) }, BAD);
    let control = |command: i32, mut flags: u64| {
        // SAFETY: 64 bits of flags.
        unsafe { ((*(*one.ep).fid.ops).control)(one.ep.cast(), command, (&raw mut flags).cast()) }
    };
    assert_eq!(control(CONTROL_SETOPSFLAG, flag::SEND | flag::COMMIT_COMPLETE), -errno::EBADFLAGS);
    assert_eq!(control(CONTROL_SETOPSFLAG, flag::RECV | flag::DELIVERY_COMPLETE), -errno::EBADFLAGS);
    let mut other = null_mut();
    // SAFETY: refused.
    let answer = unsafe {
        let reg = (*(*one.domain).mr).reg;
        reg(
            one.domain.cast(),
            bytes.as_ptr().cast(),
            8,
            flag::REMOTE_READ,
            0,
            6,
            1 << 63,
            &raw mut other,
            null_mut(),
        )
    };
    assert_eq!(answer, -errno::EBADFLAGS);
    // And those that are honoured are not.
    for level in [0, flag::INJECT_COMPLETE, flag::TRANSMIT_COMPLETE, flag::DELIVERY_COMPLETE, flag::FENCE] {
        // SAFETY: the bytes outlive the completion.
        accepted(&[&two], || unsafe {
            (one.remote().writemsg)(one.ep, &raw const remote, level | flag::COMPLETION)
        });
        assert_eq!(one.next(&[&two]).error, None);
    }
    assert_eq!(close(region), 0);
}
