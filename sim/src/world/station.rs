//! Where a NIC stands: one per rank, port and rail. The place, and with it the address, outlives the process that uses it, as a
//! UDP port does: frames of an old life reach the process of the next.

use drivers::Driver as _;

use crate::engine::queue::Nanos;
use crate::network::nic::SimNic;

/// A place for a NIC, and the NIC that is there now.
#[derive(Debug)]
pub(crate) struct Station {
    /// Rank that it belongs to.
    pub(crate) rank: u32,
    /// Port and rail: port number times rails plus rail.
    pub(crate) slot: u32,
    /// Node that it is plugged into.
    pub(crate) node: u32,
    /// The process that has it open.
    pub(crate) process: Option<u32>,
    pub(crate) nic: SimNic,
    /// The process has seen that the NIC is dead.
    pub(crate) seen_dead: bool,
    /// A [`Read`](super::event::Event::Read) is scheduled.
    pub(crate) reading: bool,
    /// When the frames read so far are reported as completed.
    pub(crate) completes_at: Nanos,
}

impl Station {
    pub(crate) fn new(nic: SimNic, rank: u32, slot: u32, node: u32) -> Station {
        Station { rank, slot, node, process: None, nic, seen_dead: false, reading: false, completes_at: 0 }
    }

    /// Puts a new NIC here, opened by `process`.
    pub(crate) fn open(&mut self, process: u32) {
        self.nic.renew();
        self.process = Some(process);
        self.seen_dead = false;
        self.completes_at = 0;
    }

    /// As [`Station::open`], of one for frames of another length.
    pub(crate) fn open_for(&mut self, process: u32, frame_bytes_max: usize) {
        if self.nic.caps().frame_bytes_max != frame_bytes_max {
            self.nic = SimNic::new(self.nic.id(), frame_bytes_max, self.nic.caps().burst);
        }
        self.open(process);
    }

    /// The process has closed it, or not opened it.
    pub(crate) fn leave(&mut self) {
        self.close();
        self.seen_dead = true;
    }

    /// Lets the NIC report the frames that it has read, if it is time.
    pub(crate) fn report_completions(&mut self, now: Nanos) {
        if self.completes_at <= now && self.nic.has_to_complete() {
            self.nic.complete_read();
        }
    }

    /// The process is gone, and the NIC with it.
    pub(crate) fn close(&mut self) {
        self.nic.die();
        self.process = None;
    }
}
