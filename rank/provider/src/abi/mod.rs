//! The binary interface of libfabric, as far as a provider meets it.
//!
//! Written by hand from the man pages (fi_getinfo(3), fi_domain(3), fi_endpoint(3), fi_cq(3), ...): bindings
//! made by a tool would link against libfabric, of which a provider needs nothing. Names follow the C names;
//! every structure documents its C name and its size, and a test compares each field's offset with Debian's
//! headers where those are installed.
//!
//! Sizes are those of libfabric 2.x; 1.17 knows shorter tails of some (`fi_domain_attr`, `fi_ops_av`,
//! `fi_cq_err_entry`, `fi_mr_attr`), which is noted where it matters.

#![allow(missing_docs, reason = "the fields are documented in libfabric's man pages")]

mod attr;
mod entry;
pub mod errno;
mod fid;
pub mod flag;
mod message;
mod ops;

pub use attr::*;
pub use entry::*;
pub use fid::*;
pub use message::*;
pub use ops::*;

use core::ffi::c_void;

/// `fi_addr_t`: the number that an address vector gives for an address.
pub type FiAddr = u64;

/// `FI_ADDR_UNSPEC`: any source.
pub const ADDR_UNSPEC: FiAddr = u64::MAX;
/// `FI_ADDR_NOTAVAIL`: no such address.
pub const ADDR_NOTAVAIL: FiAddr = u64::MAX;

/// `FI_KEY_NOTAVAIL`.
pub const KEY_NOTAVAIL: u64 = u64::MAX;

/// Version numbers as `FI_VERSION` packs them.
#[must_use]
pub const fn version(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}

/// A pointer that only its owner understands.
pub type Opaque = *mut c_void;

/// A C structure of the interface: its name and the offsets of its fields, for the comparison with the headers.
pub trait Layout: Sized {
    /// Name in C, without `struct`.
    const C_NAME: &'static str;
    /// Fields and their offsets in bytes.
    const FIELDS: &'static [(&'static str, usize)];
}

/// Defines a C structure, checks its size, and lists its fields.
macro_rules! c_struct {
    ($(#[$meta:meta])* $name:ident = $c:literal, $size:literal { $($field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[doc = concat!("`struct ", $c, "`.")]
        #[repr(C)]
        pub struct $name { $(pub $field: $type,)* }

        const _: () = assert!(size_of::<$name>() == $size, concat!("size of ", $c));

        impl $crate::abi::Layout for $name {
            const C_NAME: &'static str = $c;
            const FIELDS: &'static [(&'static str, usize)] =
                &[$((stringify!($field), core::mem::offset_of!($name, $field)),)*];
        }
    };
}
pub(crate) use c_struct;
