//! fi_atomic(3): operations on peers' memory in one step. Atomic among all operations that go through this interface; the
//! target's own loads and stores are not part of that.

use core::ffi::c_int;

use libc::iovec;

use crate::abi::{Const, FiAddr, FiIoc, FiMsgAtomic, FiOpsAtomic, FidEp, Opaque, flag};
use crate::boundary::{EINVAL, Errno, Result, given, length, status};
use crate::callflags::{self, of_call};
use crate::engine::arithmetic::{op, value_bytes};
use crate::engine::sinks::Submit;
use crate::engine::{AtomicOperands, RemoteAddress};
use crate::ep::endpoint;
use crate::limits::{EAGER_BYTES_MAX, IOV_MAX};
use crate::memory::Segments;

pub(crate) static OPS: FiOpsAtomic = FiOpsAtomic {
    size: size_of::<FiOpsAtomic>(),
    write,
    writev,
    writemsg,
    inject,
    readwrite,
    readwritev,
    readwritemsg,
    compwrite,
    compwritev,
    compwritemsg,
    writevalid,
    readwritevalid,
    compwritevalid,
};

/// Values of this type that one operation takes, and the bytes of each, for `FI_FETCH_ATOMIC`, `FI_COMPARE_ATOMIC` or neither.
pub(crate) fn offered(datatype: u32, operation: u32, flags: u64) -> Result<(usize, usize)> {
    let unknown = Errno(libc::EOPNOTSUPP);
    let operation = u8::try_from(operation).map_err(|_| unknown)?;
    let compares = (op::CSWAP..=op::MSWAP).contains(&operation);
    let fits = if flags & flag::COMPARE_ATOMIC != 0 {
        compares
    } else {
        !compares && (flags & flag::FETCH_ATOMIC != 0 || operation != op::READ)
    };
    if !fits {
        return Err(unknown);
    }
    let bytes = value_bytes(u8::try_from(datatype).map_err(|_| unknown)?, operation)?;
    // Half of a message: a comparison brings two values for each in memory.
    Ok((EAGER_BYTES_MAX / 2 / bytes, bytes))
}

/// The operation and its operand type.
#[derive(Clone, Copy)]
struct Operation {
    datatype: u32,
    op: u32,
    context: Opaque,
    inject: bool,
    /// Flags of the call; `None`: those of the endpoint.
    flags: Option<u64>,
}

/// Segments that are counted in values.
///
/// # Safety
/// As for [`Segments::new`].
unsafe fn values(iov: *const FiIoc, count: usize, bytes: usize) -> Result<Segments> {
    if count > IOV_MAX || iov.is_null() && count > 0 {
        return Err(EINVAL);
    }
    let mut parts = [iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; IOV_MAX];
    for (i, part) in parts.iter_mut().enumerate().take(count) {
        // SAFETY: `i < count`.
        let given = unsafe { &*iov.add(i) };
        let iov_len = given.count.checked_mul(bytes).ok_or(EINVAL)?;
        // Reading needs no operands: a null pointer has no bytes.
        *part = iovec { iov_base: given.addr, iov_len: if given.addr.is_null() { 0 } else { iov_len } };
    }
    // SAFETY: as the caller says.
    unsafe { Segments::new(parts.as_ptr(), count) }
}

/// The vectors of one call; `None` where the call has no such vector.
struct Vectors {
    operands: (*const FiIoc, usize),
    compare: Option<(*const FiIoc, usize)>,
    result: Option<(*const FiIoc, usize)>,
    /// Values in the peer's memory, where the call says so by itself.
    count: Option<usize>,
}

/// # Safety
/// `fid` is an endpoint of ours, and the vectors name memory that stays as fi_atomic(3) says.
unsafe fn operate(fid: *mut FidEp, vectors: Vectors, place: RemoteAddress, operation: Operation) -> isize {
    length("fi_atomic", || {
        // SAFETY: as the caller says.
        let object = unsafe { endpoint(fid) }?;
        let kind = match (&vectors.result, &vectors.compare) {
            (_, Some(_)) => flag::COMPARE_ATOMIC,
            (Some(_), None) => flag::FETCH_ATOMIC,
            (None, None) => 0,
        };
        let (_, bytes) = offered(operation.datatype, operation.op, kind)?;
        // SAFETY: as the caller says.
        let segments = |(iov, count): (*const FiIoc, usize)| unsafe { values(iov, count, bytes) };
        let operands = segments(vectors.operands)?;
        let compare = vectors.compare.map(segments).transpose()?;
        let result = vectors.result.map(segments).transpose()?;
        let all = match (vectors.count, &result) {
            (Some(count), _) => count.checked_mul(bytes).ok_or(EINVAL)?,
            (None, Some(result)) => result.bytes(),
            (None, None) => operands.bytes(),
        };
        let reads = u8::try_from(operation.op) == Ok(op::READ);
        let short = |segments: &Segments| segments.bytes() < all;
        if all == 0
            || !reads && short(&operands)
            || compare.as_ref().is_some_and(short)
            || result.as_ref().is_some_and(short)
        {
            return Err(EINVAL);
        }
        let local = AtomicOperands {
            operands: &operands,
            compare: compare.as_ref(),
            result: result.as_ref(),
            datatype: u8::try_from(operation.datatype).map_err(|_| EINVAL)?,
            op: u8::try_from(operation.op).map_err(|_| EINVAL)?,
            bytes: all,
        };
        let flags = of_call(operation.flags, callflags::REQUEST, || object.transmit_flags())?;
        let submit = Submit { context: operation.context as usize, flags };
        object.engine()?.operate(place, &local, submit, operation.inject).map(|()| 0)
    })
}

fn one(start: Const, count: usize) -> FiIoc {
    FiIoc { addr: start.cast_mut(), count }
}

/// # Safety
/// As C promises for `fi_atomicmsg` and its kin.
unsafe fn message_parts(
    message: *const FiMsgAtomic,
    flags: u64,
) -> Result<(RemoteAddress, Vectors, Operation)> {
    // SAFETY: as the caller says.
    let (message, remote) = unsafe {
        let message = given(message)?;
        if message.rma_iov_count != 1 {
            return Err(EINVAL);
        }
        (message, given(message.rma_iov)?)
    };
    let place = RemoteAddress { peer: message.addr, address: remote.addr, key: remote.key };
    let vectors = Vectors {
        operands: (message.msg_iov, message.iov_count),
        compare: None,
        result: None,
        count: Some(remote.count),
    };
    let operation = Operation {
        datatype: message.datatype,
        op: message.op,
        context: message.context,
        inject: false,
        flags: Some(flags),
    };
    Ok((place, vectors, operation))
}

unsafe extern "C" fn write(
    fid: *mut FidEp,
    operand: Const,
    count: usize,
    _: Opaque,
    peer: FiAddr,
    address: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: Opaque,
) -> isize {
    let operand = one(operand, count);
    let vectors =
        Vectors { operands: (&raw const operand, 1), compare: None, result: None, count: Some(count) };
    let operation = Operation { datatype, op, context, inject: false, flags: None };
    // SAFETY: as C promises for `fi_atomic`.
    unsafe { operate(fid, vectors, RemoteAddress { peer, address, key }, operation) }
}

unsafe extern "C" fn writev(
    fid: *mut FidEp,
    iov: *const FiIoc,
    _: *mut Opaque,
    count: usize,
    peer: FiAddr,
    address: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: Opaque,
) -> isize {
    let vectors = Vectors { operands: (iov, count), compare: None, result: None, count: None };
    let operation = Operation { datatype, op, context, inject: false, flags: None };
    // SAFETY: as C promises for `fi_atomicv`.
    unsafe { operate(fid, vectors, RemoteAddress { peer, address, key }, operation) }
}

unsafe extern "C" fn writemsg(fid: *mut FidEp, message: *const FiMsgAtomic, flags: u64) -> isize {
    // SAFETY: as C promises for `fi_atomicmsg`.
    unsafe {
        match message_parts(message, flags) {
            Ok((place, vectors, operation)) => operate(fid, vectors, place, operation),
            Err(error) => -(error.0 as isize),
        }
    }
}

unsafe extern "C" fn inject(
    fid: *mut FidEp,
    operand: Const,
    count: usize,
    peer: FiAddr,
    address: u64,
    key: u64,
    datatype: u32,
    op: u32,
) -> isize {
    let operand = one(operand, count);
    let vectors =
        Vectors { operands: (&raw const operand, 1), compare: None, result: None, count: Some(count) };
    let operation = Operation { datatype, op, context: core::ptr::null_mut(), inject: true, flags: None };
    // SAFETY: as C promises for `fi_inject_atomic`.
    unsafe { operate(fid, vectors, RemoteAddress { peer, address, key }, operation) }
}

unsafe extern "C" fn readwrite(
    fid: *mut FidEp,
    operand: Const,
    count: usize,
    _: Opaque,
    result: Opaque,
    _: Opaque,
    peer: FiAddr,
    address: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: Opaque,
) -> isize {
    let (operand, result) = (one(operand, count), one(result, count));
    let vectors = Vectors {
        operands: (&raw const operand, 1),
        compare: None,
        result: Some((&raw const result, 1)),
        count: Some(count),
    };
    let operation = Operation { datatype, op, context, inject: false, flags: None };
    // SAFETY: as C promises for `fi_fetch_atomic`.
    unsafe { operate(fid, vectors, RemoteAddress { peer, address, key }, operation) }
}

unsafe extern "C" fn readwritev(
    fid: *mut FidEp,
    iov: *const FiIoc,
    _: *mut Opaque,
    count: usize,
    result: *mut FiIoc,
    _: *mut Opaque,
    result_count: usize,
    peer: FiAddr,
    address: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: Opaque,
) -> isize {
    let vectors = Vectors {
        operands: (iov, count),
        compare: None,
        result: Some((result.cast_const(), result_count)),
        count: None,
    };
    let operation = Operation { datatype, op, context, inject: false, flags: None };
    // SAFETY: as C promises for `fi_fetch_atomicv`.
    unsafe { operate(fid, vectors, RemoteAddress { peer, address, key }, operation) }
}

unsafe extern "C" fn readwritemsg(
    fid: *mut FidEp,
    message: *const FiMsgAtomic,
    result: *mut FiIoc,
    _: *mut Opaque,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: as C promises for `fi_fetch_atomicmsg`.
    unsafe {
        match message_parts(message, flags) {
            Ok((place, vectors, operation)) => {
                let vectors = Vectors { result: Some((result.cast_const(), result_count)), ..vectors };
                operate(fid, vectors, place, operation)
            }
            Err(error) => -(error.0 as isize),
        }
    }
}

unsafe extern "C" fn compwrite(
    fid: *mut FidEp,
    operand: Const,
    count: usize,
    _: Opaque,
    compare: Const,
    _: Opaque,
    result: Opaque,
    _: Opaque,
    peer: FiAddr,
    address: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: Opaque,
) -> isize {
    let (operand, compare, result) = (one(operand, count), one(compare, count), one(result, count));
    let vectors = Vectors {
        operands: (&raw const operand, 1),
        compare: Some((&raw const compare, 1)),
        result: Some((&raw const result, 1)),
        count: Some(count),
    };
    let operation = Operation { datatype, op, context, inject: false, flags: None };
    // SAFETY: as C promises for `fi_compare_atomic`.
    unsafe { operate(fid, vectors, RemoteAddress { peer, address, key }, operation) }
}

unsafe extern "C" fn compwritev(
    fid: *mut FidEp,
    iov: *const FiIoc,
    _: *mut Opaque,
    count: usize,
    compare: *const FiIoc,
    _: *mut Opaque,
    compare_count: usize,
    result: *mut FiIoc,
    _: *mut Opaque,
    result_count: usize,
    peer: FiAddr,
    address: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: Opaque,
) -> isize {
    let vectors = Vectors {
        operands: (iov, count),
        compare: Some((compare, compare_count)),
        result: Some((result.cast_const(), result_count)),
        count: None,
    };
    let operation = Operation { datatype, op, context, inject: false, flags: None };
    // SAFETY: as C promises for `fi_compare_atomicv`.
    unsafe { operate(fid, vectors, RemoteAddress { peer, address, key }, operation) }
}

unsafe extern "C" fn compwritemsg(
    fid: *mut FidEp,
    message: *const FiMsgAtomic,
    compare: *const FiIoc,
    _: *mut Opaque,
    compare_count: usize,
    result: *mut FiIoc,
    _: *mut Opaque,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: as C promises for `fi_compare_atomicmsg`.
    unsafe {
        match message_parts(message, flags) {
            Ok((place, vectors, operation)) => {
                let vectors = Vectors {
                    compare: Some((compare, compare_count)),
                    result: Some((result.cast_const(), result_count)),
                    ..vectors
                };
                operate(fid, vectors, place, operation)
            }
            Err(error) => -(error.0 as isize),
        }
    }
}

/// # Safety
/// `count` is null or may be written to.
unsafe fn valid(datatype: u32, op: u32, flags: u64, count: *mut usize) -> c_int {
    status("fi_atomicvalid", || {
        let (values, _) = offered(datatype, op, flags)?;
        // SAFETY: as the caller says.
        if let Some(count) = unsafe { count.as_mut() } {
            *count = values;
        }
        Ok(())
    })
}

unsafe extern "C" fn writevalid(_: *mut FidEp, datatype: u32, op: u32, count: *mut usize) -> c_int {
    // SAFETY: the application's place for a number.
    unsafe { valid(datatype, op, 0, count) }
}

unsafe extern "C" fn readwritevalid(_: *mut FidEp, datatype: u32, op: u32, count: *mut usize) -> c_int {
    // SAFETY: the application's place for a number.
    unsafe { valid(datatype, op, flag::FETCH_ATOMIC, count) }
}

unsafe extern "C" fn compwritevalid(_: *mut FidEp, datatype: u32, op: u32, count: *mut usize) -> c_int {
    // SAFETY: the application's place for a number.
    unsafe { valid(datatype, op, flag::COMPARE_ATOMIC, count) }
}
