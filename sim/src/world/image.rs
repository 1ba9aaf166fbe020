//! The content of a cut, and its layout in an image file.

use transport::{FrozenPort, OpId};

use crate::engine::random::mix;
use crate::judge::Generation;
use crate::judge::cut::LinkEnd;
use crate::plan::Mode;
use crate::workload::Program;

/// The state of a rank at its cut.
#[derive(Debug)]
pub(crate) struct Image {
    /// By the judges' count.
    pub(crate) generation: Generation,
    /// The program's memory.
    pub(crate) memory: Vec<u8>,
    /// A section per port: its id and its bytes.
    pub(crate) ports: Vec<(u64, Vec<u8>)>,
}

/// The user memory of one port's operations, as the port's section wants it.
struct UserMemory<'a> {
    program: &'a Program,
    port: u32,
}

impl nic_freeze::Payloads for UserMemory<'_> {
    fn send_payload(&self, op: OpId) -> Option<&[u8]> {
        self.program.payload(self.port, op).map(|bytes| bytes.as_slice())
    }

    fn receive_buffer(&self, op: OpId) -> Option<&[u8]> {
        let posted = &self.program.receives.get(super::at(self.port))?.posted;
        posted.iter().find(|posted| posted.op == Some(op)).map(|posted| posted.bytes.as_slice())
    }
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
    /// Captures a frozen rank. A native program's image carries the library's buffers in the ports' sections; a process's
    /// image has them in its memory.
    pub(crate) fn capture(
        generation: Generation,
        mode: Mode,
        program: &Program,
        frozen: &[FrozenPort],
    ) -> Result<Image, nic_freeze::DumpError> {
        let mut memory = Vec::with_capacity(1024);
        program.save(&mut memory);
        let mut ports = Vec::with_capacity(frozen.len());
        for (port, number) in frozen.iter().zip(0..) {
            let mut section = Vec::with_capacity(2048);
            nic_freeze::dump(port, &mut section);
            if mode == Mode::Counted {
                nic_freeze::append_payloads(port, &UserMemory { program, port: number }, &mut section)?;
            }
            ports.push((port.id().0, section));
        }
        Ok(Image { generation, memory, ports })
    }

    /// Of everything in it.
    pub(crate) fn digest(&self) -> u64 {
        let ports = self.ports.iter().map(|(_, section)| digest(section));
        ports.fold(digest(&self.memory), |all, one| mix(all.rotate_left(9) ^ one))
    }
}

/// Both ends' counters of every link, for the judge of cuts.
pub(crate) fn link_ends(frozen: &[FrozenPort]) -> Vec<LinkEnd> {
    let mut ends = Vec::with_capacity(16);
    for port in frozen {
        for link in port.links() {
            let held = link.queues().map_or(0, |queues| queues.sent().count() as u64);
            ends.push(LinkEnd {
                peer: link.peer().rank().0,
                port: u32::try_from(port.id().0 & 0xffff_ffff).unwrap_or(u32::MAX),
                acked: link.next() - held,
                next: link.next(),
                held,
                expected: link.expected(),
            });
        }
    }
    ends
}

/// Whether the user memory that a port's section carried equals the program's own memory.
pub(crate) fn agrees(carried: &nic_freeze::Carried, program: &Program, port: u32) -> bool {
    let memory = UserMemory { program, port };
    let sends = carried.sends.iter().all(|(op, bytes)| {
        nic_freeze::Payloads::send_payload(&memory, *op).is_some_and(|own| own == bytes.as_slice())
    });
    let receives = carried.receives.iter().all(|receive| {
        let own = nic_freeze::Payloads::receive_buffer(&memory, receive.op);
        own.is_some_and(|own| own.starts_with(&receive.filled) && own.len() as u64 == receive.buffer_bytes)
    });
    sends && receives
}
