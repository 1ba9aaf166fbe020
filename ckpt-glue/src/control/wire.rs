//! Bytes of values: little-endian, one encoding for each value, lists with a bound that is checked before memory is taken.

use alloc::vec::Vec;

use transport::{Epoch, JobId, Life, PortId, Rank, RawAddress};

use crate::control::{ImageReport, OwedLink, Point, PortEntry, RankReport, Wait};
use crate::error::Malformed;
use crate::layout::{Layout, Share};
use crate::limits::{
    ENTRIES_MAX, NODES_MAX, OWED_LINKS_MAX, RAILS_PER_PORT_MAX, WAIT_REPORTS_MAX, WAITS_PER_RANK_MAX,
};
use crate::names::{ExitStatus, GenerationId, ImageDigest, NodeIndex, Party};

/// Takes fields from the front of a message.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    pub(crate) fn bytes(&mut self, what: &'static str, count: usize) -> Result<&'a [u8], Malformed> {
        match self.rest.split_at_checked(count) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(Malformed::Short { what, expected: count, found: self.rest.len() }),
        }
    }

    pub(crate) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(what, N)?);
        Ok(array)
    }

    /// Every byte must have been a field: a frame has one meaning.
    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed::Trailing { found: self.rest.len() }) }
    }

    /// A list of at most `entries_max`.
    pub(crate) fn list<T: Wire>(
        &mut self,
        what: &'static str,
        entries_max: usize,
    ) -> Result<Vec<T>, Malformed> {
        let found = usize::try_from(u32::take(self)?).unwrap_or(usize::MAX);
        if found > entries_max {
            return Err(Malformed::Entries { what, expected: entries_max, found });
        }
        // A damaged count must not take memory that the message does not back.
        let expected = found.saturating_mul(T::BYTES_MIN);
        if expected > self.rest.len() {
            return Err(Malformed::Short { what, expected, found: self.rest.len() });
        }
        (0..found).map(|_| T::take(self)).collect()
    }
}

/// A value with one encoding.
pub(crate) trait Wire: Sized {
    /// Bytes that every value takes at least.
    const BYTES_MIN: usize;
    /// Appends the encoding.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads a value back.
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed>;
}

macro_rules! wire_number {
    ($($number:ty),*) => { $(
        impl Wire for $number {
            const BYTES_MIN: usize = size_of::<$number>();
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                Ok(<$number>::from_le_bytes(from.array(stringify!($number))?))
            }
        }
    )* };
}

/// A struct whose encoding is its fields in order.
macro_rules! wire_struct {
    ($name:ident, $bytes_min:expr, { $($field:tt),* $(,)? }) => {
        impl $crate::control::wire::Wire for $name {
            const BYTES_MIN: usize = $bytes_min;
            fn put(&self, out: &mut alloc::vec::Vec<u8>) {
                $( $crate::control::wire::Wire::put(&self.$field, out); )*
            }
            fn take(from: &mut $crate::control::wire::Reader<'_>) -> Result<Self, $crate::error::Malformed> {
                Ok($name { $($field: $crate::control::wire::Wire::take(from)?),* })
            }
        }
    };
}

/// An enum whose encoding is a byte for the variant and the variant's fields in order.
macro_rules! wire_enum {
    ($name:ident, $what:literal, { $($tag:literal => $variant:ident { $($field:ident),* }),* $(,)? }) => {
        impl $crate::control::wire::Wire for $name {
            const BYTES_MIN: usize = 1;
            fn put(&self, out: &mut alloc::vec::Vec<u8>) {
                match self {
                    $( $name::$variant { $($field),* } => {
                        out.push($tag);
                        $( $crate::control::wire::Wire::put($field, out); )*
                    } )*
                }
            }
            fn take(from: &mut $crate::control::wire::Reader<'_>) -> Result<Self, $crate::error::Malformed> {
                match <u8 as $crate::control::wire::Wire>::take(from)? {
                    $( $tag => Ok($name::$variant { $($field: $crate::control::wire::Wire::take(from)?),* }), )*
                    found => Err($crate::error::Malformed::Variant { what: $what, found: found.into() }),
                }
            }
        }
    };
}

pub(crate) use {wire_enum, wire_struct};

wire_number!(u8, u16, u32, u64, u128, i64);
wire_struct!(JobId, 16, { 0 });
wire_struct!(Life, 12, { counter, nonce });
wire_struct!(Epoch, 4, { 0 });
wire_struct!(Rank, 4, { 0 });
wire_struct!(PortId, 8, { 0 });
wire_struct!(NodeIndex, 4, { 0 });
wire_struct!(ImageDigest, 8, { 0 });
wire_struct!(GenerationId, 16, { life, epoch });
wire_struct!(Share, 8, { node, ranks });

impl Wire for bool {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match u8::take(from)? {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(Malformed::Variant { what: "bool", found: found.into() }),
        }
    }
}

impl<T: Wire> Wire for Option<T> {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        if bool::take(from)? { T::take(from).map(Some) } else { Ok(None) }
    }
}

/// Appends a list; [`Reader::list`] reads it back with its bound.
pub(crate) fn put_list<T: Wire>(list: &[T], out: &mut Vec<u8>) {
    u32::try_from(list.len()).unwrap_or(u32::MAX).put(out);
    for entry in list {
        entry.put(out);
    }
}

macro_rules! wire_list {
    ($($entry:ty, $what:literal, $entries_max:expr;)*) => { $(
        impl Wire for Vec<$entry> {
            const BYTES_MIN: usize = 4;
            fn put(&self, out: &mut Vec<u8>) {
                put_list(self, out);
            }
            fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                from.list($what, $entries_max)
            }
        }
    )* };
}

wire_list! {
    PortEntry, "ports", ENTRIES_MAX;
    RawAddress, "rails of a port", RAILS_PER_PORT_MAX;
    ImageReport, "image reports", ENTRIES_MAX;
    crate::control::ClosedLink, "links of a closed port", ENTRIES_MAX;
    Point, "points", ENTRIES_MAX;
    RankReport, "reports of waits", WAIT_REPORTS_MAX;
    Wait, "waits of a rank", WAITS_PER_RANK_MAX;
    OwedLink, "links of a rank", OWED_LINKS_MAX;
}

impl Wire for RawAddress {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        let bytes = self.as_bytes();
        out.push(u8::try_from(bytes.len()).unwrap_or(u8::MAX));
        out.extend_from_slice(bytes);
    }
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let len = u8::take(from)?;
        let bytes = from.bytes("address", usize::from(len))?;
        RawAddress::new(bytes).ok_or(Malformed::Entries {
            what: "bytes of an address",
            expected: transport::ids::RAW_ADDRESS_BYTES,
            found: usize::from(len),
        })
    }
}

impl Wire for Layout {
    const BYTES_MIN: usize = 8;
    fn put(&self, out: &mut Vec<u8>) {
        self.fan_out().put(out);
        put_list(self.shares(), out);
    }
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let fan_out = u32::take(from)?;
        let shares = from.list("shares of the layout", usize::try_from(NODES_MAX).unwrap_or(usize::MAX))?;
        Ok(Layout::new(shares, fan_out)?)
    }
}

impl Wire for Party {
    const BYTES_MIN: usize = 5;
    fn put(&self, out: &mut Vec<u8>) {
        let (role, number) = match self {
            Party::Coordinator => (0u8, 0),
            Party::Keeper(node) => (1, node.0),
            Party::Rank(rank) => (2, rank.0),
            Party::Tool => (3, 0),
        };
        role.put(out);
        number.put(out);
    }
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match (u8::take(from)?, u32::take(from)?) {
            (0, 0) => Ok(Party::Coordinator),
            (1, number) => Ok(Party::Keeper(NodeIndex(number))),
            (2, number) => Ok(Party::Rank(Rank(number))),
            (3, 0) => Ok(Party::Tool),
            (role, _) => Err(Malformed::Variant { what: "sender", found: role.into() }),
        }
    }
}

impl Wire for ExitStatus {
    const BYTES_MIN: usize = 2;
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            ExitStatus::Code(code) => out.extend_from_slice(&[0, *code]),
            ExitStatus::Signal(signal) => out.extend_from_slice(&[1, *signal]),
        }
    }
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match from.array("exit status")? {
            [0, code] => Ok(ExitStatus::Code(code)),
            [1, signal] => Ok(ExitStatus::Signal(signal)),
            [found, _] => Err(Malformed::Variant { what: "exit status", found: found.into() }),
        }
    }
}
