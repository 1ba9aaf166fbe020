//! R21, keyed authentication of frames: AEGIS-128L in MAC mode (draft-irtf-cfrg-aegis-aead, section "MAC mode").
//!
//! The tag covers, in this order: 32 bytes of context that are not in the frame (64-bit sequence number, 64-bit
//! transmission number, sending port, receiving port), the fixed header up to the tag, the rest of the head, and at level
//! *full* the payload. So a frame cannot be replayed on another link, and not after its 32-bit numbers have wrapped.

use core::cell::RefCell;

use aegis::aegis128l::Aegis128LMac;
use tag::ShortTag;

use crate::config::AuthLevel;
use crate::ids::PortId;
use crate::wire::{EAGER_BYTES, HEAD_BYTES_MAX, HEADER_BYTES, TAG_BYTES, TAG_OFFSET};

/// Bytes that the tag covers and the frame does not carry.
const CONTEXT_BYTES: usize = 32;

/// The secret that all ports of a job share; made by the launcher, never on the wire.
#[derive(Clone, PartialEq, Eq)]
pub struct JobKey(pub [u8; 16]);

impl core::fmt::Debug for JobKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("JobKey(..)")
    }
}

/// The bytes that the tag covers beyond the frame itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Context {
    /// Full number of the frame, or of the next numbered one.
    pub seq: u64,
    /// Full transmission number.
    pub transmission: u64,
    /// Port that sends.
    pub from: PortId,
    /// Port that receives.
    pub to: PortId,
}

impl Context {
    fn words(&self) -> [u64; 4] {
        [self.seq, self.transmission, self.from.0, self.to.0]
    }

    fn bytes(&self) -> [u8; CONTEXT_BYTES] {
        let mut out = [0; CONTEXT_BYTES];
        for (bytes, word) in out.chunks_exact_mut(8).zip(self.words()) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        out
    }
}

/// A tag that the shell completes, because it alone sees the user's payload.
#[derive(Clone, Copy, Debug)]
pub struct Seal {
    context: Context,
    head_bytes: usize,
}

/// Makes and checks tags with one job's key.
#[derive(Clone)]
pub struct Authenticator {
    level: AuthLevel,
    /// Keyed, and between two tags always as it was when new: setting it back is cheaper than a copy for each tag.
    mac: RefCell<Aegis128LMac<TAG_BYTES>>,
    /// Of frames that carry a whole short message, where the processor has the instructions.
    short: Option<ShortTag>,
}

impl core::fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Authenticator({:?})", self.level)
    }
}

/// Bytes as numbers.
#[inline]
fn words<const WORDS: usize>(bytes: &[u8]) -> [u64; WORDS] {
    let (bytes, _) = bytes.as_chunks();
    core::array::from_fn(|i| u64::from_le_bytes(bytes[i]))
}

impl Authenticator {
    /// An authenticator for a job.
    #[must_use]
    pub fn new(level: AuthLevel, key: &JobKey) -> Authenticator {
        let mac = RefCell::new(Aegis128LMac::new(&key.0));
        Authenticator { level, mac, short: ShortTag::new(&key.0) }
    }

    /// The bytes that the tag covers.
    #[must_use]
    pub fn level(&self) -> AuthLevel {
        self.level
    }

    /// From now on tags cover this. Both sides of a link have to agree.
    pub(crate) fn set_level(&mut self, level: AuthLevel) {
        self.level = level;
    }

    /// Writes the tag into the frame in `frame`, whose head takes `head_bytes` and whose copied payload
    /// follows. Returns the rest of the work when `user_payload` bytes come from elsewhere and the tag has to
    /// cover them.
    pub fn seal(
        &self,
        context: Context,
        frame: &mut [u8],
        head_bytes: usize,
        user_payload: bool,
    ) -> Option<Seal> {
        match self.level {
            AuthLevel::Off => None,
            AuthLevel::Full if user_payload => Some(Seal { context, head_bytes }),
            AuthLevel::Full => {
                let (head, payload) = frame.split_at_mut(head_bytes);
                let tag = self.tag(context, head, payload);
                head[TAG_OFFSET..HEADER_BYTES].copy_from_slice(&tag);
                None
            }
            AuthLevel::Header => {
                let tag = self.tag(context, &frame[..head_bytes], &[]);
                frame[TAG_OFFSET..HEADER_BYTES].copy_from_slice(&tag);
                None
            }
        }
    }

    /// As [`Authenticator::seal`], of a frame whose head is `header` and `body`, from which it has just been
    /// written: words that have just left the processor's registers in small pieces cannot be read in large
    /// ones at once. False: that takes the slow path.
    #[inline]
    pub(crate) fn seal_short(
        &self,
        context: Context,
        header: [u64; TAG_OFFSET / 8],
        body: [u64; EAGER_BYTES / 8],
        tag: &mut [u8; TAG_BYTES],
    ) -> bool {
        let Some(short) = self.short.as_ref().filter(|_| self.level == AuthLevel::Header) else {
            return false;
        };
        *tag = short.of(context.words(), header, body);
        true
    }

    /// Completes a tag over user payload: `frame` starts with the head that [`crate::Port::poll_transmit`] wrote.
    pub fn finish(&self, seal: Seal, frame: &mut [u8], payload: &[u8]) {
        let tag = self.tag(seal.context, &frame[..seal.head_bytes], payload);
        frame[TAG_OFFSET..HEADER_BYTES].copy_from_slice(&tag);
    }

    /// Whether the tag of a received frame is right; in constant time over the tag.
    #[must_use]
    pub fn verify(&self, context: Context, frame: &[u8], head_bytes: usize) -> bool {
        let payload = match self.level {
            AuthLevel::Off => return true,
            AuthLevel::Header => &[][..],
            AuthLevel::Full => &frame[head_bytes..],
        };
        let expected = self.tag(context, &frame[..head_bytes], payload);
        let mut found = [0; TAG_BYTES];
        found.copy_from_slice(&frame[TAG_OFFSET..HEADER_BYTES]);
        u128::from_le_bytes(expected) ^ u128::from_le_bytes(found) == 0
    }

    fn tag(&self, context: Context, head: &[u8], payload: &[u8]) -> [u8; TAG_BYTES] {
        let body = &head[HEADER_BYTES..];
        if let (Some(short), Ok(body), true) =
            (&self.short, <&[u8; EAGER_BYTES]>::try_from(body), payload.is_empty())
            && let Some(header) = head.first_chunk::<TAG_OFFSET>()
        {
            return short.of(context.words(), words(header), words(body));
        }
        self.long_tag(context, head, body, payload)
    }

    fn long_tag(&self, context: Context, head: &[u8], body: &[u8], payload: &[u8]) -> [u8; TAG_BYTES] {
        // One call for context and head: together they are short, and each call moves the whole state in and out.
        let mut first = [0; CONTEXT_BYTES + HEAD_BYTES_MAX];
        let bytes = CONTEXT_BYTES + TAG_OFFSET + body.len();
        first[..CONTEXT_BYTES].copy_from_slice(&context.bytes());
        first[CONTEXT_BYTES..CONTEXT_BYTES + TAG_OFFSET].copy_from_slice(&head[..TAG_OFFSET]);
        first[CONTEXT_BYTES + TAG_OFFSET..bytes].copy_from_slice(body);
        let mut mac = self.mac.borrow_mut();
        #[cfg(miri)]
        let keyed = mac.clone();
        mac.update(&first[..bytes]);
        if !payload.is_empty() {
            mac.update(payload);
        }
        // Miri runs the crate's Rust instead of its C, and that cannot set a state back.
        #[cfg(miri)]
        let tag = core::mem::replace(&mut *mac, keyed).finalize();
        #[cfg(not(miri))]
        let tag = mac.finalize_and_reset();
        tag
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R21: a host without AES instructions talks to one with them.
    #[test]
    fn both_ways_to_a_tag_lead_to_one() {
        let auth = Authenticator::new(AuthLevel::Header, &JobKey([3; 16]));
        let context = Context { seq: 1, transmission: u64::MAX, from: PortId(5), to: PortId(6) };
        for body_bytes in [0, 24, EAGER_BYTES, EAGER_BYTES + 1] {
            let mut head = [0; HEAD_BYTES_MAX];
            (0..).zip(&mut head).for_each(|(i, byte)| *byte = i);
            let head = &head[..HEADER_BYTES + body_bytes];
            for payload in [&[][..], b"payload"] {
                let long = auth.long_tag(context, head, &head[HEADER_BYTES..], payload);
                assert_eq!(auth.tag(context, head, payload), long, "{body_bytes} bytes");
            }
        }
    }
}
