//! fi_tagged(3): messages with tags; looks at waiting messages, and claims.

use libc::iovec;

use crate::abi::{Const, FiAddr, FiMsgTagged, FiOpsTagged, FidEp, Opaque, flag};
use crate::boundary::{Result, given, length};
use crate::callflags::{self, of_call};
use crate::engine::sinks::Submit;
use crate::engine::{Inbound, Outbound, Peek, SPACE_TAGGED};
use crate::ep::endpoint;
use crate::memory::Segments;

pub(crate) static OPS: FiOpsTagged = FiOpsTagged {
    size: size_of::<FiOpsTagged>(),
    recv,
    recvv,
    recvmsg,
    send,
    sendv,
    sendmsg,
    inject,
    senddata,
    injectdata,
};

/// How a message is sent, beside its payload.
#[derive(Clone, Copy)]
struct SendOptions {
    tag: u64,
    data: Option<u64>,
    inject: bool,
    /// Flags of the call; `None`: those of the endpoint.
    flags: Option<u64>,
}

impl SendOptions {
    fn plain(tag: u64) -> SendOptions {
        SendOptions { tag, data: None, inject: false, flags: None }
    }

    fn inject(tag: u64) -> SendOptions {
        SendOptions { inject: true, ..SendOptions::plain(tag) }
    }
}

/// # Safety
/// `fid` is an endpoint of ours, and `payload` makes segments that stay readable as fi_tagged(3) says.
unsafe fn transmit(
    fid: *mut FidEp,
    payload: Result<Segments>,
    to: FiAddr,
    context: Opaque,
    options: SendOptions,
) -> isize {
    length("fi_tsend", || {
        // SAFETY: as the caller says.
        let object = unsafe { endpoint(fid) }?;
        let flags = of_call(options.flags, callflags::SEND, || object.transmit_flags())?;
        let message = Outbound {
            to,
            space: SPACE_TAGGED,
            tag: options.tag,
            data: options.data,
            payload: &payload?,
            submit: Submit { context: context as usize, flags },
            inject: options.inject,
        };
        object.engine()?.send(&message).map(|()| 0)
    })
}

/// The pattern of a receive.
#[derive(Clone, Copy)]
struct Wanted {
    from: FiAddr,
    tag: u64,
    ignore: u64,
}

/// # Safety
/// `fid` is an endpoint of ours, and `buffer` makes segments that stay writable as fi_tagged(3) says.
unsafe fn post(
    fid: *mut FidEp,
    buffer: Result<Segments>,
    wanted: Wanted,
    context: Opaque,
    flags: Option<u64>,
) -> isize {
    length("fi_trecv", || {
        // SAFETY: as the caller says.
        let object = unsafe { endpoint(fid) }?;
        let flags = of_call(flags, callflags::RECEIVE_TAGGED, || object.receive_flags())?;
        let submit = Submit { context: context as usize, flags };
        let Wanted { from, tag, ignore } = wanted;
        let engine = object.engine()?;
        if flags & flag::PEEK != 0 {
            return engine.peek(&Peek { space: SPACE_TAGGED, from, tag, ignore, submit }).map(|()| 0);
        }
        let buffer = buffer?;
        if flags & (flag::CLAIM | flag::DISCARD) != 0 {
            return engine.receive_claimed(SPACE_TAGGED, &buffer, submit).map(|()| 0);
        }
        let inbound = Inbound {
            space: SPACE_TAGGED,
            from,
            tag,
            ignore,
            buffer: &buffer,
            submit,
            multi: object.multi(flags),
        };
        engine.receive(&inbound).map(|()| 0)
    })
}

unsafe extern "C" fn recv(
    fid: *mut FidEp,
    buffer: Opaque,
    bytes: usize,
    _: Opaque,
    from: FiAddr,
    tag: u64,
    ignore: u64,
    context: Opaque,
) -> isize {
    // SAFETY: as C promises for `fi_trecv`.
    unsafe { post(fid, Segments::one(buffer, bytes), Wanted { from, tag, ignore }, context, None) }
}

unsafe extern "C" fn recvv(
    fid: *mut FidEp,
    iov: *const iovec,
    _: *mut Opaque,
    count: usize,
    from: FiAddr,
    tag: u64,
    ignore: u64,
    context: Opaque,
) -> isize {
    // SAFETY: as C promises for `fi_trecvv`.
    unsafe { post(fid, Segments::new(iov, count), Wanted { from, tag, ignore }, context, None) }
}

unsafe extern "C" fn recvmsg(fid: *mut FidEp, message: *const FiMsgTagged, flags: u64) -> isize {
    // SAFETY: as C promises for `fi_trecvmsg`.
    unsafe {
        match given(message) {
            Ok(message) => {
                let buffer = Segments::new(message.msg_iov, message.iov_count);
                let wanted = Wanted { from: message.addr, tag: message.tag, ignore: message.ignore };
                post(fid, buffer, wanted, message.context, Some(flags))
            }
            Err(error) => -(error.0 as isize),
        }
    }
}

unsafe extern "C" fn send(
    fid: *mut FidEp,
    buffer: Const,
    bytes: usize,
    _: Opaque,
    to: FiAddr,
    tag: u64,
    context: Opaque,
) -> isize {
    // SAFETY: as C promises for `fi_tsend`.
    unsafe { transmit(fid, Segments::one(buffer, bytes), to, context, SendOptions::plain(tag)) }
}

unsafe extern "C" fn sendv(
    fid: *mut FidEp,
    iov: *const iovec,
    _: *mut Opaque,
    count: usize,
    to: FiAddr,
    tag: u64,
    context: Opaque,
) -> isize {
    // SAFETY: as C promises for `fi_tsendv`.
    unsafe { transmit(fid, Segments::new(iov, count), to, context, SendOptions::plain(tag)) }
}

unsafe extern "C" fn sendmsg(fid: *mut FidEp, message: *const FiMsgTagged, flags: u64) -> isize {
    // SAFETY: as C promises for `fi_tsendmsg`.
    unsafe {
        match given(message) {
            Ok(message) => {
                let data = (flags & flag::REMOTE_CQ_DATA != 0).then_some(message.data);
                let payload = Segments::new(message.msg_iov, message.iov_count);
                let options = SendOptions { tag: message.tag, data, inject: false, flags: Some(flags) };
                transmit(fid, payload, message.addr, message.context, options)
            }
            Err(error) => -(error.0 as isize),
        }
    }
}

unsafe extern "C" fn inject(fid: *mut FidEp, buffer: Const, bytes: usize, to: FiAddr, tag: u64) -> isize {
    // SAFETY: as C promises for `fi_tinject`.
    unsafe {
        transmit(fid, Segments::one(buffer, bytes), to, core::ptr::null_mut(), SendOptions::inject(tag))
    }
}

unsafe extern "C" fn senddata(
    fid: *mut FidEp,
    buffer: Const,
    bytes: usize,
    _: Opaque,
    data: u64,
    to: FiAddr,
    tag: u64,
    context: Opaque,
) -> isize {
    let options = SendOptions { data: Some(data), ..SendOptions::plain(tag) };
    // SAFETY: as C promises for `fi_tsenddata`.
    unsafe { transmit(fid, Segments::one(buffer, bytes), to, context, options) }
}

unsafe extern "C" fn injectdata(
    fid: *mut FidEp,
    buffer: Const,
    bytes: usize,
    data: u64,
    to: FiAddr,
    tag: u64,
) -> isize {
    let options = SendOptions { data: Some(data), ..SendOptions::inject(tag) };
    // SAFETY: as C promises for `fi_tinjectdata`.
    unsafe { transmit(fid, Segments::one(buffer, bytes), to, core::ptr::null_mut(), options) }
}
