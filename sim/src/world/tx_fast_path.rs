//! Short messages that leave while the program hands them over, past queues, as a shell sends them.

use drivers::Driver as _;
use transport::wire::HEAD_BYTES_MAX;
use transport::{AddressId, Instant, LinkIndex, OpId, Outgoing, Port, RailIndex};

use super::World;
use super::progress::origin_of;

/// The longest that take the fast path.
const BYTES_MAX: usize = 400;

/// The fast path of one process, for one step of its program.
pub(crate) struct TxFastPath {
    /// The process's own clock.
    pub(crate) now: Instant,
    pub(crate) rails: usize,
    pub(crate) frames: Vec<FastFrame>,
}

/// A frame that its port takes for sent.
pub(crate) struct FastFrame {
    port: u32,
    rail: RailIndex,
    to: AddressId,
    bytes: Vec<u8>,
}

impl TxFastPath {
    /// Sends, if the port lets it go at once, over the first rail that does.
    pub(crate) fn send(
        &mut self,
        port: &mut Port,
        number: u32,
        link: LinkIndex,
        outgoing: &Outgoing,
        payload: &[u8],
    ) -> Option<OpId> {
        if payload.len() > BYTES_MAX {
            return None;
        }
        (0..self.rails).find_map(|rail| {
            let rail = RailIndex(u8::try_from(rail).ok()?);
            let mut bytes = vec![0; HEAD_BYTES_MAX + BYTES_MAX];
            port.send_fast(rail, link, outgoing, payload, &mut bytes, |to, frame| {
                self.frames.push(FastFrame { port: number, rail, to, bytes: frame.to_vec() });
                self.now
            })
        })
    }
}

impl World {
    /// Hands the frames of a step to the NICs. A frame that finds no room is lost, and retransmitted later.
    pub(super) fn send_fast_frames(&mut self, number: u32, frames: Vec<FastFrame>) {
        let of = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        let rails = of(self.plan.rails);
        for frame in frames {
            let process = &self.processes[of(number)];
            let station = process.stations[of(frame.port) * rails + usize::from(frame.rail.0)];
            let origin = origin_of(process);
            let place = &mut self.stations[station];
            place.report_completions(self.queue.now());
            if let Some(lease) = place.nic.lease() {
                lease[..frame.bytes.len()].copy_from_slice(&frame.bytes);
                place.nic.set_sender(origin);
                place.nic.commit(frame.to, frame.bytes.len(), drivers::Payload::EMPTY);
                // A dead NIC has no buffer to lease.
                let _ = place.nic.flush();
                self.frames_fast += 1;
            }
            self.ring_doorbell(station);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_node_send_at_once_and_ranks_receive_at_once() {
        let plans = (0..).map(|seed| crate::plan::generate(seed, 4));
        let fast = plans.filter(|plan| plan.pulls).take(5).map(|plan| {
            let mut world = World::new(plan, false);
            world.run();
            (world.frames_fast, world.messages_fast)
        });
        let (sent, received) = fast.fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
        assert!(sent > 100 && received > 50, "{sent} sent, {received} received");
    }
}
