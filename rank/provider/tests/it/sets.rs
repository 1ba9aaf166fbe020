//! Poll sets, wait sets, descriptors of counters, and aliases of endpoints.

use core::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use stillwire_fi::abi::*;

use crate::processes::at;
use crate::rig::{Rig, accepted, close, getinfo};

const AGAIN: c_int = -libc::EAGAIN;

fn queue(rig: &Rig, wait_obj: u32, set: *mut FidWait, context: usize) -> *mut FidCq {
    let mut opened = null_mut();
    // SAFETY: as fi_cq_open(3) says.
    unsafe {
        let mut attr: FiCqAttr = core::mem::zeroed();
        (attr.format, attr.wait_obj, attr.wait_set) = (CQ_FORMAT_CONTEXT, wait_obj, set.cast());
        assert_eq!(
            ((*(*rig.domain).ops).cq_open)(rig.domain, &raw mut attr, &raw mut opened, at(context)),
            0
        );
    }
    opened
}

fn counter(rig: &Rig, wait_obj: u32, set: *mut FidWait, context: usize) -> *mut FidCntr {
    let mut opened = null_mut();
    // SAFETY: as fi_cntr_open(3) says.
    unsafe {
        let mut attr: FiCntrAttr = core::mem::zeroed();
        (attr.wait_obj, attr.wait_set) = (wait_obj, set.cast());
        let answer =
            ((*(*rig.domain).ops).cntr_open)(rig.domain, &raw mut attr, &raw mut opened, at(context));
        assert_eq!(answer, 0);
    }
    opened
}

/// One more endpoint of the rig's domain, whose receives go to this queue and this counter.
fn endpoint(rig: &Rig, queue: *mut FidCq, counter: *mut FidCntr) -> *mut FidEp {
    let mut ep = null_mut();
    // SAFETY: as fi_endpoint(3) says.
    unsafe {
        let info = getinfo(std::ptr::null()).unwrap();
        assert_eq!(((*(*rig.domain).ops).endpoint)(rig.domain, info, &raw mut ep, null_mut()), 0);
        let ops = &*(*ep).fid.ops;
        assert_eq!((ops.bind)(ep.cast(), queue.cast(), flag::SEND | flag::RECV), 0);
        assert_eq!((ops.bind)(ep.cast(), counter.cast(), flag::RECV), 0);
        assert_eq!((ops.bind)(ep.cast(), rig.vector.cast(), 0), 0);
        assert_eq!((ops.control)(ep.cast(), CONTROL_ENABLE, null_mut()), 0);
    }
    ep
}

fn post(rig: &Rig, ep: *mut FidEp, buffer: &mut [u8]) {
    // SAFETY: the buffer outlives the endpoint.
    accepted(&[], || unsafe {
        (rig.plain().recv)(ep, buffer.as_mut_ptr().cast(), buffer.len(), null_mut(), ADDR_UNSPEC, at(7))
    });
}

/// The rig's number for an endpoint.
fn number(rig: &Rig, ep: *mut FidEp) -> u64 {
    let mut bytes = [0u8; 64];
    let mut room = bytes.len();
    // SAFETY: room for an address.
    let answer = unsafe { ((*(*ep).cm).getname)(ep.cast(), bytes.as_mut_ptr().cast(), &raw mut room) };
    assert_eq!(answer, 0);
    rig.insert(&bytes)
}

fn send(rig: &Rig, to: u64) {
    // SAFETY: injected bytes are copied at once.
    accepted(&[], || unsafe { (rig.plain().inject)(rig.ep, b"hello".as_ptr().cast(), 5, to) });
}

fn take(queue: *mut FidCq) -> isize {
    let mut entry = FiCqEntry { op_context: null_mut() };
    // SAFETY: room for one entry of the queue's format.
    unsafe { ((*(*queue).ops).read)(queue, (&raw mut entry).cast(), 1) }
}

fn descriptor<T>(object: *mut T) -> BorrowedFd<'static> {
    let mut fd: c_int = -1;
    // SAFETY: a place for a descriptor, which lives as long as its object.
    unsafe {
        let control = (*(*object.cast::<Fid>()).ops).control;
        assert_eq!(control(object.cast(), CONTROL_GETWAIT, (&raw mut fd).cast()), 0);
        BorrowedFd::borrow_raw(fd)
    }
}

/// Sleeps as fi_poll(3) says: `fi_trywait`, then poll(2), again and again until `done`.
fn sleep_until<T>(rig: &Rig, object: *mut T, done: impl Fn() -> bool) {
    let mut fids = [object.cast::<Fid>()];
    let mut slept = 0;
    while !done() {
        // SAFETY: one handle.
        match unsafe { ((*(*rig.fabric).ops).trywait)(rig.fabric, fids.as_mut_ptr(), 1) } {
            0 => {
                let mut polled = [PollFd::new(descriptor(object), PollFlags::POLLIN)];
                assert_eq!(poll(&mut polled, PollTimeout::from(30_000u16)).unwrap(), 1, "nobody rings");
                slept += 1;
            }
            answer => assert_eq!(answer, AGAIN),
        }
        assert!(slept < 1000, "a bell that never falls silent");
    }
}

#[test]
fn a_poll_set_reports_who_has_something() {
    let rig = Rig::new();
    let (cq, cntr) = (queue(&rig, WAIT_NONE, null_mut(), 11), counter(&rig, WAIT_NONE, null_mut(), 12));
    let ep = endpoint(&rig, cq, cntr);
    let to = number(&rig, ep);
    let mut set = null_mut();
    // SAFETY: as fi_poll(3) says.
    unsafe {
        let mut attr = FiPollAttr { flags: 1 };
        let open = (*(*rig.domain).ops).poll_open;
        assert_eq!(open(rig.domain, &raw mut attr, &raw mut set), -libc::EINVAL, "flags are reserved");
        attr.flags = 0;
        assert_eq!(open(rig.domain, &raw mut attr, &raw mut set), 0);
        let ops = &*(*set).ops;
        let ask = |room: c_int| {
            let mut contexts: [*mut c_void; 4] = [null_mut(); 4];
            let reported = (ops.poll)(set, contexts.as_mut_ptr(), room);
            contexts
                .iter()
                .take(usize::try_from(reported).unwrap())
                .map(|reported| *reported as usize)
                .collect::<Vec<_>>()
        };
        assert_eq!((ops.poll_add)(set, cq.cast(), 0), 0);
        assert_eq!((ops.poll_add)(set, cntr.cast(), 0), 0);
        assert_eq!((ops.poll_add)(set, cq.cast(), 0), -libc::EBUSY, "it is there already");
        assert_eq!((ops.poll_add)(set, ep.cast(), 0), -libc::EINVAL, "an endpoint");
        assert!(ask(4).is_empty());
        let mut buffer = [0u8; 8];
        post(&rig, ep, &mut buffer);
        send(&rig, to);
        let mut reported = Vec::new();
        while reported.len() < 2 {
            reported.extend(ask(4));
            reported.dedup();
        }
        reported.sort_unstable();
        reported.dedup();
        assert_eq!(reported, [11, 12]);
        assert_eq!(ask(4), [11], "what has not been read is told again; a counter once");
        assert_eq!(take(cq), 1);
        assert!(ask(4).is_empty());
        // As many as there is room for; the others next time.
        post(&rig, ep, &mut buffer);
        send(&rig, to);
        while ask(1).is_empty() {}
        assert_eq!(take(cq), 1);
        assert_eq!(ask(1), [12]);
        assert_eq!(((*(*cntr).ops).add)(cntr, 5), 0);
        assert!(ask(4).is_empty(), "the program knows what it has added itself");
        assert_eq!(close(cq), -libc::EBUSY, "it is in use");
        assert_eq!((ops.poll_del)(set, cq.cast(), 0), 0);
        assert_eq!((ops.poll_del)(set, cq.cast(), 0), -libc::EINVAL, "it is not there");
        assert_eq!((ops.poll_del)(set, cntr.cast(), 0), 0);
        assert_eq!(close(set), 0);
        assert_eq!((ops.poll)(set, null_mut(), 0), -libc::EBADF);
    }
    assert_eq!((close(ep), close(cq), close(cntr)), (0, 0, 0));
}

#[test]
fn a_thread_sleeps_on_a_wait_set_until_one_of_its_members_has_something() {
    let rig = Rig::new();
    let mut set = null_mut();
    // SAFETY: as fi_poll(3) says.
    unsafe {
        let mut attr = FiWaitAttr { wait_obj: WAIT_MUTEX_COND, flags: 0 };
        let open = (*(*rig.fabric).ops).wait_open;
        assert_eq!(open(rig.fabric, &raw mut attr, &raw mut set), -libc::ENOSYS);
        attr.wait_obj = WAIT_FD;
        assert_eq!(open(rig.fabric, &raw mut attr, &raw mut set), 0);
        let wait = (*(*set).ops).wait;
        let (cq, cntr) = (queue(&rig, WAIT_SET, set, 0), counter(&rig, WAIT_SET, set, 0));
        let ep = endpoint(&rig, cq, cntr);
        let to = number(&rig, ep);
        assert_eq!(wait(set, 20), -libc::ETIMEDOUT);
        let mut buffers = [[0u8; 8]; 3];
        for buffer in &mut buffers {
            post(&rig, ep, buffer);
        }
        let later = |rig: &Rig| {
            std::thread::sleep(Duration::from_millis(50));
            send(rig, to);
        };
        // By its call.
        std::thread::scope(|scope| {
            scope.spawn(|| later(&rig));
            assert_eq!(wait(set, 60_000), 0);
        });
        while take(cq) != 1 {}
        while wait(set, 20) == 0 {}
        // By its descriptor.
        std::thread::scope(|scope| {
            scope.spawn(|| later(&rig));
            sleep_until(&rig, set, || take(cq) == 1);
        });
        // By the descriptor of its counter.
        std::thread::scope(|scope| {
            scope.spawn(|| later(&rig));
            sleep_until(&rig, cntr, || ((*(*cntr).ops).read)(cntr) == 3);
        });
        assert_eq!(close(set), -libc::EBUSY, "its members are open");
        assert_eq!((close(ep), close(cq), close(cntr), close(set)), (0, 0, 0, 0));
        assert_eq!(wait(set, 0), -libc::EBADF);
    }
}

#[test]
fn a_counter_with_a_descriptor_wakes_who_waits_for_it() {
    let rig = Rig::new();
    let (cq, cntr) = (queue(&rig, WAIT_NONE, null_mut(), 0), counter(&rig, WAIT_FD, null_mut(), 0));
    let ep = endpoint(&rig, cq, cntr);
    let to = number(&rig, ep);
    let mut buffers = [[0u8; 8]; 2];
    for buffer in &mut buffers {
        post(&rig, ep, buffer);
    }
    // SAFETY: a counter of ours.
    unsafe {
        let ops = &*(*cntr).ops;
        assert_eq!((ops.wait)(cntr, 1, 20), -libc::ETIMEDOUT);
        for count in 1..=2 {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(50));
                    send(&rig, to);
                });
                if count == 1 {
                    assert_eq!((ops.wait)(cntr, count, 60_000), 0);
                } else {
                    sleep_until(&rig, cntr, || (ops.read)(cntr) == count);
                }
            });
        }
    }
    assert_eq!((close(ep), close(cq), close(cntr)), (0, 0, 0));
}

#[test]
fn an_alias_has_flags_of_its_own_and_the_same_endpoint() {
    // Only an operation that asks for one gets an entry.
    let rig = Rig::with(flag::SELECTIVE_COMPLETION, WAIT_NONE);
    let to_itself = rig.insert(&rig.address());
    let mut alias = null_mut::<Fid>();
    // SAFETY: as fi_endpoint(3) says.
    unsafe {
        let control = (*(*rig.ep).fid.ops).control;
        let mut asked = FiAlias { fid: &raw mut alias, flags: flag::COMPLETION };
        let ask = |asked: &mut FiAlias| control(rig.ep.cast(), CONTROL_ALIAS, (&raw mut *asked).cast());
        assert_eq!(ask(&mut asked), -libc::EINVAL, "of which direction?");
        asked.flags |= flag::SEND;
        assert_eq!(ask(&mut asked), 0);
        let alias: *mut FidEp = alias.cast();
        let mut buffer = [0u8; 8];
        for (ep, context) in [(rig.ep, 1), (alias, 2)] {
            let recv = rig.plain().recv;
            accepted(&[], || recv(ep, buffer.as_mut_ptr().cast(), 8, null_mut(), ADDR_UNSPEC, at(9)));
            accepted(&[], || {
                (rig.plain().send)(ep, b"hello".as_ptr().cast(), 5, null_mut(), to_itself, at(context))
            });
        }
        let done = rig.next(&[]);
        assert_eq!(
            (done.context, done.flags & flag::SEND),
            (2, flag::SEND),
            "what was sent by the alias alone is told"
        );
        assert_eq!(close(rig.ep), -libc::EBUSY, "an alias is open");
        assert_eq!(close(alias), 0);
        assert_eq!((rig.plain().inject)(alias, b"x".as_ptr().cast(), 1, to_itself), -(libc::EBADF as isize));
        accepted(&[], || (rig.plain().inject)(rig.ep, b"x".as_ptr().cast(), 1, to_itself));
    }
    assert_eq!(rig.poll(), None);
}
