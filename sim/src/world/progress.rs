//! A process's turn: take frames, let its program go on, send frames, decide when to run again.

use ckpt_glue::Participant;
use drivers::Driver as _;
use transport::wire::{Header, write_place};
use transport::{Event as PortEvent, Port, RailIndex, Silence};

use super::World;
use super::calm::CALM_PACE;
use super::event::Event;
use super::process::{NEVER, Phase, PortHost, Process};
use super::pull::PayloadAddress;
use super::tx_fast_path::TxFastPath;
use crate::engine::queue::{MICRO, Nanos};
use crate::engine::trace::Actor;
use crate::judge::Violation;
use crate::network::FrameOrigin;
use crate::trace;
use crate::workload::Step;
use crate::workload::program::Arrival;

/// Frames taken from one NIC before others have their turn.
const FRAMES_PER_TURN: usize = 32;
/// Frames sent over one rail before the next rail has its turn.
const FRAMES_PER_RAIL: usize = 4;
/// Steps of the program in one wake.
const PROGRAM_STEPS: u32 = 4;
/// Time that a program needs between two turns when it could go on at once.
const PROGRAM_PACE: Nanos = 2 * MICRO;

fn at(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl World {
    /// Wakes a process at `when` at the latest.
    pub(crate) fn wake(&mut self, process: u32, when: Nanos) {
        let entry = &mut self.processes[at(process)];
        let when = when.max(entry.stalled_until);
        if when < entry.wake_at {
            entry.wake_at = when;
            self.queue.at(when, Event::Wake(process));
        }
    }

    /// A frame waits for the process. Without a helper it is not seen while the program computes.
    pub(crate) fn wake_after_arrival(&mut self, process: u32, when: Nanos) {
        let busy_until = self.processes[at(process)].busy_until;
        let when = if self.plan.helper { when } else { when.max(busy_until) };
        self.wake(process, when);
    }

    fn arm_timer(&mut self, process: u32, when: Nanos) {
        let entry = &mut self.processes[at(process)];
        if when < entry.timer_at {
            entry.timer_at = when;
            self.queue.at(when, Event::Timer(process));
        }
    }

    pub(crate) fn on_wake(&mut self, process: u32) {
        let entry = &mut self.processes[at(process)];
        if entry.wake_at != self.queue.now() {
            // An earlier wake took its place.
            return;
        }
        entry.wake_at = NEVER;
        self.progress(process);
    }

    pub(crate) fn on_timer(&mut self, process: u32) {
        let entry = &mut self.processes[at(process)];
        if entry.timer_at != self.queue.now() {
            return;
        }
        entry.timer_at = NEVER;
        if entry.phase != Phase::Running {
            return;
        }
        if entry.stalled_until > self.queue.now() {
            let when = entry.stalled_until;
            self.arm_timer(process, when);
            return;
        }
        let due = self.next_deadline(process);
        if due > self.queue.now() {
            self.arm_timer(process, due);
        } else {
            self.progress(process);
        }
    }

    /// World time of the next deadline of the process's ports.
    fn next_deadline(&self, process: u32) -> Nanos {
        let entry = &self.processes[at(process)];
        let own = entry.participant.as_ref().and_then(Participant::poll_timeout);
        let earliest = entry.ports.iter().filter_map(Port::poll_timeout).chain(own).min();
        let clock = &self.nodes[at(entry.node)].clock;
        earliest.map_or(NEVER, |deadline| clock.when(deadline, self.queue.now()))
    }

    /// One turn of a process.
    pub(crate) fn progress(&mut self, number: u32) {
        let process = &self.processes[at(number)];
        if process.phase != Phase::Running {
            return;
        }
        let now = self.queue.now();
        if process.stalled_until > now {
            self.wake(number, now);
            return;
        }
        self.read_mailbox(number);
        self.participant_timeout(number);
        let more_frames = self.take_frames(number);
        self.pull(number);
        self.frames_passed();
        self.crash_overdue();
        self.take_events(number);
        let mut step = self.run_program(number);
        if self.take_events(number) && step == Step::Blocked {
            // The program's operations completed at once: it waits no more.
            step = Step::Ready;
        }
        if self.processes[at(number)].phase != Phase::Running {
            // It has cut, and runs again when it thaws.
            return;
        }
        let blocked = self.send_frames(number);
        // The frames that left may have been the ones for which the program stood at its point.
        self.stands(number);
        self.rest(number, step, more_frames, blocked);
    }

    /// Decides when the process runs again.
    fn rest(&mut self, number: u32, step: Step, more_frames: bool, blocked: Nanos) {
        let now = self.queue.now();
        let step = if step == Step::Ready && self.awaits_calm() { Step::Computing(CALM_PACE) } else { step };
        let mut next = blocked;
        let has_more = |port: &Port| port.wants_to_pull() || port.has_events();
        if more_frames || self.processes[at(number)].ports.iter().any(has_more) {
            next = next.min(now + 200);
        }
        match step {
            Step::Ready => next = next.min(now + PROGRAM_PACE),
            Step::Computing(time) => {
                self.processes[at(number)].busy_until = now + time;
                next = next.min(now + time);
            }
            Step::Blocked | Step::Finished => {}
        }
        let busy = self.processes[at(number)].busy_until;
        if busy > now {
            next = if self.plan.helper { next.min(busy) } else { busy };
        }
        if next != NEVER {
            self.wake(number, next);
        }
        let due = self.next_deadline(number);
        if due != NEVER {
            self.arm_timer(number, if self.plan.helper { due } else { due.max(busy) });
        }
    }

    /// Gives waiting frames to the ports. True if some are left for the next turn.
    fn take_frames(&mut self, number: u32) -> bool {
        let World {
            processes, stations, nodes, judges, queue, frames_delivered, messages_fast, plan, ..
        } = self;
        let process = &mut processes[at(number)];
        let local = nodes[at(process.node)].clock.read(queue.now());
        if process.phase != Phase::Running {
            return false;
        }
        let mut more = false;
        let own = (process.rank, origin_of(process));
        for (port_number, port) in process.ports.iter_mut().enumerate() {
            let buffers = &mut process.program.receives[port_number];
            port.catch_up();
            for rail in 0..at(plan.rails) {
                let station = &mut stations[process.stations[port_number * at(plan.rails) + rail]];
                let index = RailIndex(u8::try_from(rail).unwrap_or(0));
                if station.nic.is_dead() && !station.seen_dead {
                    station.seen_dead = true;
                    port.set_rail_alive(index, false);
                }
                for _ in 0..FRAMES_PER_TURN {
                    let Some(origin) = station.nic.next_origin() else { break };
                    let suspicion = Suspicion::of(&origin, process.life_number, process.epoch);
                    if suspicion.is_some() {
                        // Acknowledgements by an earlier frame are none of this frame's effects.
                        port.catch_up();
                    }
                    let before = suspicion.map(|_| Effect::of(port, buffers.placed));
                    let fast = port.counters().messages_fast;
                    let mut give = |frame: &[u8]| port.handle_frame(local, index, frame, buffers);
                    if station.nic.receive(1, &mut give).is_err() {
                        break;
                    }
                    *frames_delivered += 1;
                    *messages_fast += port.counters().messages_fast - fast;
                    if let (Some(suspicion), Some(before)) = (suspicion, before)
                        && !Effect::of(port, buffers.placed).is_one_drop_after(&before)
                    {
                        judges.report(suspicion.violation(&origin, own));
                    }
                }
                more |= station.nic.waiting() > 0 && !station.nic.is_dead();
            }
            // As a shell: deferred work has time until the program has had its messages.
            if port.is_due(local) {
                port.handle_timeout(local);
            }
            let found = judges.bounds.running(process.rank, port);
            judges.check(found);
        }
        more
    }

    /// Takes everything that the ports have to say. True if the program may have been waiting for it.
    fn take_events(&mut self, number: u32) -> bool {
        let World { processes, judges, script, queue, trace, .. } = self;
        let process = &mut processes[at(number)];
        let now = queue.now();
        let mut cut_required = None;
        let mut silences = Vec::new();
        let mut news = false;
        for (port_number, port) in process.ports.iter_mut().enumerate() {
            let port_number = u32::try_from(port_number).unwrap_or(u32::MAX);
            while let Some(event) = port.next_event() {
                match event {
                    PortEvent::Received { op, context, source, tag, data, bytes, sent_bytes, .. } => {
                        let from = port.peer(source).map_or(u32::MAX, |peer| peer.rank().0);
                        let parties = [from, process.rank, port_number];
                        news = true;
                        judges.check_delivery(script, number, parties, tag, context);
                        let arrival = Arrival { port: port_number, op, from, tag, data, bytes, sent_bytes };
                        trace!(
                            trace,
                            now,
                            Actor::Rank(process.rank),
                            "recv {from} tag {tag:#x} {bytes}B op {op:?}"
                        );
                        if !process.program.received(&arrival) {
                            judges.report(Violation::Unasked { rank: process.rank, op: op.0 });
                        }
                    }
                    PortEvent::SendDone { op, .. } => {
                        news = true;
                        if !process.program.send_done(port_number, op) {
                            judges.report(Violation::Unasked { rank: process.rank, op: op.0 });
                        }
                    }
                    PortEvent::PeerSilent { silence: Silence::Slow | Silence::Gone, peer, since, .. } => {
                        silences.push((peer.rank(), Some(since)));
                    }
                    PortEvent::PeerBack { peer, .. } => silences.push((peer.rank(), None)),
                    PortEvent::CutRequired { epoch } => cut_required = Some(epoch),
                    PortEvent::Inconsistent { link, .. } => {
                        judges.report(Violation::Inconsistent { rank: process.rank, link: link.0 });
                    }
                    other => trace!(trace, now, Actor::Rank(process.rank), "port says {other:?}"),
                }
            }
        }
        let (rank, messages) = (process.rank, core::mem::take(&mut process.program.damaged));
        if messages > 0 {
            judges.report(Violation::Damaged { rank, messages });
        }
        let pieces: u32 = process.program.receives.iter_mut().map(|r| core::mem::take(&mut r.stray)).sum();
        if pieces > 0 {
            judges.report(Violation::Stray { rank, pieces });
        }
        for (peer, silent) in silences {
            self.report_silence(number, peer, silent);
        }
        if let Some(epoch) = cut_required {
            self.cut_required(number, epoch);
        }
        news
    }

    fn run_program(&mut self, number: u32) -> Step {
        for _ in 0..PROGRAM_STEPS {
            self.report_point(number);
            if self.stands(number) {
                return Step::Blocked;
            }
            if self.processes[at(number)].program.round() + 1 >= self.script.round_count() {
                self.last_round();
            }
            let World { processes, judges, script, queue, plan, nodes, .. } = self;
            let process = &mut processes[at(number)];
            if process.phase != Phase::Running || process.busy_until > queue.now() {
                return Step::Blocked;
            }
            let now = nodes[at(process.node)].clock.read(queue.now());
            let fast_path = TxFastPath { now, rails: at(plan.rails), frames: Vec::new() };
            let ports = &mut process.ports;
            let mut host = PortHost { process: number, ports, judge: &mut judges.cut, fast_path };
            let step = process.program.step(script, &mut host);
            let frames = host.fast_path.frames;
            if self.sabotage.loose_buffers() && step != Step::Ready {
                process.program.overwrite_sends();
            }
            self.send_fast_frames(number, frames);
            let process = &mut self.processes[at(number)];
            if step == Step::Finished && !process.finished {
                process.finished = true;
                self.rank_finished(number);
            }
            if step != Step::Ready {
                return step;
            }
        }
        Step::Ready
    }

    /// Sends the frames that may be sent. Returns when a NIC that is full now will have room ([`NEVER`] if none is full).
    pub(crate) fn send_frames(&mut self, number: u32) -> Nanos {
        let process = &self.processes[at(number)];
        if process.phase != Phase::Running {
            return NEVER;
        }
        let rails = at(self.plan.rails);
        let ports = process.ports.len();
        let mut blocked = NEVER;
        for port in 0..ports {
            loop {
                let mut sent = 0;
                for rail in 0..rails {
                    let station = self.processes[at(number)].stations[port * rails + rail];
                    let (frames, full_until) = self.send_over(number, port, rail, station);
                    sent += frames;
                    blocked = blocked.min(full_until);
                }
                if sent < FRAMES_PER_RAIL {
                    break;
                }
            }
        }
        for slot in 0..ports * rails {
            let station = self.processes[at(number)].stations[slot];
            let nic = &mut self.stations[station].nic;
            if nic.has_staged() {
                // A dead NIC has nothing staged.
                let _ = nic.flush();
            }
            self.ring_doorbell(station);
        }
        blocked
    }

    /// A few frames of one port over one rail: how many, and until when the NIC is full.
    fn send_over(&mut self, number: u32, port: usize, rail: usize, station: usize) -> (usize, Nanos) {
        let World { processes, stations, nodes, queue, plan, .. } = self;
        let process = &mut processes[at(number)];
        let local = nodes[at(process.node)].clock.read(queue.now());
        let origin = origin_of(process);
        let place = &mut stations[station];
        place.report_completions(queue.now());
        let index = RailIndex(u8::try_from(rail).unwrap_or(0));
        let port_number = u32::try_from(port).unwrap_or(u32::MAX);
        let port = &mut process.ports[port];
        for frames in 0..FRAMES_PER_RAIL {
            let Some(lease) = place.nic.lease() else {
                if place.nic.is_dead() {
                    return (frames, NEVER);
                }
                // Completions are collected by the flush; before that nothing moves.
                let _ = place.nic.flush();
                let again =
                    if place.nic.has_to_read() { queue.now() + 2 * MICRO } else { place.completes_at };
                return (frames, again.max(queue.now() + 100));
            };
            let Some(transmit) = port.poll_transmit(local, index, lease) else { return (frames, NEVER) };
            // R4: a frame that could have been sent before the sender's cut may be sent after it, unchanged. The judges of the cut and of order find
            // out whether it was.
            let said = Header::parse(lease).map_or(origin.epoch, |header| header.epoch.0);
            place.nic.set_sender(FrameOrigin { epoch: origin.epoch.min(said), ..origin });
            if let Some(announced) = transmit.announced.filter(|_| plan.pulls)
                && let Some(frame) = place.nic.lease()
            {
                let reported =
                    PayloadAddress { process: number, port: port_number, op: announced.op, offset: 0 };
                write_place(&mut frame[announced.body..], reported.bits());
            }
            let payload = match transmit.payload {
                None => drivers::Payload::EMPTY,
                Some(part) => {
                    let start = usize::try_from(part.offset).unwrap_or(usize::MAX);
                    let range = start..start.saturating_add(at(part.bytes));
                    let buffer = process.program.payload(port_number, part.op);
                    let found = buffer.and_then(|buffer| drivers::Payload::shared(buffer, range));
                    found.unwrap_or(drivers::Payload::EMPTY)
                }
            };
            if let (Some(seal), Some(auth)) = (transmit.seal, port.authenticator())
                && let Some(frame) = place.nic.lease()
            {
                auth.finish(seal, &mut frame[..transmit.frame_bytes], payload.as_slice());
            }
            place.nic.commit(transmit.to, transmit.frame_bytes, payload);
        }
        (FRAMES_PER_RAIL, NEVER)
    }
}

pub(super) fn origin_of(process: &Process) -> FrameOrigin {
    FrameOrigin { process: process.number, epoch: process.epoch, life: process.life_number, damaged: false }
}

/// Why a frame must have no effect.
#[derive(Clone, Copy)]
enum Suspicion {
    OldLife,
    HigherEpoch,
    Damaged,
}

impl Suspicion {
    fn of(origin: &FrameOrigin, life: u32, epoch: u32) -> Option<Suspicion> {
        if origin.damaged {
            Some(Suspicion::Damaged)
        } else if origin.life != life {
            Some(Suspicion::OldLife)
        } else if origin.epoch > epoch {
            Some(Suspicion::HigherEpoch)
        } else {
            None
        }
    }

    fn violation(self, origin: &FrameOrigin, (rank, own): (u32, FrameOrigin)) -> Violation {
        match self {
            Suspicion::OldLife => Violation::OldLife { rank, frame_life: origin.life, own_life: own.life },
            Suspicion::HigherEpoch => {
                Violation::HigherEpoch { rank, frame_epoch: origin.epoch, own_epoch: own.epoch }
            }
            Suspicion::Damaged => Violation::DamagedFrameTaken { rank },
        }
    }
}

/// Effects of a frame that are visible from outside the port.
#[derive(Clone, Copy)]
struct Effect {
    dropped: u64,
    counted: u64,
    placed: u32,
}

impl Effect {
    fn of(port: &Port, placed: u32) -> Effect {
        let counters = port.counters();
        let dropped = counters.each().filter(|(name, _)| name.starts_with("dropped_")).map(|(_, n)| n).sum();
        Effect { dropped, counted: counters.frames_counted, placed }
    }

    fn is_one_drop_after(&self, before: &Effect) -> bool {
        self.dropped == before.dropped + 1 && self.counted == before.counted && self.placed == before.placed
    }
}
