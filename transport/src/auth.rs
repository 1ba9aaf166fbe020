//! R21, keyed authentication of frames: AEGIS-128L in MAC mode (draft-irtf-cfrg-aegis-aead, section "MAC mode").
//!
//! The tag covers, in this order: 32 bytes of context that are not in the frame (64-bit sequence number, 64-bit
//! transmission number, sending port, receiving port), the fixed header up to the tag, the rest of the head, and at level
//! *full* the payload. So a frame cannot be replayed on another link, and not after its 32-bit numbers have wrapped.

use core::cell::RefCell;

use aegis::aegis128l::Aegis128LMac;

use crate::config::AuthLevel;
use crate::ids::PortId;
use crate::wire::{EAGER_BYTES, HEAD_BYTES_MAX, HEADER_BYTES, TAG_BYTES, TAG_OFFSET};

/// Bytes that the tag covers and the frame does not carry.
const CONTEXT_BYTES: usize = 32;

/// Bytes that it covers of every frame.
const COVERED_BYTES_MIN: usize = CONTEXT_BYTES + TAG_OFFSET;

/// The secret that all ports of a job share; made by the launcher, never on the wire.
#[derive(Clone, PartialEq, Eq)]
pub struct JobKey(pub [u8; 16]);

impl core::fmt::Debug for JobKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("JobKey(..)")
    }
}

/// What the tag covers beyond the frame itself.
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
    fn bytes(&self) -> [u8; CONTEXT_BYTES] {
        let mut out = [0; CONTEXT_BYTES];
        out[..8].copy_from_slice(&self.seq.to_le_bytes());
        out[8..16].copy_from_slice(&self.transmission.to_le_bytes());
        out[16..24].copy_from_slice(&self.from.0.to_le_bytes());
        out[24..].copy_from_slice(&self.to.0.to_le_bytes());
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
}

impl core::fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Authenticator({:?})", self.level)
    }
}

impl Authenticator {
    /// An authenticator for a job.
    #[must_use]
    pub fn new(level: AuthLevel, key: &JobKey) -> Authenticator {
        Authenticator { level, mac: RefCell::new(Aegis128LMac::new(&key.0)) }
    }

    /// What the tag covers.
    #[must_use]
    pub fn level(&self) -> AuthLevel {
        self.level
    }

    /// From now on tags cover this. Both sides of a link have to agree.
    pub(crate) fn set_level(&mut self, level: AuthLevel) {
        self.level = level;
    }

    /// Writes the tag into the frame in `frame`, whose head takes `head_bytes` and whose copied payload follows. Returns
    /// what is left to do when `user_payload` bytes come from elsewhere and the tag has to cover them.
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
        // One call for context and head: together they are short, and each call moves the whole state in and out.
        let body = &head[HEADER_BYTES..];
        // Short messages live by their latency: with a length that is known in advance all of this is a few moves.
        if let (Ok(body), true) = (<&[u8; EAGER_BYTES]>::try_from(body), payload.is_empty()) {
            return self.tag_of(&covered::<{ COVERED_BYTES_MIN + EAGER_BYTES }>(context, head, body));
        }
        let mut first = covered::<{ COVERED_BYTES_MIN + HEAD_BYTES_MAX }>(context, head, &[]);
        let bytes = COVERED_BYTES_MIN + body.len();
        first[COVERED_BYTES_MIN..bytes].copy_from_slice(body);
        let mut mac = self.mac.borrow_mut();
        mac.update(&first[..bytes]);
        if !payload.is_empty() {
            mac.update(payload);
        }
        mac.finalize_and_reset()
    }

    fn tag_of(&self, covered: &[u8]) -> [u8; TAG_BYTES] {
        let mut mac = self.mac.borrow_mut();
        mac.update(covered);
        mac.finalize_and_reset()
    }
}

/// What the tag covers of a frame, with room for the rest: context, header and `body`.
#[inline]
fn covered<const BYTES: usize>(context: Context, head: &[u8], body: &[u8]) -> [u8; BYTES] {
    let mut covered = [0; BYTES];
    covered[..CONTEXT_BYTES].copy_from_slice(&context.bytes());
    covered[CONTEXT_BYTES..COVERED_BYTES_MIN].copy_from_slice(&head[..TAG_OFFSET]);
    covered[COVERED_BYTES_MIN..COVERED_BYTES_MIN + body.len()].copy_from_slice(body);
    covered
}
