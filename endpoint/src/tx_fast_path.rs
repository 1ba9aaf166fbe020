//! The fast path of a short message, past all queues: see [`transport::Port::send_fast`].

use transport::wire::HEAD_BYTES_MAX;
use transport::{LinkIndex, OpId, Outgoing};

use crate::buffers::SendBuffer;
use crate::clock::Clock;
use crate::inner::{Inner, rail_index};

/// Payload up to this many bytes takes the fast path.
const PAYLOAD_BYTES_MAX: usize = 128;

/// Bytes of the longest frame that does.
pub(crate) const FRAME_BYTES_MAX: usize = HEAD_BYTES_MAX + PAYLOAD_BYTES_MAX;

impl Inner {
    /// Sends a short copied message at once, if nothing stands before it.
    #[inline]
    pub(crate) fn send_fast(
        &mut self,
        link: LinkIndex,
        outgoing: &Outgoing,
        buffer: &SendBuffer<'_>,
        clock: &Clock,
    ) -> Option<OpId> {
        let SendBuffer::Copied(payload) = buffer else { return None };
        if payload.len() > PAYLOAD_BYTES_MAX {
            return None;
        }
        if let Some(i) = self.within_host
            && let Some(op) = self.send_fast_over(i, clock, link, outgoing, payload)
        {
            return Some(op);
        }
        let within_host = self.within_host;
        let mut others = (0..self.rails.len()).filter(|i| Some(*i) != within_host);
        others.find_map(|i| self.send_fast_over(i, clock, link, outgoing, payload))
    }

    #[inline]
    fn send_fast_over(
        &mut self,
        i: usize,
        clock: &Clock,
        link: LinkIndex,
        outgoing: &Outgoing,
        payload: &[u8],
    ) -> Option<OpId> {
        let Inner { port, rails, fast_frame, .. } = self;
        let driver = rails[i].as_mut()?;
        let mut staged = false;
        let op = port.send_fast(rail_index(i), link, outgoing, payload, fast_frame, |to, frame| {
            staged = !driver.send_fast(to, frame);
            // Without a lease it is lost, and retransmitted later.
            if staged && let Some(buffer) = driver.lease() {
                buffer[..frame.len()].copy_from_slice(frame);
                driver.commit(to, frame.len(), drivers::Payload::EMPTY);
            }
            clock.now()
        })?;
        self.empty_looks[i] = 0;
        if staged {
            self.hand_over(i);
        }
        Some(op)
    }
}
