//! Messages that wait to be sent: datagrams of one frame, or of several short ones to one address (`crate::pack`).

use transport::AddressId;

use super::{HEADROOM, XdpDriver};
use crate::pack;

/// Bytes of a pack before its first frame.
pub(super) const PACK_BYTES: usize = pack::HEAD_BYTES + pack::LENGTH_BYTES;

/// A datagram of committed frames in a slot, behind its headroom: one frame, or a pack.
pub(super) struct Staged {
    pub(super) slot: u64,
    pub(super) to: AddressId,
    /// Of them all.
    pub(super) frame_bytes: usize,
    pub(super) frames: usize,
    /// Another frame may be put behind the last.
    pub(super) open: bool,
}

impl Staged {
    /// Bytes of its head.
    pub(super) fn head_bytes(&self) -> usize {
        if self.frames > 1 { PACK_BYTES } else { 0 }
    }

    /// Where it ends in the slot.
    pub(super) fn end(&self) -> usize {
        HEADROOM + self.frame_bytes + (self.frames - 1) * pack::LENGTH_BYTES
    }

    /// Bytes of the datagram with one more frame of so many bytes.
    fn bytes_with(&self, bytes: usize) -> usize {
        PACK_BYTES + self.frame_bytes + self.frames * pack::LENGTH_BYTES + bytes
    }
}

impl XdpDriver {
    /// Puts the frame in the leased slot, and its payload, behind the frames that were staged last, if they go to the same address and all together
    /// are no longer than the path takes. False: it needs a datagram of its own.
    pub(super) fn pack(
        &mut self,
        slot: u64,
        to: AddressId,
        frame_bytes: usize,
        payload: &[u8],
        longest: usize,
    ) -> bool {
        let bytes = frame_bytes + payload.len();
        let Some(last) = self.staged.back_mut() else { return false };
        let fits = last.to == to
            && last.open
            && last.frames < pack::FRAMES_MAX
            && last.bytes_with(bytes) <= longest.min(self.pack_bytes_max);
        if !fits {
            return false;
        }
        let end = last.end();
        let (here, from) = self.socket.two_slots(last.slot, slot);
        let start = end + pack::LENGTH_BYTES;
        let place = &mut here[start..start + bytes];
        place[..frame_bytes].copy_from_slice(&from[HEADROOM..HEADROOM + frame_bytes]);
        place[frame_bytes..].copy_from_slice(payload);
        if pack::is_pack(place) {
            return false;
        }
        if last.frames == 1 {
            write_length(last.frame_bytes, &mut here[HEADROOM - pack::LENGTH_BYTES..]);
        }
        write_length(bytes, &mut here[end..]);
        last.frames += 1;
        last.frame_bytes += bytes;
        true
    }
}

fn write_length(bytes: usize, to: &mut [u8]) {
    if let Some(to) = to.first_chunk_mut() {
        pack::write_length(bytes, to);
    }
}
