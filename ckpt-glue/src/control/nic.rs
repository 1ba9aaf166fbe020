//! What ranks and launcher say to each other about NICs.

use alloc::borrow::ToOwned as _;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt;

use super::wire::{Reader, Wire};
use crate::error::Malformed;
use crate::limits::NIC_WORDS_BYTES_MAX;

/// The name of a NIC, or a sentence about one. What is longer than [`NIC_WORDS_BYTES_MAX`] bytes is cut.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NicText(String);

impl NicText {
    /// The text of any displayable value.
    #[must_use]
    pub fn new(words: &impl fmt::Display) -> NicText {
        let mut text = words.to_string();
        text.truncate(text.floor_char_boundary(NIC_WORDS_BYTES_MAX));
        NicText(text)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Wire for NicText {
    const BYTES_MIN: usize = 2;
    fn put(&self, out: &mut Vec<u8>) {
        u16::try_from(self.0.len()).unwrap_or(u16::MAX).put(out);
        out.extend_from_slice(self.0.as_bytes());
    }
    fn take(from: &mut Reader<'_>) -> Result<NicText, Malformed> {
        const WHAT: &str = "bytes about a NIC";
        let found = usize::from(u16::take(from)?);
        if found > NIC_WORDS_BYTES_MAX {
            return Err(Malformed::Entries { what: WHAT, expected: NIC_WORDS_BYTES_MAX, found });
        }
        let text = core::str::from_utf8(from.bytes(WHAT, found)?);
        let text =
            text.map_err(|error| Malformed::Entries { what: WHAT, expected: error.valid_up_to(), found })?;
        Ok(NicText(text.to_owned()))
    }
}
