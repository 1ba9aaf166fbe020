//! Sentences in messages, for people: each of bounded length.

use alloc::borrow::ToOwned as _;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt;

use super::wire::{Reader, Wire};
use crate::error::Malformed;
use crate::limits::{NIC_WORDS_BYTES_MAX, REASON_BYTES_MAX};

/// A text of at most `BYTES_MAX` bytes; a longer one is cut.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BoundedText<const BYTES_MAX: usize>(String);

/// The name of a NIC, or a sentence about one.
pub type NicText = BoundedText<NIC_WORDS_BYTES_MAX>;

/// Why a rank has no image.
pub type Reason = BoundedText<REASON_BYTES_MAX>;

impl<const BYTES_MAX: usize> BoundedText<BYTES_MAX> {
    /// The text of any displayable value.
    #[must_use]
    pub fn new(words: &impl fmt::Display) -> Self {
        let mut text = words.to_string();
        text.truncate(text.floor_char_boundary(BYTES_MAX));
        BoundedText(text)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<const BYTES_MAX: usize> Wire for BoundedText<BYTES_MAX> {
    const BYTES_MIN: usize = 2;
    fn put(&self, out: &mut Vec<u8>) {
        u16::try_from(self.0.len()).unwrap_or(u16::MAX).put(out);
        out.extend_from_slice(self.0.as_bytes());
    }
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        const WHAT: &str = "bytes of a text";
        let found = usize::from(u16::take(from)?);
        if found > BYTES_MAX {
            return Err(Malformed::Entries { what: WHAT, expected: BYTES_MAX, found });
        }
        let text = core::str::from_utf8(from.bytes(WHAT, found)?);
        let text =
            text.map_err(|error| Malformed::Entries { what: WHAT, expected: error.valid_up_to(), found })?;
        Ok(BoundedText(text.to_owned()))
    }
}
