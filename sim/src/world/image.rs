//! What a cut captures, and how it lies in an image file.

use transport::{FrozenPort, port::state::PortState};

use crate::engine::random::mix;
use crate::judge::Generation;
use crate::judge::cut::LinkEnd;
use crate::workload::Program;

/// The state of a rank at its cut.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    /// By the judges' count.
    pub(crate) generation: Generation,
    pub(crate) program: Program,
    /// The program's memory as bytes.
    pub(crate) memory: Vec<u8>,
    pub(crate) ports: Vec<PortState>,
    /// Of everything above.
    pub(crate) digest: u64,
}

/// A digest of bytes for the judges' books: not the store's, so that they do not share its faults.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    let mut state = bytes.len() as u64;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        state = (state.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    for byte in chunks.remainder() {
        state = (state.rotate_left(5) ^ u64::from(*byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    mix(state)
}

impl Image {
    /// Captures a frozen rank.
    pub(crate) fn capture(generation: Generation, program: &Program, frozen: &[FrozenPort]) -> Image {
        let mut memory = Vec::with_capacity(1024);
        program.save(&mut memory);
        let ports: Vec<PortState> = frozen.iter().map(FrozenPort::state).collect();
        let digest = digest(&memory);
        Image { generation, program: program.clone(), memory, ports, digest }
    }

    /// Both ends' counters of every link, for the judge of cuts.
    pub(crate) fn link_ends(&self) -> Vec<LinkEnd> {
        let mut ends = Vec::new();
        for port in &self.ports {
            for link in &port.links {
                let held = link.sent.len() as u64;
                ends.push(LinkEnd {
                    peer: link.peer.rank().0,
                    port: u32::try_from(link.peer.0 & 0xffff_ffff).unwrap_or(u32::MAX),
                    acked: link.next - held,
                    next: link.next,
                    held,
                    expected: link.expected,
                });
            }
        }
        ends
    }
}
