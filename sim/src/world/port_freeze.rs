//! A rank's ports come to a stand: the machine of `nic-freeze`, and the NICs that give their buffers back in their own time.

use core::task::Poll;
use core::time::Duration;

use ckpt_glue::ExitStatus;
use drivers::Driver as _;
use nic_freeze::{Freeze, FreezeError, Refused};
use transport::{Epoch, FrozenPort, Port, RailIndex};

use super::event::Task;
use super::process::Phase;
use super::{World, at};
use crate::engine::queue::Nanos;
use crate::engine::trace::Actor;
use crate::limits::{DRAIN_LOOK, DRAIN_MAX};
use crate::trace;

/// The end of a rank that cannot raise its epoch: it could not read its peers' frames any more (R2).
const ABORTED: ExitStatus = ExitStatus::Signal(6);

/// The reason why the ports stand still.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// A cut with an image, and a pause of so many nanoseconds.
    Cut { epoch: Epoch, pause: Nanos },
    /// A higher epoch, without an image.
    Raise { epoch: Epoch },
    /// The rank goes on elsewhere so many nanoseconds later.
    Move { lasts: Nanos },
}

/// Ports that are being frozen: no thread makes progress on them.
#[derive(Debug)]
pub(crate) struct PortFreeze {
    ports: Vec<Freeze>,
    purpose: Purpose,
}

impl World {
    /// Begins to freeze all ports of a running process.
    pub(crate) fn freeze_for(&mut self, number: u32, purpose: Purpose) {
        let local = self.local_time(number);
        let rails = at(self.plan.rails);
        let process = &mut self.processes[at(number)];
        let limit = Duration::from_nanos(DRAIN_MAX);
        let ports = process.ports.drain(..).map(|port| Freeze::quiesce(port, rails, local, limit)).collect();
        process.freezing = Some(PortFreeze { ports, purpose });
        process.phase = Phase::Quiescing;
        self.look_at_freeze(number);
    }

    /// Asks the NICs that still hold buffers, and goes on when none does.
    pub(crate) fn look_at_freeze(&mut self, number: u32) {
        let Some(PortFreeze { ports, purpose }) = self.processes[at(number)].freezing.take() else { return };
        let mut looked = Vec::with_capacity(ports.len());
        for (port_number, freeze) in ports.into_iter().enumerate() {
            match self.drain_port(number, port_number, freeze) {
                Some(freeze) => looked.push(freeze),
                None => return self.end_process(number, ABORTED),
            }
        }
        let process = &mut self.processes[at(number)];
        if looked.iter().any(|freeze| !matches!(freeze, Freeze::Frozen(_))) {
            process.freezing = Some(PortFreeze { ports: looked, purpose });
            return self.task_after(DRAIN_LOOK, Task::Freeze { process: number });
        }
        let frozen = looked.into_iter().filter_map(|freeze| match freeze {
            Freeze::Frozen(port) => Some(port),
            Freeze::Running(_) | Freeze::Quiescing(_) => None,
        });
        process.frozen.extend(frozen);
        process.phase = Phase::Frozen;
        match purpose {
            Purpose::Cut { epoch, pause } => {
                let rank = self.processes[at(number)].rank;
                trace!(self.trace, self.queue.now(), Actor::Rank(rank), "cut {} for {pause} ns", epoch.0);
                self.task_after(pause, Task::Thaw { process: number });
                self.cut(number, epoch);
            }
            Purpose::Raise { epoch } => self.raise(number, epoch),
            Purpose::Move { lasts } => self.task_after(lasts, Task::Arrive { process: number }),
        }
        // The participant's output since the cut has waited for it.
        self.run_participant(number);
    }

    /// One look at one port. A rail that fails in it is taken out, and the port quiesces on the others; `None`: a NIC kept its buffers for too long.
    fn drain_port(&mut self, number: u32, port_number: usize, mut freeze: Freeze) -> Option<Freeze> {
        let local = self.local_time(number);
        let rails = at(self.plan.rails);
        let World { processes, stations, queue, .. } = self;
        let own = &processes[at(number)].stations[port_number * rails..][..rails];
        loop {
            let drain = |rail: RailIndex| {
                let station = &mut stations[own[usize::from(rail.0)]];
                station.report_completions(queue.now());
                if station.seen_dead { Ok(Poll::Ready(())) } else { station.nic.drain() }
            };
            let Refused { mut port, reason } = match freeze.poll(local, drain) {
                Ok(freeze) => return Some(freeze),
                Err(refused) => refused,
            };
            let FreezeError::Rail { rail, .. } = reason else { return None };
            stations[own[usize::from(rail.0)]].seen_dead = true;
            port.set_rail_alive(rail, false);
            freeze = Freeze::quiesce(*port, rails, local, Duration::from_nanos(DRAIN_MAX));
        }
    }

    /// R2: the epoch rises without an image, and the ports go on.
    fn raise(&mut self, number: u32, epoch: Epoch) {
        let local = self.local_time(number);
        let process = &mut self.processes[at(number)];
        let raised = |mut port: FrozenPort| -> Port {
            port.set_epoch(epoch);
            port.thaw(local)
        };
        process.ports = process.frozen.drain(..).map(raised).collect();
        process.phase = Phase::Running;
        self.wake(number, self.queue.now() + 1);
    }
}
