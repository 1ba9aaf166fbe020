//! A port's behaviour without a rule: only for the simulator, which must notice.

use crate::bytering::ByteRing;
use crate::ids::LinkIndex;
use crate::message::Buffers;
use crate::port::{FrozenPort, Port};
use crate::sabotage::Sabotage;
use crate::wire::{Body, Frame};

impl Port {
    /// Takes rules out of the protocol.
    pub fn sabotage(&mut self, sabotage: Sabotage) {
        self.sabotage = sabotage;
    }

    /// R11 out: a NIC writes payload where it belongs as soon as it comes, from any sender at any time.
    pub(crate) fn bypass(&self, frame: &Frame<'_>, buffers: &mut impl Buffers) {
        let Body::Data(data) = frame.body else { return };
        let incoming = self.find_link(frame).and_then(|(known, _)| {
            let queues = self.links.get(known?.0 as usize)?.queues.as_ref()?;
            queues.incoming.iter().find(|incoming| incoming.peer_op == data.operation)
        });
        if let Some(incoming) = incoming
            && super::receive::fits(data.offset, frame.payload.len(), incoming.granted)
        {
            buffers.place(incoming.op, incoming.base + data.offset, frame.payload);
        }
    }

    /// R5 out: frames that have been reported as received out of order are discarded, as if they were
    /// acknowledged for good.
    pub(crate) fn free_selected(&mut self, index: LinkIndex) {
        let Some(queues) = &mut self.links[index.0 as usize].queues else { return };
        for (frame, sent) in queues.frames.iter().zip(&queues.sent) {
            if sent.selected && frame.is_copied() && sent.payload_bytes > 0 {
                blank(&mut queues.copied, frame.start.get(), sent.payload_bytes as usize);
            }
        }
    }
}

fn blank(ring: &mut ByteRing, start: u64, bytes: usize) {
    if start >= ring.start() && start + bytes as u64 <= ring.end() {
        ring.overwrite(start, &alloc::vec![0; bytes]);
    }
}

impl FrozenPort {
    /// Takes rules out of the protocol.
    pub fn sabotage(&mut self, sabotage: Sabotage) {
        self.port.sabotage = sabotage;
    }

    /// R11 out: the NIC goes on writing into memory while the port stands still.
    pub fn bypass(&self, frame: &[u8], buffers: &mut impl Buffers) {
        if let Ok(frame) = Frame::parse(frame) {
            self.port.bypass(&frame, buffers);
        }
    }
}
