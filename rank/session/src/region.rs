//! The regions that a program protects.

/// A piece of memory that belongs to a saved program.
///
/// The bytes are saved and put back as they lie in memory: an image is restarted on machines of the kind it came from.
#[derive(Debug)]
pub enum Region<'a> {
    /// Its length stays the same for the whole run.
    Fixed {
        /// Distinguishes this region from the program's others; the same at every point and after a restart.
        id: u32,
        /// Its contents.
        bytes: &'a mut [u8],
    },
    /// Its length may differ from point to point; a restart makes it as long as it was.
    Growing {
        /// As above.
        id: u32,
        /// Its contents.
        bytes: &'a mut Vec<u8>,
    },
}

impl<'a> Region<'a> {
    /// A region whose length stays the same.
    pub fn fixed(id: u32, bytes: &'a mut [u8]) -> Region<'a> {
        Region::Fixed { id, bytes }
    }

    /// A region whose length may change.
    pub fn growing(id: u32, bytes: &'a mut Vec<u8>) -> Region<'a> {
        Region::Growing { id, bytes }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> u32 {
        match self {
            Region::Fixed { id, .. } | Region::Growing { id, .. } => *id,
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Region::Fixed { bytes, .. } => bytes,
            Region::Growing { bytes, .. } => bytes,
        }
    }
}

/// All that a program must keep to go on from a point.
pub trait Protect {
    /// The regions, always the same ones in the same order.
    fn regions(&mut self) -> Vec<Region<'_>>;
}

/// A program that keeps nothing but its messages.
impl Protect for () {
    fn regions(&mut self) -> Vec<Region<'_>> {
        Vec::new()
    }
}
