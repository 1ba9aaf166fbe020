//! Error numbers beyond those of the system (fi_errno(3)). Calls return them negated.

/// Anything else: a bug of ours.
pub const EOTHER: i32 = 256;
/// The buffer is too small; the length that is needed has been written.
pub const ETOOSMALL: i32 = 257;
/// Not possible in this state of the object.
pub const EOPBADSTATE: i32 = 258;
/// An error entry is at the head of the queue.
pub const EAVAIL: i32 = 259;
/// Flags that are not known here.
pub const EBADFLAGS: i32 = 260;
/// An event queue is needed.
pub const ENOEQ: i32 = 261;
/// A completion queue is needed.
pub const ENOCQ: i32 = 263;
/// The message was longer than the buffer.
pub const ETRUNC: i32 = 265;
/// No memory region has this key.
pub const ENOKEY: i32 = 266;
/// An address vector is needed.
pub const ENOAV: i32 = 267;
/// A queue has overflowed.
pub const EOVERRUN: i32 = 268;
