//! The image of a rank that had ended when the generation was taken (rule 12).

use super::Section;
use crate::error::ImageError;
use crate::kinds;

const VERSION: u16 = 1;

/// How a rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exited {
    /// Its exit code, 0 to 255; or minus the number of the signal that ended it.
    pub status: i32,
}

impl Exited {
    /// The content of its section.
    #[must_use]
    pub fn emit(&self) -> [u8; 4] {
        self.status.to_le_bytes()
    }

    /// The section around [`Exited::emit`]'s bytes.
    #[must_use]
    pub fn section(bytes: &[u8; 4]) -> Section<'_> {
        Section::new(kinds::EXITED, VERSION, bytes)
    }

    /// Reads a section's content.
    pub fn parse(version: u16, bytes: &[u8]) -> Result<Exited, ImageError> {
        match (version, <[u8; 4]>::try_from(bytes)) {
            (VERSION, Ok(bytes)) => Ok(Exited { status: i32::from_le_bytes(bytes) }),
            _ => {
                Err(ImageError::SectionUnreadable { kind: kinds::EXITED, version, bytes: bytes.len() as u64 })
            }
        }
    }
}
