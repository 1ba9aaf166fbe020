//! Datagrams between simulated NICs: late, lost, doubled, overtaken, damaged, cut off.

pub mod nic;

use crate::engine::queue::{MICRO, Nanos};
use crate::engine::random::Random;
use crate::faults::{Fault, FaultCounts};
use crate::limits::{HOLD_UP_MAX, WIRE_MIN};
use nic::NicId;

/// How the network treats frames. Chances are parts of [`CHANCE_ONE`](crate::engine::random::CHANCE_ONE).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NetworkConditions {
    /// Chance that a frame vanishes.
    pub loss: u16,
    /// Chance that a frame arrives twice.
    pub duplication: u16,
    /// Chance that a frame is held back long enough for others to overtake it.
    pub reordering: u16,
    /// Chance that a frame is damaged.
    pub corruption: u16,
    /// Chance that a frame is held up for up to [`HOLD_UP_MAX`].
    pub delay: u16,
    /// Spread of the ordinary travel time above [`WIRE_MIN`], in nanoseconds.
    pub jitter_ns: u32,
}

/// Damage that a receiving NIC can notice by itself, as a UDP checksum or an Ethernet CRC would.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Checksum {
    /// The NIC drops every damaged frame: the layers above carry no protection of their own.
    #[default]
    WholeFrame,
    /// The NIC drops frames with a damaged payload: the layers above protect only heads of so many bytes.
    BehindHead(u32),
    /// Damaged frames arrive as they are.
    None,
}

/// The true sender of a frame: for the judges, independent of the frame's fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrameOrigin {
    /// Number of the sending process: every start of a rank has a new one.
    pub process: u32,
    /// Epoch of the sending rank when the NIC took the frame's description over.
    pub epoch: u32,
    /// Counter of the sender's life, as the world counts lives.
    pub life: u32,
    /// The network has damaged it.
    pub damaged: bool,
}

/// A frame in the network.
#[derive(Clone, Copy, Debug)]
pub struct InFlight {
    /// NIC that sent it.
    pub from: NicId,
    /// NIC it is for.
    pub to: NicId,
    /// Its true sender.
    pub origin: FrameOrigin,
    bytes: u32,
}

/// Handle of a frame in the network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FrameId(u32);

impl FrameId {
    /// The slot that the frame lies in.
    #[must_use]
    pub fn slot(self) -> u32 {
        self.0
    }
}

/// The frames that are on their way, in slots of one size that are used again and again.
#[derive(Debug)]
pub struct Network {
    slot_bytes: usize,
    bytes: Vec<u8>,
    frames: Vec<InFlight>,
    free: Vec<u32>,
    conditions: NetworkConditions,
    checksum: Checksum,
    random: Random,
}

impl Network {
    /// An empty network for frames of up to `frame_bytes_max` bytes.
    #[must_use]
    pub fn new(
        frame_bytes_max: usize,
        conditions: NetworkConditions,
        checksum: Checksum,
        random: Random,
    ) -> Network {
        Network {
            slot_bytes: frame_bytes_max,
            bytes: Vec::new(),
            frames: Vec::new(),
            free: Vec::new(),
            conditions,
            checksum,
            random,
        }
    }

    /// Changes how frames are treated from now on.
    pub fn set_conditions(&mut self, conditions: NetworkConditions) {
        self.conditions = conditions;
    }

    /// Frames on their way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.frames.len() - self.free.len()
    }

    fn add(&mut self, frame: InFlight) -> FrameId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.frames.push(frame);
            self.bytes.resize(self.frames.len() * self.slot_bytes, 0);
            u32::try_from(self.frames.len() - 1).unwrap_or(u32::MAX)
        });
        self.frames[index(slot)] = frame;
        FrameId(slot)
    }

    fn bytes_mut(&mut self, id: FrameId) -> &mut [u8] {
        let start = index(id.0) * self.slot_bytes;
        let bytes = index(self.frames[index(id.0)].bytes);
        &mut self.bytes[start..start + bytes]
    }

    /// The frame's content and sender.
    #[must_use]
    pub fn frame(&self, id: FrameId) -> (&InFlight, &[u8]) {
        let frame = &self.frames[index(id.0)];
        let start = index(id.0) * self.slot_bytes;
        (frame, &self.bytes[start..start + index(frame.bytes)])
    }

    /// Where the frame came from and where it goes.
    #[must_use]
    pub fn ends(&self, id: FrameId) -> (NicId, NicId) {
        let frame = &self.frames[index(id.0)];
        (frame.from, frame.to)
    }

    /// The frame has arrived or is lost: its slot is free.
    pub fn remove(&mut self, id: FrameId) {
        self.free.push(id.0);
    }

    /// Takes a frame from a NIC. `arrive` is called for each copy with its handle and how long it will travel: never, once
    /// or twice.
    pub fn take(
        &mut self,
        from: NicId,
        to: NicId,
        origin: FrameOrigin,
        parts: [&[u8]; 2],
        counts: &mut FaultCounts,
        mut arrive: impl FnMut(FrameId, Nanos),
    ) {
        let conditions = self.conditions;
        if self.random.chance(conditions.loss) {
            counts.add(Fault::Loss);
            return;
        }
        let bytes = parts[0].len() + parts[1].len();
        debug_assert!(bytes <= self.slot_bytes);
        let frame = InFlight { from, to, origin, bytes: u32::try_from(bytes).unwrap_or(0) };
        let id = self.add(frame);
        let slot = self.bytes_mut(id);
        slot[..parts[0].len()].copy_from_slice(parts[0]);
        slot[parts[0].len()..].copy_from_slice(parts[1]);
        if self.random.chance(conditions.duplication) {
            counts.add(Fault::Duplication);
            let copy = self.add(frame);
            let start = index(id.0) * self.slot_bytes;
            self.bytes.copy_within(start..start + bytes, index(copy.0) * self.slot_bytes);
            let travel = self.travel(counts);
            arrive(copy, travel);
        }
        if self.random.chance(conditions.corruption) {
            counts.add(Fault::Corruption);
            if self.damage(id) {
                self.remove(id);
                return;
            }
        }
        let travel = self.travel(counts);
        arrive(id, travel);
    }

    /// Travel time of one copy.
    fn travel(&mut self, counts: &mut FaultCounts) -> Nanos {
        let conditions = self.conditions;
        let mut travel = WIRE_MIN + self.random.below(u64::from(conditions.jitter_ns));
        if self.random.chance(conditions.reordering) {
            counts.add(Fault::Reordering);
            travel += self.random.between(MICRO, 60 * MICRO);
        }
        if self.random.chance(conditions.delay) {
            counts.add(Fault::Delay);
            travel += self.random.log_between(200 * MICRO, HOLD_UP_MAX);
        }
        travel
    }

    /// Changes the frame; true if the receiving NIC would notice and drop it.
    fn damage(&mut self, id: FrameId) -> bool {
        let noticed = match self.checksum {
            Checksum::WholeFrame => return true,
            Checksum::BehindHead(head) => head,
            Checksum::None => u32::MAX,
        };
        let slot = &mut self.frames[index(id.0)];
        slot.origin.damaged = true;
        let bytes = slot.bytes;
        if bytes == 0 {
            return true;
        }
        if self.random.percent(10) {
            // A shortened frame has a wrong length everywhere below us.
            if self.checksum != Checksum::None {
                return true;
            }
            self.frames[index(id.0)].bytes = u32::try_from(self.random.below(u64::from(bytes))).unwrap_or(0);
            return false;
        }
        // An odd number: two flips of one bit would leave the frame as it was.
        let flips = 1 + 2 * self.random.below(2);
        let mut behind_head = false;
        for _ in 0..flips {
            let at = self.random.below(u64::from(bytes));
            behind_head |= at >= u64::from(noticed);
            let bit = 1u8 << self.random.below(8);
            let at = usize::try_from(at).unwrap_or(0);
            self.bytes_mut(id)[at] ^= bit;
        }
        behind_head
    }
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deliver(
        conditions: NetworkConditions,
        checksum: Checksum,
        frames: usize,
    ) -> (Vec<(Vec<u8>, Nanos)>, FaultCounts, usize) {
        let mut network = Network::new(64, conditions, checksum, Random::new(3));
        let mut counts = FaultCounts::default();
        let mut got = Vec::new();
        for i in 0..frames {
            let head = [u8::try_from(i % 251).unwrap(); 20];
            let mut arrivals = Vec::new();
            network.take(
                NicId(0),
                NicId(1),
                FrameOrigin::default(),
                [&head, b"payload"],
                &mut counts,
                |id, travel| {
                    arrivals.push((id, travel));
                },
            );
            for (id, travel) in arrivals {
                got.push((network.frame(id).1.to_vec(), travel));
                network.remove(id);
            }
        }
        (got, counts, network.in_flight())
    }

    #[test]
    fn a_calm_network_delivers_everything_whole() {
        let (got, counts, left) = deliver(NetworkConditions::default(), Checksum::None, 100);
        assert_eq!((got.len(), left), (100, 0));
        assert!(got.iter().all(|(frame, travel)| frame.ends_with(b"payload") && *travel == WIRE_MIN));
        assert_eq!(counts, FaultCounts::default());
    }

    #[test]
    fn each_kind_of_fault_is_counted_as_often_as_it_happens() {
        let tenth = u16::MAX / 10;
        let (got, counts, _) =
            deliver(NetworkConditions { loss: tenth, ..NetworkConditions::default() }, Checksum::None, 5000);
        assert_eq!(got.len() as u64, 5000 - counts.of(Fault::Loss));
        assert!((400..600).contains(&counts.of(Fault::Loss)));
        let (got, counts, _) = deliver(
            NetworkConditions { duplication: tenth, ..NetworkConditions::default() },
            Checksum::None,
            5000,
        );
        assert_eq!(got.len() as u64, 5000 + counts.of(Fault::Duplication));
        assert!((400..600).contains(&counts.of(Fault::Duplication)));
    }

    #[test]
    fn damage_arrives_only_where_no_checksum_would_notice() {
        let conditions = NetworkConditions { corruption: u16::MAX, ..NetworkConditions::default() };
        assert_eq!(deliver(conditions, Checksum::WholeFrame, 200).0, []);
        let (got, ..) = deliver(conditions, Checksum::BehindHead(20), 200);
        assert!(!got.is_empty() && got.iter().all(|(frame, _)| frame.ends_with(b"payload")));
        let (got, ..) = deliver(conditions, Checksum::None, 200);
        assert_eq!(got.len(), 200);
        assert!(got.iter().any(|(frame, _)| frame.len() < 27));
    }
}
