//! The shell of a rank: it comes into its life, cuts when its participant says so, writes its image.

use ckpt_glue::control::{
    CutMode, CutStatistics, FaultReport, Message, NoImageReason, PortEntry, Registration,
};
use ckpt_glue::enrolment::{AddressTable, Enrolment, Started};
use ckpt_glue::participant::{Input, Output};
use ckpt_glue::{Control, Decision, ExitStatus, NodeIndex, Participant, Party, keeper};
use drivers::Driver as _;
use transport::{Epoch, Life, Port, PortId, RailIndex, Rank, Restart};

use super::event::{Endpoint, Task};
use super::image::Image;
use super::port_freeze::Purpose;
use super::process::{NEVER, Phase, Process, Writing};
use super::rails::RankRails;
use super::station::Station;
use super::{JOB, KEY, World, at};
use crate::engine::queue::{MICRO, Nanos};
use crate::engine::trace::Actor;
use crate::judge::{Generation, Violation};
use crate::network::nic::{NicId, SimNic};
use crate::plan::{Mode, Moment};
use crate::trace;
use crate::workload::Program;

/// Longest time of reading an image.
const RESTORE_MAX: Nanos = 150 * MICRO;

impl World {
    /// A new process of `rank`: its NICs are open, its image is being read.
    pub(crate) fn start_process(&mut self, keeper: u32, rank: Rank, decision: &Decision) {
        let number = u32::try_from(self.processes.len()).unwrap_or(u32::MAX);
        let node = self.keepers[at(keeper)].node;
        self.rails_of_new_life(decision.life);
        let stations = self.open_stations(number, rank.0, node);
        let decision = *decision;
        let life_number = self.number_of(decision.life);
        self.processes.push(Process {
            number,
            rank: rank.0,
            node,
            keeper,
            life: decision.life,
            life_number,
            epoch: decision.epoch().0,
            phase: Phase::Restoring,
            ports: Vec::new(),
            freezing: None,
            frozen: Vec::new(),
            stations,
            rails: RankRails::default(),
            moves: 0,
            addresses: AddressTable::new(),
            program: Program::new(&self.script, rank.0),
            enrolment: None,
            participant: None,
            mailbox: Vec::new(),
            point_given: None,
            writing: None,
            memory_at_cut: None,
            writes: 0,
            finished: false,
            busy_until: 0,
            stalled_until: 0,
            wake_at: NEVER,
            timer_at: NEVER,
        });
        self.judge_lives(number);
        trace!(self.trace, self.queue.now(), Actor::Rank(rank.0), "process {number} of life {life_number}");
        let delay = 1 + self.timing.below(RESTORE_MAX);
        self.task_after(delay, Task::Restore { process: number, decision });
        if life_number > 1 {
            self.moment(Moment::Restoring, Some(rank.0));
        }
    }

    /// As which life the world counts `life`.
    fn number_of(&self, life: Life) -> u32 {
        let before = self.lives.iter().position(|decided| *decided == life);
        before.map_or(self.life_number, |before| u32::try_from(before + 1).unwrap_or(u32::MAX))
    }

    /// NICs for a new process: where the process before it had them, if that is gone.
    fn open_stations(&mut self, process: u32, rank: u32, node: u32) -> Vec<usize> {
        let mut opened = Vec::new();
        for slot in 0..self.plan.ports * self.plan.rails {
            let free = |s: &Station| s.rank == rank && s.slot == slot && s.process.is_none();
            let at = self.stations.iter().position(free).unwrap_or_else(|| {
                let id = NicId(u32::try_from(self.stations.len()).unwrap_or(u32::MAX));
                let bytes = super::at(self.frame_bytes_max);
                self.stations.push(Station::new(
                    SimNic::new(id, bytes, super::at(self.plan.nic_frames)),
                    rank,
                    slot,
                    node,
                ));
                self.stations.len() - 1
            });
            self.stations[at].open_for(process, super::at(self.frame_bytes_max));
            if !self.plan.opens(slot % self.plan.rails) {
                self.stations[at].leave();
            }
            opened.push(at);
        }
        opened
    }

    /// The process has read its image, or begins anew.
    pub(crate) fn restore(&mut self, number: u32, decision: &Decision) {
        if !self.processes[at(number)].is_alive() {
            return;
        }
        let (rank, keeper) = (self.processes[at(number)].rank, self.processes[at(number)].keeper);
        let restored = match decision.restore {
            None => {
                self.judge_restored(number, None);
                let life = decision.life;
                let ports = (0..self.plan.ports).map(|p| self.new_port(PortId::of_rank(Rank(rank), p), life));
                Some((Program::new(&self.script, rank), ports.collect()))
            }
            // Its node was lost since the decision: a fault like any other.
            Some(generation) if !self.is_image_there(generation, Rank(rank)) => None,
            Some(generation) => match self.read_image(generation, Rank(rank)) {
                None => return,
                Some(read) => {
                    let thawed = read.and_then(|image| {
                        self.judge_restored(number, Some((image.generation, image.digest())));
                        self.thaw_image(number, &image, decision)
                    });
                    match thawed {
                        Ok(thawed) => Some(thawed),
                        Err(what) => {
                            let generation =
                                Generation { life: generation.life.counter, epoch: generation.epoch.0 };
                            self.judges.report(Violation::Unreadable { generation, rank, what });
                            None
                        }
                    }
                }
            },
        };
        let Some((program, ports)) = restored else {
            self.bury(number);
            self.feed_keeper(keeper, keeper::Input::NotStarted { rank: Rank(rank), errno: 5 });
            return;
        };
        let process = &mut self.processes[at(number)];
        process.program = program;
        process.ports = ports;
        self.register(number);
    }

    fn thaw_image(
        &mut self,
        number: u32,
        image: &Image,
        decision: &Decision,
    ) -> Result<(Program, Vec<Port>), String> {
        let local = self.local_time(number);
        let program = Program::load(&image.memory).map_err(|error| error.to_string())?;
        let mut ports = Vec::new();
        for ((_, section), port_number) in image.ports.iter().zip(0..) {
            let config = super::port_config(&self.plan);
            let loaded = nic_freeze::load(nic_freeze::SECTION_VERSION, section, config, Some(&KEY))
                .map_err(|error| error.to_string())?;
            if !super::image::agrees(&loaded.carried, &program, port_number) {
                return Err("the ports' sections carry other user memory than the program has".to_owned());
            }
            let mut port = loaded.port;
            self.sabotage.apply_frozen(&mut port);
            ports.push(port.restart(local, Restart::in_life(decision.life)));
        }
        Ok((program, ports))
    }

    fn judge_restored(&mut self, number: u32, from: Option<(Generation, u64)>) {
        let process = &self.processes[at(number)];
        let (rank, life) = (process.rank, process.life_number);
        let generation = from.map(|(generation, _)| generation);
        trace!(self.trace, self.queue.now(), Actor::Rank(rank), "restore {generation:?} in life {life}");
        let found = self.judges.restored.restored(rank, life, from);
        self.judges.check(found);
        self.judges.order.restored(number, rank, generation);
        self.judges.cut.restored(number, rank, generation);
        self.judges.ends.begins(rank);
    }

    /// Adds the rails and says hello.
    fn register(&mut self, number: u32) {
        let process = &mut self.processes[at(number)];
        let rails = at(self.plan.rails);
        let mut entries = Vec::new();
        for (p, port) in process.ports.iter_mut().enumerate() {
            let places = &process.stations[p * rails..(p + 1) * rails];
            let mut addresses = Vec::new();
            for place in places.iter().zip(0..).filter(|(_, rail)| self.plan.opens(*rail)).map(|(at, _)| at) {
                let nic = &self.stations[*place].nic;
                let add = if self.plan.pulls { Port::add_rail_within_host } else { Port::add_rail };
                add(port, nic.local_address(), nic.caps().frame_bytes_max);
                addresses.push(nic.local_address());
            }
            entries.push(PortEntry { port: port.id(), rails: addresses });
        }
        let mode = match self.plan.mode {
            Mode::Instant => CutMode::Instant,
            Mode::Counted => CutMode::Counted,
        };
        let rank = Rank(process.rank);
        let (enrolment, hello) =
            Enrolment::new(Registration { rank, pid: process.number, mode, ports: entries });
        process.enrolment = Some(enrolment);
        process.phase = Phase::Enrolling;
        self.send_from_rank(number, hello);
    }

    /// R33: a rank hears nothing of another one for so long, or hears it again.
    pub(crate) fn report_silence(&mut self, number: u32, peer: Rank, silent: Option<core::time::Duration>) {
        let by = Rank(self.processes[at(number)].rank);
        let report = match silent {
            Some(silent) => FaultReport::RankSilent {
                rank: peer,
                by: Some(by),
                silent_ms: u64::try_from(silent.as_millis()).unwrap_or(u64::MAX),
            },
            None => FaultReport::RankHeard { rank: peer, by },
        };
        self.send_from_rank(number, Message::Fault { report });
    }

    fn send_from_rank(&mut self, number: u32, message: Message) {
        let process = &self.processes[at(number)];
        let control = Control {
            job: JOB,
            life: process.life,
            epoch: Epoch(process.epoch),
            sender: Party::Rank(Rank(process.rank)),
            message,
        };
        let to = Party::Keeper(NodeIndex(process.node));
        self.send_control(Endpoint::Process(number), to, control);
    }

    /// A control message has come: taken at once if the process can run.
    pub(crate) fn feed_rank(&mut self, number: u32, control: Control) {
        let process = &mut self.processes[at(number)];
        // R7
        if !process.is_alive() || control.job != JOB || control.life != process.life {
            return;
        }
        process.mailbox.push(control.message);
        if process.stalled_until <= self.queue.now() {
            self.read_mailbox(number);
        } else {
            let when = process.stalled_until;
            self.wake(number, when);
        }
    }

    /// Takes waiting control messages, as long as the rank is not frozen.
    pub(crate) fn read_mailbox(&mut self, number: u32) {
        loop {
            let process = &mut self.processes[at(number)];
            let can =
                matches!(process.phase, Phase::Running | Phase::Enrolling) && !process.mailbox.is_empty();
            if !can {
                return;
            }
            let message = process.mailbox.remove(0);
            match (process.phase, message) {
                (Phase::Enrolling, message) => self.enrol(number, message),
                (_, Message::RankLost { rank, .. }) => self.lose_rank(number, rank),
                (_, Message::FinalizeDone) => {
                    if !self.is_maimed {
                        self.judge_ends(number);
                    }
                    self.end_process(number, ExitStatus::Code(0));
                    return;
                }
                (_, message) => self.feed_participant(number, Input::Message(message)),
            }
        }
    }

    /// R37: as the shell of a rank does. Its program, which cannot do its work any more, finishes.
    fn lose_rank(&mut self, number: u32, lost: Rank) {
        let process = &mut self.processes[at(number)];
        for (port, machine) in (0..).zip(&mut process.ports) {
            machine.lose_peer(PortId::of_rank(lost, port));
        }
        process.program.give_up();
        self.wake(number, self.queue.now() + 1);
    }

    /// The rank ends because everybody has finished: judges the rest that its ports still hold.
    fn judge_ends(&mut self, number: u32) {
        let local = self.local_time(number);
        let process = &mut self.processes[at(number)];
        let frozen: Vec<_> = process.ports.drain(..).map(|port| port.freeze(local)).collect();
        let found = self.judges.ends.ended(process.rank, &frozen);
        self.judges.check(found);
    }

    fn enrol(&mut self, number: u32, message: Message) {
        let process = &mut self.processes[at(number)];
        let Some(enrolment) = &mut process.enrolment else { return };
        match enrolment.handle(message) {
            Ok(Some(started)) => self.begin(number, started),
            Ok(None) => {}
            Err(_) => self.end_process(number, ExitStatus::Code(1)),
        }
    }

    /// All addresses are known: the program runs.
    fn begin(&mut self, number: u32, started: Started) {
        let sabotage = self.sabotage.glue();
        self.processes[at(number)].addresses = started.addresses;
        for port in 0..self.plan.ports {
            for rail in 0..self.plan.rails {
                self.set_paths(number, port, rail);
            }
        }
        let process = &mut self.processes[at(number)];
        let mode = match self.plan.mode {
            Mode::Instant => CutMode::Instant,
            Mode::Counted => CutMode::Counted,
        };
        let points = u64::from(process.program.round());
        process.participant =
            Some(Participant::new(Rank(process.rank), mode, started.epoch, points, sabotage));
        // The point at which it was saved has been passed.
        process.point_given = (process.life_number > 1 && points > 0).then_some(points);
        process.enrolment = None;
        process.phase = Phase::Running;
        let counted = u32::from(mode == CutMode::Counted);
        self.send_from_rank(number, Message::Running { ranks: 1, counted });
        self.count_restart();
        self.wake(number, self.queue.now() + 1);
    }

    /// Gives one port of a process its peers' addresses on one rail.
    pub(crate) fn set_paths(&mut self, number: u32, port: u32, rail: u32) {
        let process = &mut self.processes[at(number)];
        let nic = &mut self.stations[process.stations[at(port * self.plan.rails + rail)]].nic;
        let Some(machine) = process.ports.get_mut(at(port)) else { return };
        for peer in 0..self.plan.ranks {
            let id = PortId::of_rank(Rank(peer), port);
            let link = machine.connect(id);
            let address = process.addresses.get(&id).and_then(|rails| rails.get(at(rail)));
            if let Some(Ok(address)) = address.map(|address| nic.resolve(address)) {
                machine.set_path(link, RailIndex(u8::try_from(rail).unwrap_or(0)), address);
            }
        }
    }

    /// A rail whose NIC had died is opened anew.
    pub(crate) fn rail_up(&mut self, number: u32, port: u32, rail: u32) {
        let process = &self.processes[at(number)];
        if !process.is_alive() {
            return;
        }
        if process.phase != Phase::Running {
            let again = Task::RailUp { process: number, port, rail };
            self.task_after(100 * MICRO, again);
            return;
        }
        let station = process.stations[at(port * self.plan.rails + rail)];
        self.stations[station].open(number);
        self.set_paths(number, port, rail);
        let process = &mut self.processes[at(number)];
        process.ports[at(port)].set_rail_alive(RailIndex(u8::try_from(rail).unwrap_or(0)), true);
        let wake = self.queue.now() + 1;
        self.wake(number, wake);
    }

    /// Gives `input` to the rank's participant and carries out its outputs.
    pub(crate) fn feed_participant(&mut self, number: u32, input: Input) {
        let local = self.local_time(number);
        let Some(participant) = &mut self.processes[at(number)].participant else { return };
        participant.handle(local, input);
        self.run_participant(number);
    }

    pub(crate) fn participant_timeout(&mut self, number: u32) {
        let local = self.local_time(number);
        let Some(participant) = &mut self.processes[at(number)].participant else { return };
        if participant.poll_timeout().is_some_and(|due| due <= local) {
            participant.handle_timeout(local);
            self.run_participant(number);
        }
    }

    pub(crate) fn run_participant(&mut self, number: u32) {
        loop {
            let process = &mut self.processes[at(number)];
            if !process.is_alive() || process.phase == Phase::Quiescing {
                return;
            }
            let Some(output) = process.participant.as_mut().and_then(Participant::poll_output) else {
                return;
            };
            match output {
                Output::TakeCut { epoch } => self.take_cut(number, epoch),
                Output::RaiseEpoch { epoch } => self.raise_epoch(number, epoch),
                Output::CancelImage { .. } => process.writing = None,
                Output::Committed { .. } => {}
                Output::Send(message) => self.send_from_rank(number, message),
            }
        }
    }

    /// A frame of a higher epoch has come.
    pub(crate) fn cut_required(&mut self, number: u32, epoch: Epoch) {
        self.feed_participant(number, Input::CutRequired { epoch });
    }

    /// The cut: hints, then ports frozen, memory captured and epoch raised in one instant; the pause follows.
    fn take_cut(&mut self, number: u32, epoch: Epoch) {
        let pause = 1 + self.timing.below(self.plan.pause_ns_max);
        let local = self.local_time(number);
        let process = &mut self.processes[at(number)];
        if process.phase == Phase::Frozen {
            // It stands still for an older cut: this one takes its place, and the thaw stays.
            let rank = process.rank;
            trace!(self.trace, self.queue.now(), Actor::Rank(rank), "cut {} instead", epoch.0);
            return self.cut(number, epoch);
        }
        let expected = core::time::Duration::from_nanos(pause);
        let hints: usize = process.ports.iter_mut().map(|port| port.announce_pause(local, expected)).sum();
        if hints > 0 {
            self.send_frames(number);
        }
        self.freeze_for(number, Purpose::Cut { epoch, pause });
    }

    /// All ports stand still.
    pub(crate) fn cut(&mut self, number: u32, epoch: Epoch) {
        let process = &mut self.processes[at(number)];
        process.epoch = epoch.0;
        // The captured state belongs to the epoch that begins: the image's epoch is that of its generation.
        process.frozen.iter_mut().for_each(|port| port.set_epoch(epoch));
        let generation = Generation { life: process.life_number, epoch: epoch.0 };
        let rank = process.rank;
        for port in &process.frozen {
            let found = self.judges.bounds.frozen(rank, port);
            self.judges.check(found);
            if let Err(error) = port.check() {
                self.judges.report(Violation::Contradiction { rank, what: error.to_string() });
            }
        }
        let captured = Image::capture(generation, self.plan.mode, &process.program, &process.frozen);
        let ends = super::image::link_ends(&process.frozen);
        match captured {
            Ok(image) => {
                self.judges.restored.captured(rank, generation, image.digest());
                process.memory_at_cut = Some(super::image::digest(&image.memory));
                process.writes += 1;
                process.writing = Some(Writing { attempt: process.writes, epoch: epoch.0, image });
            }
            Err(error) => {
                self.judges.report(Violation::Unreadable { generation, rank, what: error.to_string() });
            }
        }
        self.judges.cut.cut(number, rank, generation, ends);
        self.judges.order.cut(number, rank, generation);
        self.moment(Moment::Frozen, Some(rank));
    }

    /// R2: the epoch rises, but there is no image.
    fn raise_epoch(&mut self, number: u32, epoch: Epoch) {
        let process = &mut self.processes[at(number)];
        trace!(self.trace, self.queue.now(), Actor::Rank(process.rank), "raise {} without image", epoch.0);
        self.counts.add(crate::faults::Fault::NoImage);
        process.epoch = epoch.0;
        if process.phase == Phase::Frozen {
            process.frozen.iter_mut().for_each(|port| port.set_epoch(epoch));
            return;
        }
        self.freeze_for(number, Purpose::Raise { epoch });
    }

    /// The pause is over; the image is written while the program runs.
    pub(crate) fn thaw(&mut self, number: u32) {
        let local = self.local_time(number);
        let process = &mut self.processes[at(number)];
        if process.phase != Phase::Frozen {
            return;
        }
        process.ports = process.frozen.drain(..).map(|port| port.thaw(local)).collect();
        self.runs_again(number);
    }

    /// The ports run again.
    pub(crate) fn runs_again(&mut self, number: u32) {
        let process = &mut self.processes[at(number)];
        process.phase = Phase::Running;
        let rank = process.rank;
        if let Some(at_cut) = process.memory_at_cut.take() {
            let mut memory = Vec::with_capacity(1024);
            process.program.save(&mut memory);
            if super::image::digest(&memory) != at_cut {
                self.judges.report(Violation::WrittenWhileFrozen { rank, epoch: process.epoch });
            }
        }
        trace!(self.trace, self.queue.now(), Actor::Rank(rank), "thaw");
        if let Some(writing) = &process.writing {
            let (epoch, attempt) = (writing.epoch, writing.attempt);
            let delay = self.timing.below(self.plan.write_ns_max);
            self.task_after(delay, Task::ImageWritten { process: number, epoch, attempt });
            self.moment(Moment::Dumping, Some(rank));
        }
        self.read_mailbox(number);
        if self.processes[at(number)].is_alive() {
            self.wake(number, self.queue.now() + 1);
        }
    }

    /// The image is on its way to the disk: now it is there, or not.
    pub(crate) fn image_written(&mut self, number: u32, epoch: u32, attempt: u32) {
        let process = &mut self.processes[at(number)];
        if !process.is_alive() || process.writing.as_ref().is_none_or(|w| w.attempt != attempt) {
            return;
        }
        let Some(writing) = process.writing.take() else { return };
        let (life, rank) = (process.life, Rank(process.rank));
        let input = match self.store_image(life, epoch, rank, &writing.image) {
            None => return,
            Some(Ok((digest, bytes))) => {
                let statistics = CutStatistics::default();
                Input::Captured { epoch: Epoch(epoch), digest, bytes, statistics }
            }
            Some(Err(errno)) => {
                Input::CaptureFailed { epoch: Epoch(epoch), reason: NoImageReason::WriteFailed { errno } }
            }
        };
        trace!(self.trace, self.queue.now(), Actor::Rank(rank.0), "image {epoch}: {input:?}");
        if matches!(input, Input::Captured { .. }) {
            self.moment(Moment::Saved, Some(rank.0));
        }
        self.feed_participant(number, input);
    }

    /// The program is at a counted point: the participant may want to cut here.
    pub(crate) fn report_point(&mut self, number: u32) {
        let process = &mut self.processes[at(number)];
        let Some(count) = process.program.at_point().filter(|_| self.plan.mode == Mode::Counted) else {
            return;
        };
        if process.point_given == Some(count) || count == 0 {
            return;
        }
        process.point_given = Some(count);
        if process.participant.as_ref().is_some_and(|participant| participant.cuts_at(count)) {
            self.report_unreceived(number);
        }
        self.feed_participant(number, Input::PointReached { count });
    }

    /// All messages of a round are received in it, before the next point: none of them may be kept from its receiver.
    fn report_unreceived(&mut self, number: u32) {
        let ports = &self.processes[at(number)].ports;
        let by = ports.iter().filter_map(|port| port.unreceived(|_| true)).min();
        self.feed_participant(number, Input::Unreceived { by: by.map(PortId::rank) });
    }

    /// Whether the program stands at its point, after another look whether it has to.
    pub(crate) fn stands(&mut self, number: u32) -> bool {
        let stands = |world: &World| {
            let participant = &world.processes[at(number)].participant;
            participant.as_ref().is_some_and(Participant::is_standing)
        };
        if stands(self) {
            self.report_unreceived(number);
        }
        stands(self)
    }

    /// The program has gone through all its rounds.
    pub(crate) fn rank_finished(&mut self, number: u32) {
        trace!(self.trace, self.queue.now(), Actor::Rank(self.processes[at(number)].rank), "finished");
        if self.plan.mode == Mode::Counted {
            self.report_unreceived(number);
        }
        self.feed_participant(number, Input::Finalizing);
    }

    pub(crate) fn set_unsavable(&mut self, number: u32, what: Option<u32>) {
        if self.processes[at(number)].is_alive() {
            self.feed_participant(number, Input::Unsavable { what });
        }
    }

    pub(crate) fn local_time(&self, number: u32) -> transport::Instant {
        self.nodes[at(self.processes[at(number)].node)].clock.read(self.queue.now())
    }

    /// The rest of a process that is gone.
    pub(crate) fn bury(&mut self, number: u32) {
        let process = &mut self.processes[at(number)];
        if process.phase == Phase::Dead {
            return;
        }
        process.phase = Phase::Dead;
        let (life, rank) = (process.life, Rank(process.rank));
        process.ports.clear();
        process.freezing = None;
        process.frozen.clear();
        process.mailbox.clear();
        for station in core::mem::take(&mut process.stations) {
            // Another process may have the address that this one has left.
            if self.stations[station].process == Some(number) {
                self.stations[station].close();
            }
        }
        if let Some(writing) = self.processes[at(number)].writing.take() {
            self.leave_half_written(number, &writing);
        }
        self.rails_of_dead(life, rank);
    }
}
