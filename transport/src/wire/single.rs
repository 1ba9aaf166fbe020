//! The commonest frame, read where it lies: a whole copied message in one frame, with nothing beside it.

use zerocopy::FromBytes;

use super::header::{ALIKE, Flags, HEADER_BYTES, Kind, TAG_BYTES, TAG_OFFSET};
use super::{Eager, eager, header};
use crate::ids::{Epoch, JobTag, Life};

/// Bytes before the payload.
pub(crate) const SINGLE_HEAD_BYTES: usize = HEADER_BYTES + eager::BYTES;

/// A frame of [`Kind::Eager`] without contact and selective acknowledgements, whose payload is its whole message.
#[derive(Clone, Copy)]
pub(crate) struct Single<'a> {
    header: &'a header::Raw,
    eager: &'a eager::Raw,
    pub(crate) payload: &'a [u8],
}

impl<'a> Single<'a> {
    /// `None`: the frame is another one, or malformed; [`super::Frame::parse`] decides.
    #[inline]
    pub(crate) fn of(bytes: &'a [u8]) -> Option<Single<'a>> {
        let (header, rest) = header::Raw::ref_from_prefix(bytes).ok()?;
        let (eager, payload) = eager::Raw::ref_from_prefix(rest).ok()?;
        let bytes = payload.len() as u64;
        // One branch for all that may differ.
        let odd = u64::from(header.alike() ^ (ALIKE | u32::from(Kind::Eager as u8) << 24))
            | u64::from((header.flags & !Flags::ACK_NOW.bits()) | header.reserved)
            | header.selective.get()
            | eager.odd()
            | (u64::from(header.payload_bytes.get()) ^ bytes)
            | (eager.total.get() ^ bytes);
        (odd == 0).then_some(Single { header, eager, payload })
    }

    /// R7, R3: whether it comes from our job, our life and our epoch.
    #[inline]
    pub(crate) fn is_of(&self, job: JobTag, life: Life, epoch: Epoch) -> bool {
        let Single { header, .. } = self;
        header.job.get() == job.0
            && header.life_counter.get() == life.counter
            && header.life_nonce.get() == life.nonce
            && header.epoch.get() == epoch.0
    }

    /// Whether it comes from our job.
    #[inline]
    pub(crate) fn is_of_job(&self, job: JobTag) -> bool {
        self.header.job.get() == job.0
    }

    /// The link that it names, or a number that none has.
    #[inline]
    pub(crate) fn link(&self) -> u32 {
        self.header.link.get()
    }

    #[inline]
    pub(crate) fn seq(&self) -> u32 {
        self.header.seq.get()
    }

    #[inline]
    pub(crate) fn ack(&self) -> u32 {
        self.header.ack.get()
    }

    #[inline]
    pub(crate) fn transmission(&self) -> u32 {
        self.header.transmission.get()
    }

    #[inline]
    pub(crate) fn echo(&self) -> u32 {
        self.header.echo.get()
    }

    #[inline]
    pub(crate) fn window_bytes(&self) -> u32 {
        self.header.window_bytes.get()
    }

    #[inline]
    pub(crate) fn window_frames(&self) -> u16 {
        self.header.window_frames.get()
    }

    /// Whether the sender waits for the acknowledgement.
    #[inline]
    pub(crate) fn wants_ack_now(&self) -> bool {
        self.header.flags & Flags::ACK_NOW.bits() != 0
    }

    /// The envelope.
    #[inline]
    pub(crate) fn eager(&self) -> Eager {
        self.eager.value()
    }
}

/// Writes the head of such a frame with these words to the start of `out`, without its tag.
#[inline]
pub(crate) fn emit_single<'a>(
    out: &'a mut [u8],
    header: &[u64; TAG_OFFSET / 8],
    body: &[u64; eager::BYTES / 8],
) -> &'a mut [u8; TAG_BYTES] {
    let Some(head) = out.first_chunk_mut::<SINGLE_HEAD_BYTES>() else {
        unreachable!("a buffer shorter than a head")
    };
    let (words, _) = head.as_chunks_mut::<8>();
    for (bytes, word) in words.iter_mut().zip(header) {
        *bytes = word.to_le_bytes();
    }
    for (bytes, word) in words[HEADER_BYTES / 8..].iter_mut().zip(body) {
        *bytes = word.to_le_bytes();
    }
    let Some(tag) = head[TAG_OFFSET..].first_chunk_mut() else { unreachable!("a tag follows") };
    *tag = [0; TAG_BYTES];
    tag
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;
    use crate::matching::Space;
    use crate::wire::{Body, Frame, Header};

    fn frame() -> Vec<u8> {
        let eager = Eager { tag: 1 << 60, data: 2, total: 3, space: Space(4) };
        let header = Header {
            kind: Kind::Eager,
            job: JobTag(5),
            life: Life { counter: 6, nonce: 7 },
            epoch: Epoch(8),
            link: Some(9),
            seq: 10,
            ack: 11,
            transmission: 12,
            echo: 13,
            window_bytes: 14,
            selective: 0,
            window_frames: 15,
            flags: Flags::ACK_NOW,
            payload_bytes: 3,
            tag: [16; TAG_BYTES],
        };
        let head_bytes = SINGLE_HEAD_BYTES;
        let frame = Frame { header, contact: None, body: Body::Eager(eager), head_bytes, payload: b"abc" };
        let mut bytes = vec![0; 200];
        let length = frame.emit(&mut bytes);
        bytes.truncate(length);
        bytes
    }

    #[test]
    fn it_is_written_as_a_whole_frame_is() {
        let bytes = frame();
        let whole = Frame::parse(&bytes).expect("a frame");
        let Body::Eager(eager) = whole.body else { panic!("{:?}", whole.body) };
        let mut head = [9; SINGLE_HEAD_BYTES];
        *emit_single(&mut head, &whole.header.words(), &eager.words()) = whole.header.tag;
        assert_eq!(head, bytes[..SINGLE_HEAD_BYTES]);
    }

    #[test]
    fn it_reads_what_a_whole_reading_reads() {
        let bytes = frame();
        let (single, whole) = (Single::of(&bytes).expect("one"), Frame::parse(&bytes).expect("a frame"));
        let header = whole.header;
        assert_eq!((Body::Eager(single.eager()), single.payload), (whole.body, whole.payload));
        assert_eq!(SINGLE_HEAD_BYTES, whole.head_bytes);
        let numbers = [single.link(), single.seq(), single.ack(), single.transmission(), single.echo()];
        assert_eq!(numbers, [9, header.seq, header.ack, header.transmission, header.echo]);
        assert_eq!((single.window_bytes(), single.window_frames()), (14, 15));
        assert!(single.wants_ack_now() && single.is_of(header.job, header.life, header.epoch));
        let other = Life { counter: 6, nonce: 8 };
        assert!(!single.is_of(JobTag(4), header.life, header.epoch) && !single.is_of_job(JobTag(4)));
        assert!(!single.is_of(header.job, other, header.epoch));
        assert!(!single.is_of(header.job, header.life, Epoch(9)));
    }

    /// If any byte differs: a frame that is not malformed, or is out of the ordinary, is not taken for one of these.
    #[test]
    fn what_is_out_of_the_ordinary_is_another_frame() {
        let bytes = frame();
        for (at, bit) in (0..bytes.len()).flat_map(|at| (0..8).map(move |bit| (at, 1 << bit))) {
            let mut other = bytes.clone();
            other[at] ^= bit;
            let ordinary = Frame::parse(&other).is_ok_and(|frame| {
                let whole = matches!(frame.body, Body::Eager(eager) if eager.total == 3);
                whole && frame.contact.is_none() && frame.header.selective == 0
            });
            assert_eq!(Single::of(&other).is_some(), ordinary, "bit {bit:#x} of byte {at}");
        }
        for length in 0..bytes.len() {
            assert!(Single::of(&bytes[..length]).is_none(), "{length} bytes");
        }
    }
}
