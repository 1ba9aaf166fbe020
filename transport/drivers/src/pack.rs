//! Several short frames in one datagram.
//!
//! Where each datagram costs the NIC or the kernel much more than its bytes, a driver of sockets or of a
//! device's queue puts frames to one address that fit together into one. Ports never see it: the receiver
//! takes it apart again.
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 4 | magic: "PACK"; a port's frame begins otherwise |
//! | 4 | 1 | version of this layout: 1 |
//! | 5 | 1 | frames, 2 at least |
//! | 6 | | each frame: its length (2 bytes, little-endian), then its bytes |
//!
//! Nothing stands behind the last frame, and none of them is a pack. A datagram that begins with the magic
//! and breaks these rules is dropped as a whole.

/// The first bytes of a pack.
pub const MAGIC: [u8; 4] = *b"PACK";

/// Bytes before the first frame's length.
pub const HEAD_BYTES: usize = 6;

/// Bytes before each frame.
pub const LENGTH_BYTES: usize = 2;

/// Frames of one pack.
pub const FRAMES_MAX: usize = 255;

const VERSION: u8 = 1;

/// Whether a datagram, or a frame, begins as a pack does.
#[inline]
#[must_use]
pub fn is_pack(datagram: &[u8]) -> bool {
    datagram.first_chunk() == Some(&MAGIC)
}

/// Frames of a pack that have not been taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Frames<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Frames<'a> {
    /// The frames of a datagram that begins as a pack; `None`: it is none.
    #[must_use]
    pub fn of(datagram: &'a [u8]) -> Option<Frames<'a>> {
        let (head, rest) = datagram.split_first_chunk::<HEAD_BYTES>()?;
        if head[..4] != MAGIC || head[4] != VERSION || head[5] < 2 {
            return None;
        }
        let frames = Frames { rest, left: usize::from(head[5]) };
        let mut all = frames;
        if all.by_ref().any(is_pack) || all.left > 0 || !all.rest.is_empty() {
            return None;
        }
        Some(frames)
    }

    /// The result of [`Frames::rest`] for a complete pack.
    #[must_use]
    pub fn again((rest, left): (&'a [u8], usize)) -> Frames<'a> {
        Frames { rest, left }
    }

    /// The bytes of the frames that are left, and how many they are.
    #[must_use]
    pub fn rest(self) -> (&'a [u8], usize) {
        (self.rest, self.left)
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.left == 0 {
            return None;
        }
        let (length, rest) = self.rest.split_first_chunk()?;
        let (frame, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        (self.rest, self.left) = (rest, self.left - 1);
        Some(frame)
    }
}

/// Frames of a pack, for which there was no room at the receiver's caller yet.
#[derive(Default)]
pub(crate) struct PendingFrames {
    bytes: Vec<u8>,
    at: usize,
    left: usize,
}

impl PendingFrames {
    /// Keeps them, in the place of none.
    pub(crate) fn keep(&mut self, frames: Frames<'_>) {
        debug_assert_eq!(self.left, 0, "frames are kept already");
        self.bytes.clear();
        self.bytes.extend_from_slice(frames.rest);
        (self.at, self.left) = (0, frames.left);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.left == 0
    }

    pub(crate) fn next(&mut self) -> Option<&[u8]> {
        let mut frames = Frames { rest: &self.bytes[self.at..], left: self.left };
        let frame = frames.next()?;
        (self.at, self.left) = (self.bytes.len() - frames.rest.len(), frames.left);
        Some(frame)
    }
}

/// Writes the head of a pack of so many frames.
pub fn write_head(frames: usize, to: &mut [u8; HEAD_BYTES]) {
    debug_assert!((2..=FRAMES_MAX).contains(&frames), "no pack of {frames} frames");
    to[..4].copy_from_slice(&MAGIC);
    (to[4], to[5]) = (VERSION, u8::try_from(frames).unwrap_or(u8::MAX));
}

/// Writes the length that stands before a frame.
pub fn write_length(bytes: usize, to: &mut [u8; LENGTH_BYTES]) {
    *to = u16::try_from(bytes).unwrap_or(u16::MAX).to_le_bytes();
}

/// The pack of these frames, of which there are 2 to [`FRAMES_MAX`] of up to 64 KiB each; for tests and seeds.
#[must_use]
pub fn whole<'a>(frames: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut pack = vec![0; HEAD_BYTES];
    let mut count = 0;
    for frame in frames {
        let mut length = [0; LENGTH_BYTES];
        write_length(frame.len(), &mut length);
        pack.extend_from_slice(&length);
        pack.extend_from_slice(frame);
        count += 1;
    }
    if let Some(head) = pack.first_chunk_mut() {
        write_head(count, head);
    }
    pack
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_as_they_went_in() {
        let frames: [&[u8]; 4] = [b"one", b"", b"three", &[7; 300]];
        let pack = whole(frames);
        assert!(is_pack(&pack));
        assert!(Frames::of(&pack).expect("a pack").eq(frames));
        let mut some = Frames::of(&pack).expect("a pack");
        assert_eq!(some.next(), Some(frames[0]));
        assert!(Frames::again(some.rest()).eq(frames[1..].iter().copied()));
        let mut pending = PendingFrames::default();
        pending.keep(some);
        for frame in &frames[1..] {
            assert_eq!(pending.next(), Some(*frame));
        }
        assert!(pending.is_empty() && pending.next().is_none());
    }

    #[test]
    fn what_is_cut_longer_counted_wrong_or_nested_is_none() {
        let pack = whole([b"first".as_slice(), b"second"]);
        for length in 0..pack.len() {
            assert_eq!(Frames::of(&pack[..length]), None, "{length} bytes");
        }
        assert_eq!(Frames::of(&[pack.as_slice(), &[0]].concat()), None, "something behind it");
        for (at, value) in [(0, b'p'), (4, 2), (5, 0), (5, 1), (5, 3)] {
            let mut damaged = pack.clone();
            damaged[at] = value;
            assert_eq!(Frames::of(&damaged), None, "{value} at {at}");
        }
        assert_eq!(Frames::of(&whole([pack.as_slice(), b"outside"])), None, "a pack in a pack");
        assert_eq!(Frames::of(&whole([b"alone".as_slice(), b""])[..13]), None, "one frame");
    }
}
