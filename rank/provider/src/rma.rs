//! fi_rma(3): reading and writing peers' memory.

use libc::iovec;

use crate::abi::{Const, FiAddr, FiMsgRma, FiOpsRma, FidEp, Opaque, flag};
use crate::boundary::{EINVAL, Result, given, length};
use crate::callflags::{self, of_call};
use crate::engine::RemoteAddress;
use crate::engine::sinks::Submit;
use crate::ep::endpoint;
use crate::memory::Segments;

pub(crate) static OPS: FiOpsRma = FiOpsRma {
    size: size_of::<FiOpsRma>(),
    read,
    readv,
    readmsg,
    write,
    writev,
    writemsg,
    inject,
    writedata,
    injectdata,
};

/// # Safety
/// `fid` is an endpoint of ours, and `buffer` makes segments that stay writable as fi_rma(3) says.
unsafe fn fetch(
    fid: *mut FidEp,
    buffer: Result<Segments>,
    place: RemoteAddress,
    context: Opaque,
    flags: Option<u64>,
) -> isize {
    length("fi_read", || {
        // SAFETY: as the caller says.
        let object = unsafe { endpoint(fid) }?;
        let flags = of_call(flags, callflags::REQUEST, || object.transmit_flags())?;
        let submit = Submit { context: context as usize, flags };
        object.engine()?.read(place, &buffer?, submit).map(|()| 0)
    })
}

/// How bytes are written, beside where.
#[derive(Clone, Copy)]
struct WriteOptions {
    data: Option<u64>,
    inject: bool,
    /// Flags of the call; `None`: those of the endpoint.
    flags: Option<u64>,
}

const PLAIN: WriteOptions = WriteOptions { data: None, inject: false, flags: None };

/// # Safety
/// `fid` is an endpoint of ours, and `payload` makes segments that stay readable as fi_rma(3) says.
unsafe fn put(
    fid: *mut FidEp,
    payload: Result<Segments>,
    place: RemoteAddress,
    context: Opaque,
    options: WriteOptions,
) -> isize {
    length("fi_write", || {
        // SAFETY: as the caller says.
        let object = unsafe { endpoint(fid) }?;
        let flags = of_call(options.flags, callflags::SEND, || object.transmit_flags())?;
        let submit = Submit { context: context as usize, flags };
        object.engine()?.write(place, &payload?, options.data, submit, options.inject).map(|()| 0)
    })
}

/// The one place that a request names, and its local segments, whose length is the place's.
///
/// # Safety
/// As C promises for `fi_readmsg` and `fi_writemsg`.
unsafe fn parts(message: &FiMsgRma) -> Result<(RemoteAddress, Segments)> {
    if message.rma_iov_count != 1 {
        return Err(EINVAL);
    }
    // SAFETY: as the caller says.
    let (remote, local) =
        unsafe { (given(message.rma_iov)?, Segments::new(message.msg_iov, message.iov_count)?) };
    if remote.len != local.bytes() {
        return Err(EINVAL);
    }
    Ok((RemoteAddress { peer: message.addr, address: remote.addr, key: remote.key }, local))
}

unsafe extern "C" fn read(
    fid: *mut FidEp,
    buffer: Opaque,
    bytes: usize,
    _: Opaque,
    peer: FiAddr,
    address: u64,
    key: u64,
    context: Opaque,
) -> isize {
    // SAFETY: as C promises for `fi_read`.
    unsafe { fetch(fid, Segments::one(buffer, bytes), RemoteAddress { peer, address, key }, context, None) }
}

unsafe extern "C" fn readv(
    fid: *mut FidEp,
    iov: *const iovec,
    _: *mut Opaque,
    count: usize,
    peer: FiAddr,
    address: u64,
    key: u64,
    context: Opaque,
) -> isize {
    // SAFETY: as C promises for `fi_readv`.
    unsafe { fetch(fid, Segments::new(iov, count), RemoteAddress { peer, address, key }, context, None) }
}

unsafe extern "C" fn readmsg(fid: *mut FidEp, message: *const FiMsgRma, flags: u64) -> isize {
    // SAFETY: as C promises for `fi_readmsg`.
    unsafe {
        match given(message).and_then(|message| Ok((message, parts(message)?))) {
            Ok((message, (place, local))) => fetch(fid, Ok(local), place, message.context, Some(flags)),
            Err(error) => -(error.0 as isize),
        }
    }
}

unsafe extern "C" fn write(
    fid: *mut FidEp,
    buffer: Const,
    bytes: usize,
    _: Opaque,
    peer: FiAddr,
    address: u64,
    key: u64,
    context: Opaque,
) -> isize {
    // SAFETY: as C promises for `fi_write`.
    unsafe { put(fid, Segments::one(buffer, bytes), RemoteAddress { peer, address, key }, context, PLAIN) }
}

unsafe extern "C" fn writev(
    fid: *mut FidEp,
    iov: *const iovec,
    _: *mut Opaque,
    count: usize,
    peer: FiAddr,
    address: u64,
    key: u64,
    context: Opaque,
) -> isize {
    // SAFETY: as C promises for `fi_writev`.
    unsafe { put(fid, Segments::new(iov, count), RemoteAddress { peer, address, key }, context, PLAIN) }
}

unsafe extern "C" fn writemsg(fid: *mut FidEp, message: *const FiMsgRma, flags: u64) -> isize {
    // SAFETY: as C promises for `fi_writemsg`.
    unsafe {
        match given(message).and_then(|message| Ok((message, parts(message)?))) {
            Ok((message, (place, local))) => {
                let data = (flags & flag::REMOTE_CQ_DATA != 0).then_some(message.data);
                let options = WriteOptions { data, inject: false, flags: Some(flags) };
                put(fid, Ok(local), place, message.context, options)
            }
            Err(error) => -(error.0 as isize),
        }
    }
}

unsafe extern "C" fn inject(
    fid: *mut FidEp,
    buffer: Const,
    bytes: usize,
    peer: FiAddr,
    address: u64,
    key: u64,
) -> isize {
    let place = RemoteAddress { peer, address, key };
    // SAFETY: as C promises for `fi_inject_write`.
    unsafe {
        put(
            fid,
            Segments::one(buffer, bytes),
            place,
            core::ptr::null_mut(),
            WriteOptions { inject: true, ..PLAIN },
        )
    }
}

unsafe extern "C" fn writedata(
    fid: *mut FidEp,
    buffer: Const,
    bytes: usize,
    _: Opaque,
    data: u64,
    peer: FiAddr,
    address: u64,
    key: u64,
    context: Opaque,
) -> isize {
    let options = WriteOptions { data: Some(data), ..PLAIN };
    // SAFETY: as C promises for `fi_writedata`.
    unsafe { put(fid, Segments::one(buffer, bytes), RemoteAddress { peer, address, key }, context, options) }
}

unsafe extern "C" fn injectdata(
    fid: *mut FidEp,
    buffer: Const,
    bytes: usize,
    data: u64,
    peer: FiAddr,
    address: u64,
    key: u64,
) -> isize {
    let options = WriteOptions { data: Some(data), inject: true, flags: None };
    let place = RemoteAddress { peer, address, key };
    // SAFETY: as C promises for `fi_inject_writedata`.
    unsafe { put(fid, Segments::one(buffer, bytes), place, core::ptr::null_mut(), options) }
}
