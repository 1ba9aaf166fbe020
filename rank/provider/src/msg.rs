//! fi_msg(3): messages without tags.

use libc::iovec;

use crate::abi::{Const, FiAddr, FiMsg, FiOpsMsg, FidEp, Opaque, flag};
use crate::boundary::{given, length};
use crate::callflags::{self, of_call};
use crate::engine::sinks::Submit;
use crate::engine::{Inbound, Outbound, SPACE_MESSAGES};
use crate::ep::endpoint;
use crate::memory::Segments;

pub(crate) static OPS: FiOpsMsg = FiOpsMsg {
    size: size_of::<FiOpsMsg>(),
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
    data: Option<u64>,
    inject: bool,
    /// Flags of the call; `None`: those of the endpoint.
    flags: Option<u64>,
}

const PLAIN: SendOptions = SendOptions { data: None, inject: false, flags: None };
const INJECT: SendOptions = SendOptions { data: None, inject: true, flags: None };

/// # Safety
/// `fid` is an endpoint of ours, and `payload` makes segments that stay readable as fi_msg(3) says.
unsafe fn transmit(
    fid: *mut FidEp,
    payload: crate::boundary::Result<Segments>,
    to: FiAddr,
    context: Opaque,
    options: SendOptions,
) -> isize {
    length("fi_send", || {
        // SAFETY: as the caller says.
        let object = unsafe { endpoint(fid) }?;
        let flags = of_call(options.flags, callflags::SEND, || object.transmit_flags())?;
        let message = Outbound {
            to,
            space: SPACE_MESSAGES,
            tag: 0,
            data: options.data,
            payload: &payload?,
            submit: Submit { context: context as usize, flags },
            inject: options.inject,
        };
        object.engine()?.send(&message).map(|()| 0)
    })
}

/// # Safety
/// `fid` is an endpoint of ours, and `buffer` makes segments that stay writable as fi_msg(3) says.
unsafe fn post(
    fid: *mut FidEp,
    buffer: crate::boundary::Result<Segments>,
    from: FiAddr,
    context: Opaque,
    flags: Option<u64>,
) -> isize {
    length("fi_recv", || {
        // SAFETY: as the caller says.
        let object = unsafe { endpoint(fid) }?;
        let flags = of_call(flags, callflags::RECEIVE, || object.receive_flags())?;
        let inbound = Inbound {
            space: SPACE_MESSAGES,
            from,
            tag: 0,
            ignore: u64::MAX,
            buffer: &buffer?,
            submit: Submit { context: context as usize, flags },
            multi: object.multi(flags),
        };
        object.engine()?.receive(&inbound).map(|()| 0)
    })
}

unsafe extern "C" fn recv(
    fid: *mut FidEp,
    buffer: Opaque,
    bytes: usize,
    _: Opaque,
    from: FiAddr,
    context: Opaque,
) -> isize {
    // SAFETY: as C promises for `fi_recv`.
    unsafe { post(fid, Segments::one(buffer, bytes), from, context, None) }
}

unsafe extern "C" fn recvv(
    fid: *mut FidEp,
    iov: *const iovec,
    _: *mut Opaque,
    count: usize,
    from: FiAddr,
    context: Opaque,
) -> isize {
    // SAFETY: as C promises for `fi_recvv`.
    unsafe { post(fid, Segments::new(iov, count), from, context, None) }
}

unsafe extern "C" fn recvmsg(fid: *mut FidEp, message: *const FiMsg, flags: u64) -> isize {
    // SAFETY: as C promises for `fi_recvmsg`.
    unsafe {
        match given(message) {
            Ok(message) => {
                let buffer = Segments::new(message.msg_iov, message.iov_count);
                post(fid, buffer, message.addr, message.context, Some(flags))
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
    context: Opaque,
) -> isize {
    // SAFETY: as C promises for `fi_send`.
    unsafe { transmit(fid, Segments::one(buffer, bytes), to, context, PLAIN) }
}

unsafe extern "C" fn sendv(
    fid: *mut FidEp,
    iov: *const iovec,
    _: *mut Opaque,
    count: usize,
    to: FiAddr,
    context: Opaque,
) -> isize {
    // SAFETY: as C promises for `fi_sendv`.
    unsafe { transmit(fid, Segments::new(iov, count), to, context, PLAIN) }
}

unsafe extern "C" fn sendmsg(fid: *mut FidEp, message: *const FiMsg, flags: u64) -> isize {
    // SAFETY: as C promises for `fi_sendmsg`.
    unsafe {
        match given(message) {
            Ok(message) => {
                let data = (flags & flag::REMOTE_CQ_DATA != 0).then_some(message.data);
                let payload = Segments::new(message.msg_iov, message.iov_count);
                let options = SendOptions { data, inject: false, flags: Some(flags) };
                transmit(fid, payload, message.addr, message.context, options)
            }
            Err(error) => -(error.0 as isize),
        }
    }
}

unsafe extern "C" fn inject(fid: *mut FidEp, buffer: Const, bytes: usize, to: FiAddr) -> isize {
    // SAFETY: as C promises for `fi_inject`.
    unsafe { transmit(fid, Segments::one(buffer, bytes), to, core::ptr::null_mut(), INJECT) }
}

unsafe extern "C" fn senddata(
    fid: *mut FidEp,
    buffer: Const,
    bytes: usize,
    _: Opaque,
    data: u64,
    to: FiAddr,
    context: Opaque,
) -> isize {
    // SAFETY: as C promises for `fi_senddata`.
    unsafe {
        transmit(fid, Segments::one(buffer, bytes), to, context, SendOptions { data: Some(data), ..PLAIN })
    }
}

unsafe extern "C" fn injectdata(
    fid: *mut FidEp,
    buffer: Const,
    bytes: usize,
    data: u64,
    to: FiAddr,
) -> isize {
    let options = SendOptions { data: Some(data), ..INJECT };
    // SAFETY: as C promises for `fi_injectdata`.
    unsafe { transmit(fid, Segments::one(buffer, bytes), to, core::ptr::null_mut(), options) }
}
