//! Payloads that a process reads out of the memory of another one on its node (R11).

use transport::{Buffers as _, OpId};

use super::World;
use super::process::Phase;
use crate::engine::trace::Actor;
use crate::judge::Violation;
use crate::trace;

/// Unavailable pieces, one of so many: the system refuses, or the peer has just let go.
const REFUSED_ONE_OF: u64 = 24;

/// Where a payload lies: an address in the world.
#[derive(Clone, Copy)]
pub(crate) struct PayloadAddress {
    pub(crate) process: u32,
    pub(crate) port: u32,
    pub(crate) op: OpId,
    pub(crate) offset: u64,
}

impl PayloadAddress {
    const OFFSET: u32 = 14;
    const OP: u32 = 18;
    const PORT: u32 = 2;

    /// Never 0, which means no place; also 0 for memory without room.
    pub(crate) fn bits(self) -> u64 {
        if self.op.0 >> PayloadAddress::OP != 0
            || self.offset >> PayloadAddress::OFFSET != 0
            || self.port >> PayloadAddress::PORT != 0
        {
            return 0;
        }
        let process = u64::from(self.process + 1);
        ((process << PayloadAddress::PORT | u64::from(self.port)) << PayloadAddress::OP | self.op.0)
            << PayloadAddress::OFFSET
            | self.offset
    }

    fn at(bits: u64) -> Option<PayloadAddress> {
        let low = |bits: u64, width: u32| bits & ((1 << width) - 1);
        let (op, port) =
            (bits >> PayloadAddress::OFFSET, bits >> (PayloadAddress::OFFSET + PayloadAddress::OP));
        let process = u32::try_from(port >> PayloadAddress::PORT).ok()?.checked_sub(1)?;
        Some(PayloadAddress {
            process,
            port: u32::try_from(low(port, PayloadAddress::PORT)).ok()?,
            op: OpId(low(op, PayloadAddress::OP)),
            offset: low(bits, PayloadAddress::OFFSET),
        })
    }
}

impl World {
    /// Pulls one piece for each port that wants one.
    pub(super) fn pull(&mut self, number: u32) {
        let of = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        if !self.plan.pulls || self.processes[of(number)].phase != Phase::Running {
            return;
        }
        for port_number in 0..self.processes[of(number)].ports.len() {
            let process = &mut self.processes[of(number)];
            if !process.ports[port_number].wants_to_pull() {
                continue;
            }
            // Pieces of all lengths, so that cuts and crashes find payloads that are half here.
            let chance = self.queue.now().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let Some(pull) = process.ports[port_number].next_pull(1 + chance % 700) else { continue };
            let (rank, node) = (process.rank, process.node);
            let source = PayloadAddress::at(pull.place).filter(|_| !chance.is_multiple_of(REFUSED_ONE_OF));
            let source = source.and_then(|place| Some((place, self.processes.get(of(place.process))?)));
            let source = source.filter(|(_, peer)| peer.is_alive() && peer.node == node);
            let piece = source.map(|(place, peer)| {
                let start = usize::try_from(place.offset).unwrap_or(usize::MAX);
                let bytes = usize::try_from(pull.bytes).unwrap_or(usize::MAX);
                let payload = peer.program.payload(place.port, place.op);
                let piece = payload.and_then(|payload| payload.get(start..start.saturating_add(bytes)));
                (place.op, peer.rank, piece.map(<[u8]>::to_vec))
            });
            trace!(
                self.trace,
                self.queue.now(),
                Actor::Rank(rank),
                "pulls {}B: {}",
                pull.bytes,
                piece.is_some()
            );
            if let Some((op, from, None)) = piece {
                self.judges.report(Violation::PulledTooLate { rank, from, op: op.0 });
            }
            let process = &mut self.processes[of(number)];
            let here = if let Some((_, _, Some(bytes))) = &piece {
                process.program.receives[port_number].place(pull.receive, pull.offset, bytes);
                true
            } else {
                false
            };
            process.ports[port_number].pulled(&pull, here);
        }
    }
}
