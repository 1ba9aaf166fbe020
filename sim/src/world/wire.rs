//! Frames between NICs: reading them out of memory, carrying them, writing them into buffers.

use super::World;
use super::event::Event;
use crate::engine::queue::{MICRO, Nanos};
use crate::engine::trace::Actor;
use crate::network::FrameId;
use crate::trace;

/// Longest time from the doorbell until a NIC reads the frames.
const READ_DELAY_MAX: Nanos = MICRO;
/// Longest time until a polling process looks at a frame that has arrived.
const POLL_DELAY_MAX: Nanos = 3 * MICRO;

impl World {
    /// The NIC has been notified of frames: it will read them soon.
    pub(crate) fn ring_doorbell(&mut self, station: usize) {
        let place = &mut self.stations[station];
        if place.nic.has_to_read() && !place.reading {
            place.reading = true;
            let delay = 50 + self.timing.below(READ_DELAY_MAX);
            self.queue.after(delay, Event::Read(u32::try_from(station).unwrap_or(u32::MAX)));
        }
    }

    /// The NIC reads all frames it knows of and puts them on the wire.
    pub(crate) fn read_frames(&mut self, station: u32) {
        let World { stations, network, counts, queue, timing, trace, plan, .. } = self;
        let now = queue.now();
        let Some(place) = stations.get_mut(usize::try_from(station).unwrap_or(usize::MAX)) else { return };
        place.reading = false;
        let from = place.nic.id();
        while let Some(frame) = place.nic.read_next() {
            trace!(
                trace,
                now,
                Actor::Network,
                "frame {from:?}>{:?} {}B process {} life {} epoch {}",
                frame.to,
                frame.head.len() + frame.payload.len(),
                frame.origin.process,
                frame.origin.life,
                frame.origin.epoch
            );
            network.take(from, frame.to, frame.origin, [frame.head, frame.payload], counts, |id, travel| {
                queue.at(now + travel, Event::Arrive(id));
            });
        }
        place.completes_at = now + timing.below(plan.completion_ns_max);
    }

    /// A frame reaches its NIC, unless something is between.
    pub(crate) fn frame_arrives(&mut self, id: FrameId) {
        let now = self.queue.now();
        let (from, to) = self.network.ends(id);
        let at = usize::try_from(to.0).unwrap_or(usize::MAX);
        let cut_off = self.is_cut_off(usize::try_from(from.0).unwrap_or(usize::MAX), at, now);
        let (frame, bytes) = self.network.frame(id);
        let place = &mut self.stations[at];
        let written = !cut_off && place.nic.write_arriving(bytes, frame.origin);
        if let (true, true, Some(process)) = (self.sabotage.bypass(), written, place.process) {
            // R11 out: the NIC does not care whether the rank stands still.
            let process = &mut self.processes[super::at(process)];
            let port = super::at(place.slot / self.plan.rails);
            if let Some(frozen) = process.frozen.get(port) {
                frozen.bypass(bytes, &mut process.program.receives[port]);
            }
        }
        trace!(
            self.trace,
            now,
            Actor::Network,
            "arrive {:?}>{:?}{}",
            from,
            to,
            if cut_off {
                " cut"
            } else if written {
                ""
            } else {
                " dropped"
            }
        );
        let process = place.process;
        self.network.remove(id);
        if let (true, Some(process)) = (written, process) {
            let delay = 100 + self.timing.below(POLL_DELAY_MAX);
            self.wake_after_arrival(process, now + delay);
        }
    }

    fn is_cut_off(&mut self, from: usize, to: usize, now: Nanos) -> bool {
        if self.partitions.is_empty() {
            return false;
        }
        self.partitions.retain(|partition| partition.until > now);
        let ends = (self.stations[from].node, self.stations[to].node);
        self.partitions.iter().any(|p| (p.one, p.other) == ends || (p.other, p.one) == ends)
    }
}
