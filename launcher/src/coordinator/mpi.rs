//! Ranks that are programs of an MPI library: they speak PMI, and the launcher speaks for them to the keeper.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use ckpt_glue::control::{
    Control, CutMode, Decision, FaultReport, JobPhase, Message, NoImageReason, PortEntry, Registration,
};
use ckpt_glue::job::{self, FinalReport};
use ckpt_glue::keeper::RankPhase;
use ckpt_glue::names::{ExitStatus, NodeIndex, Party};
use ckpt_glue::pmi::{self, Member, RankState};
use ckpt_glue::recovery::Plan as Reaction;
use nix::sys::signal::Signal;
use transport::{Epoch, Life, PortId, Rank};

use super::super::limits::{LOOK_AFTER, NETWORK_LATE_MAX};
use super::super::notice::{MpiNotice, Notice};
use super::super::wire::{Sealed, ToKeeper};
use super::super::{Plan, Saves, Verdict};
use super::Shell;
use super::networks::Networks;
use crate::text;

/// Additional state of a job of an MPI library.
#[derive(Debug)]
pub(super) struct MpiSide {
    /// The life that it serves: a new one begins with an empty server.
    life: Life,
    server: pmi::Server,
    /// By world that has met.
    looks: BTreeMap<u32, Look>,
    /// By world: when its processes met first.
    first_barriers: BTreeMap<u32, Instant>,
    /// By world: barriers at which the files of its processes were looked at.
    barriers_seen: BTreeMap<u32, u64>,
    /// Worlds whose names the keepers have received.
    named: BTreeSet<u32>,
    /// The first rank that has ended with an exit code of its own after MPI_Finalize.
    failed: Option<(Rank, u8)>,
    networks: Networks,
}

/// For a rank that the launcher speaks for (`NoImageReason::Unsavable`): nothing of it can be saved.
const UNSAVABLE_WITHOUT_AGENT: u32 = 2;

/// An ended rank's part of its image, besides its final counters.
#[derive(Default, Debug)]
pub(super) struct EndedRank {
    /// Its exit code, which after MPI_Finalize is no fault, and which the job ends with.
    pub(super) code: u8,
    /// Its part in PMI.
    pub(super) state: RankState,
}

impl EndedRank {
    pub(super) fn emit(&self) -> Vec<u8> {
        let mut bytes = vec![self.code];
        bytes.extend(self.state.emit());
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<EndedRank> {
        let (code, state) = bytes.split_first()?;
        Some(EndedRank { code: *code, state: RankState::parse(state).ok()? })
    }
}

/// Whether it has been looked that messages of a world go over the provider.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Look {
    At(Instant),
    Done,
    /// Also once more, when the first of its processes finished.
    Last,
}

impl MpiSide {
    fn new(plan: &Plan, decision: Decision) -> MpiSide {
        let life = decision.life;
        let (ranks, timeout) = (plan.ranks, plan.config.fault.start_timeout);
        let name = format!("stillwire-{}-{life}", plan.job);
        let server = if decision.restore.is_some() && plan.saves == Saves::Process {
            pmi::Server::restored(name, ranks, timeout)
        } else {
            pmi::Server::new(name, ranks, timeout)
        };
        MpiSide {
            life,
            server,
            looks: BTreeMap::new(),
            first_barriers: BTreeMap::new(),
            barriers_seen: BTreeMap::new(),
            named: BTreeSet::new(),
            failed: None,
            networks: Networks::default(),
        }
    }
}

impl MpiSide {
    pub(super) fn server(&self) -> &pmi::Server {
        &self.server
    }

    pub(super) fn life(&self) -> Life {
        self.life
    }

    pub(super) fn networks(&mut self) -> &mut Networks {
        &mut self.networks
    }

    /// Whether the ranks have met, and may have sent messages over a network that none of them has reported.
    pub(super) fn may_use_other_networks(&self) -> bool {
        self.first_barriers.contains_key(&0) && !self.networks.are_known()
    }
}

impl Shell<'_> {
    /// A life begins: it has a new server.
    pub(super) fn begin_pmi(&mut self, decision: Decision) {
        if self.mpi.as_ref().is_none_or(|mpi| mpi.life != decision.life) {
            self.mpi = Some(MpiSide::new(self.plan, decision));
        }
    }

    /// R26: the part in PMI of a rank that has ended, from its image.
    pub(super) fn report_ended(&mut self, rank: Rank, ended: EndedRank) {
        if let Some(mpi) = &mut self.mpi
            && ended.code != 0
        {
            mpi.failed.get_or_insert((rank, ended.code));
        }
        self.feed_pmi(pmi::Input::State { rank, part: ended.state, last: true });
        self.feed_pmi(pmi::Input::Gone { member: Member::of_job(rank) });
    }

    /// The record of an ended rank's exit code and part in PMI, for its image.
    pub(super) fn ended_rank(&self, rank: Rank) -> EndedRank {
        let failed = self.mpi.as_ref().and_then(|mpi| mpi.failed).filter(|(failed, _)| *failed == rank);
        let state = self.mpi.as_ref().map(|mpi| mpi.server.state(rank));
        EndedRank { code: failed.map_or(0, |(_, code)| code), state: state.unwrap_or_default() }
    }

    pub(super) fn feed_pmi(&mut self, input: pmi::Input) {
        let now = self.now();
        let Some(mpi) = &mut self.mpi else { return };
        mpi.server.handle(now, input);
        self.note_barriers(0);
    }

    pub(super) fn on_pmi_bytes(&mut self, member: Member, bytes: Vec<u8>) {
        let now = self.now();
        let Some(mpi) = &mut self.mpi else { return };
        mpi.server.handle(now, pmi::Input::Bytes { member, bytes });
        self.note_barriers(member.world);
    }

    pub(super) fn poll_pmi(&mut self) -> Option<pmi::Output> {
        self.mpi.as_mut()?.server.poll_output()
    }

    /// When something about PMI is due, as time since the job's start and as time of this machine.
    pub(super) fn pmi_due(&self) -> (Option<transport::Instant>, Option<Instant>) {
        let Some(mpi) = &self.mpi else { return (None, None) };
        let looks =
            mpi.looks.values().filter_map(|look| if let Look::At(at) = look { Some(*at) } else { None });
        (mpi.server.poll_timeout(), looks.min())
    }

    pub(super) fn pmi_timeouts(&mut self) {
        let now = self.now();
        let (server, look) = self.pmi_due();
        if let Some(mpi) = &mut self.mpi
            && server.is_some_and(|due| due <= now)
        {
            mpi.server.handle_timeout(now);
        }
        if look.is_some_and(|due| due <= Instant::now()) {
            self.look_at_worlds(Look::Done, |_, look| matches!(look, Look::At(at) if at <= Instant::now()));
        }
    }

    /// The processes of a world may have met: they are looked at.
    fn note_barriers(&mut self, world: u32) {
        let Some(mpi) = &mut self.mpi else { return };
        if !mpi.named.contains(&world)
            && let Some(name) = mpi.server.name_of(world)
        {
            // Before its first process has an answer, and so before it makes any file.
            self.keepers.send_to_all(&ToKeeper::NameWorld { name: name.to_owned() });
            mpi.named.insert(world);
        }
        let barriers = mpi.server.barriers_passed(world);
        if barriers > 0 {
            mpi.first_barriers.entry(world).or_insert_with(Instant::now);
            mpi.looks.entry(world).or_insert_with(|| Look::At(Instant::now() + LOOK_AFTER));
        }
        let seen = mpi.barriers_seen.entry(world).or_default();
        if *seen < barriers && matches!(mpi.looks.get(&world), None | Some(Look::At(_))) {
            *seen = barriers;
            self.keepers.send_to_all(&ToKeeper::NoteFiles);
        }
    }

    /// R37: the job goes on without a rank.
    pub(super) fn note_lost(&mut self, event: &job::Event) {
        if let job::Event::Reported { action: Some((_, Reaction::Ignore { rank, .. })), .. } = event {
            self.end.lost.insert(*rank);
            self.feed_pmi(pmi::Input::Lost { rank: *rank });
        }
    }

    /// A process has ended; if it is a rank's, the keeper knows.
    pub(super) fn end_pmi(&mut self, member: Member) {
        self.feed_pmi(pmi::Input::Gone { member });
        if let Some(mpi) = &mut self.mpi
            && !self.spawned.iter().any(|other| other.world == member.world)
            && member.job_rank().is_none()
        {
            mpi.looks.remove(&member.world);
            mpi.first_barriers.remove(&member.world);
        }
    }

    /// How a rank has ended, as the keeper is to see it. After MPI_Finalize an exit code is no fault: others may still need their time, and
    /// nobody needs this rank any more. The job fails by it when all have ended.
    pub(super) fn status_for_keeper(&mut self, rank: Rank, status: ExitStatus) -> ExitStatus {
        match (&mut self.mpi, status) {
            (Some(mpi), ExitStatus::Code(code @ 1..)) if mpi.server.has_finished(Member::of_job(rank)) => {
                mpi.failed.get_or_insert((rank, code));
                ExitStatus::Code(0)
            }
            _ => status,
        }
    }

    /// Whether a rank has done its work: how it ends is no fault then.
    pub(super) fn has_finished(&self, rank: Rank) -> bool {
        let is_finalizing = self.ranks.get(&rank).is_some_and(|(phase, _)| *phase == RankPhase::Finalizing);
        let of_mpi = self.mpi.as_ref().is_some_and(|mpi| mpi.server.has_finished(Member::of_job(rank)));
        is_finalizing || of_mpi
    }

    /// Whether a rank with an agent has ended as none may: in the middle of its MPI program, or before it has reported its part in PMI of the lives
    /// before. The keeper, to which the agent has reported nothing of that, sees only a process that has ended well.
    pub(super) fn has_broken_off(&self, rank: Rank) -> bool {
        let Some(mpi) = self.mpi.as_ref().filter(|mpi| mpi.server.is_relayed(rank)) else {
            return self.mpi.as_ref().is_some_and(|mpi| mpi.server.is_untold(rank));
        };
        let member = Member::of_job(rank);
        mpi.server.is_untold(rank) || (mpi.server.has_begun(member) && !mpi.server.has_finished(member))
    }

    /// The fault of a job whose ranks have all ended, if there is one.
    pub(super) fn failed_after_all(&self, report: &FinalReport) -> Option<Verdict> {
        let of_mpi = self.mpi.as_ref().and_then(|mpi| mpi.failed);
        if let Some((rank, code)) = of_mpi {
            let words = format!("rank {rank} ended with exit code {code}");
            return Some(Verdict { words, exit_code: Some(code) });
        }
        let status = Some(report.status).filter(|status| !status.is_success())?;
        // One that had ended when the job was saved is not known any more.
        let who = self.end.failed.map_or_else(|| "a rank".to_owned(), |(rank, _)| format!("rank {rank}"));
        let status = self.end.failed.map_or(status, |(_, status)| status);
        let exit_code = match status {
            ExitStatus::Code(code) => code,
            ExitStatus::Signal(number) => number.saturating_add(128),
        };
        let is_lost = self.end.failed.is_some_and(|(rank, _)| self.end.lost.contains(&rank));
        let when = if is_lost { "and the job went on without it" } else { "after it had finished" };
        let words =
            format!("{who} ended with {}{}{when}", text::status(status), if is_lost { ", " } else { " " });
        Some(Verdict { words, exit_code: Some(exit_code) })
    }

    /// Whether the launcher speaks for a rank: it is an MPI program, and has no agent that does.
    pub(super) fn speaks_for(&self, rank: Rank) -> bool {
        let begun =
            |mpi: &MpiSide| mpi.server.has_begun(Member::of_job(rank)) && !mpi.server.is_relayed(rank);
        self.mpi.as_ref().is_some_and(begun)
    }

    /// Whether no checkpoint can be taken, because nobody wanted any when the job was started.
    pub(super) fn is_never_saved(&self) -> bool {
        self.has_mpi && self.plan.saves != Saves::Process
    }

    pub(super) fn on_pmi(&mut self, output: pmi::Output) {
        match output {
            pmi::Output::Send { member, line } => {
                let node = member.job_rank().map_or(self.layout.root(), |rank| self.node_of(rank));
                self.keepers.send(node, &ToKeeper::PmiLine { who: member, line });
            }
            pmi::Output::Answer { rank, answer } => {
                let Some(life) = self.mpi.as_ref().map(MpiSide::life) else { return };
                let message = Message::PmiAnswer { answer };
                let sender = Party::Coordinator;
                let control = Control { job: self.plan.job, life, epoch: Epoch(0), sender, message };
                let answer = Sealed::new(&self.control_key, &control);
                self.keepers.send(self.node_of(rank), &ToKeeper::PmiAnswer { rank: rank.0, answer });
            }
            pmi::Output::Began { member } => self.on_begun(member),
            pmi::Output::Finished { member } => {
                self.look_at_finished(member);
                let Some(rank) = member.job_rank().filter(|rank| self.speaks_for(*rank)) else { return };
                let port = PortId::of_rank(rank, 0);
                self.speak_for(rank, Message::Closed { port, links: Vec::new(), last: true });
            }
            pmi::Output::Aborted { member, code } => match member.job_rank() {
                Some(rank) => {
                    self.speak_for(rank, Message::Fault { report: FaultReport::Aborted { rank, code } });
                }
                None => self.fail(member, format!("{member} aborted the job (code {code})"), Some(code)),
            },
            pmi::Output::Broken { member, why } => self.break_off(member, why.to_string()),
            pmi::Output::Spawn { by, world, commands } => self.on_spawn(by, world, &commands),
            pmi::Output::Refused { member, why } => {
                self.notify(&Notice::Mpi(MpiNotice::SpawnRefused { by: member, why: &why.to_string() }));
            }
            pmi::Output::Waiting { world, missing, waited } => {
                self.notify(&Notice::Mpi(MpiNotice::Barrier { world, missing: &missing, waited }))
            }
        }
    }

    fn on_begun(&mut self, member: Member) {
        let Some(rank) = member.job_rank() else { return };
        self.has_mpi = true;
        if self.is_never_saved() {
            // There is no image of it to go back to.
            self.job.never_rolls_back();
        }
        if let Some(problem) = &self.plan.mpi_problem {
            return self.break_off(member, format!("it is an MPI program, and {problem}"));
        }
        if !self.speaks_for(rank) {
            return;
        }
        self.keepers.send(self.node_of(rank), &ToKeeper::SpeakFor { rank: rank.0 });
        let is_first = |shell: &Shell<'_>| {
            shell.processes.keys().all(|other| *other == rank || !shell.speaks_for(*other))
        };
        if !self.is_never_saved() && is_first(self) {
            self.notify(&Notice::Mpi(MpiNotice::NoAgent { rank }));
        }
        let Some(process) = self.processes.get(&rank) else { return };
        let pid = u32::try_from(process.pid).unwrap_or(0);
        // Its port is the provider's, which finds its peers without us; here it stands for "has not finished".
        let port = PortEntry { port: PortId::of_rank(rank, 0), rails: Vec::new() };
        let registration = Registration { rank, pid, mode: CutMode::Instant, ports: vec![port] };
        self.speak_for(rank, Message::Hello { registration });
    }

    /// Answers the keeper's messages to a rank whose program does not know of it.
    pub(super) fn answer_for(&mut self, rank: Rank, control: &Control) {
        match control.message {
            Message::Start { .. } => self.speak_for(rank, Message::Running { ranks: 1, counted: 0 }),
            // R2
            Message::Cut { epoch, .. } => {
                let reason = NoImageReason::Unsavable { what: UNSAVABLE_WITHOUT_AGENT };
                self.speak_for(rank, Message::NoImage { epoch, rank, reason });
            }
            // Its provider has asked for it, or listens for it.
            Message::ClosedAnswer { .. } | Message::RankLost { .. } => {
                let control = Sealed::new(&self.control_key, control);
                self.keepers
                    .send(self.node_of(rank), &ToKeeper::ToProcesses { ranks: vec![rank.0], control });
            }
            _ => {}
        }
    }

    pub(super) fn speak_for(&mut self, rank: Rank, message: Message) {
        let Some(mpi) = &self.mpi else { return };
        let (job, life) = (self.plan.job, mpi.life);
        let control = Control { job, life, epoch: Epoch(0), sender: Party::Rank(rank), message };
        self.feed_keeper(self.node_of(rank), &control);
    }

    /// Whether the job runs, or is about to.
    pub(super) fn is_running(&self) -> bool {
        matches!(self.job.status().phase, JobPhase::Starting | JobPhase::Running | JobPhase::Finishing)
    }

    /// Ends a process, and with it the job: why, is the job's report.
    pub(super) fn break_off(&mut self, member: Member, why: String) {
        let words = format!("{member} is ended: {why}");
        let Some(rank) = member.job_rank() else { return self.fail(member, words, None) };
        if !self.is_running() {
            // It is being ended already, for a reason of its own.
            return;
        }
        self.job.end_on_fault();
        self.notify(&Notice::Mpi(MpiNotice::BrokenOff { words: &words }));
        self.end.verdict.get_or_insert(Verdict { words, exit_code: None });
        self.keepers.send(self.node_of(rank), &ToKeeper::Kill { who: member });
        let report = FaultReport::RankDied { rank, status: ExitStatus::Signal(Signal::SIGKILL as u8) };
        self.speak_for(rank, Message::Fault { report });
    }

    /// A process is about to end: it is looked at before, with its world, unless that has been done for another one of its world.
    fn look_at_finished(&mut self, member: Member) {
        let Some(mpi) = &self.mpi else { return };
        if mpi.server.barriers_passed(member.world) > 0 {
            self.look_at_worlds(Look::Last, |world, look| world == member.world && look != Look::Last);
        } else {
            // Before the first barrier nothing is known of the others.
            self.look_at_mappings(Vec::new(), |other| other == member);
        }
    }

    /// Looks at the worlds for which `due` is true.
    fn look_at_worlds(&mut self, then: Look, due: impl Fn(u32, Look) -> bool) {
        let Some(mpi) = &mut self.mpi else { return };
        let mut worlds = Vec::new();
        for (world, look) in &mut mpi.looks {
            if due(*world, *look) {
                *look = then;
                worlds.push(*world);
            }
        }
        if !worlds.is_empty() {
            let looked = worlds.clone();
            self.look_at_mappings(looked, |member| worlds.contains(&member.world));
        }
    }

    /// Messages of an MPI library go over the provider, and not past it: looked at for each world when all of it have come up, and when the first
    /// of it has finished.
    fn look_at_mappings(&mut self, worlds: Vec<u32>, wanted: impl Fn(Member) -> bool) {
        let has_all_ranks = worlds.contains(&0);
        self.look_at_members(worlds, has_all_ranks, wanted);
    }

    /// The same of all ranks, before a generation is committed. The first look at their world is due as before.
    pub(super) fn look_at_ranks(&mut self) {
        self.look_at_members(Vec::new(), true, |member| member.world == 0);
    }

    fn look_at_members(&mut self, worlds: Vec<u32>, has_all_ranks: bool, wanted: impl Fn(Member) -> bool) {
        let Some(mpi) = &self.mpi else { return };
        let root = self.layout.root();
        let ranks = self.processes.iter().map(|(rank, process)| (Member::of_job(*rank), process.node));
        let all = ranks.chain(self.spawned.iter().map(|member| (member, root)));
        let mut members: BTreeMap<NodeIndex, Vec<Member>> = BTreeMap::new();
        for (member, node) in all.filter(|(member, _)| mpi.server.has_begun(*member) && wanted(*member)) {
            members.entry(node).or_default().push(member);
        }
        let nodes = members.keys().copied().collect();
        let Some(mpi) = &mut self.mpi else { return };
        let number = mpi.networks.ask(has_all_ranks.then_some(nodes));
        for (node, members) in members {
            self.keepers.send(node, &ToKeeper::Look { number, worlds: worlds.clone(), members });
        }
    }

    /// Ranks that are to be saved talk over a network that is not in their images.
    pub(super) fn on_elsewhere(&mut self, elsewhere: Vec<(Member, String)>) {
        let Some((who, library)) = elsewhere.into_iter().next() else { return };
        if self.retry_look(who.world) {
            return;
        }
        let words = format!(
            "its MPI library ({library}) has opened another network than the provider, whose messages would be in no checkpoint. If it uses no libfabric, run the \
             program on an MPICH that does (pip install mpich; --mpi-from DIR); else look for variables that choose its network. `stillwire doctor PROGRAM` says more"
        );
        self.break_off(who, words);
    }

    /// A process of this world has no network yet. It may open the provider later, on a busy host: it is looked at again.
    fn retry_look(&mut self, world: u32) -> bool {
        let Some(mpi) = &mut self.mpi else { return false };
        let is_early = mpi.first_barriers.get(&world).is_some_and(|first| first.elapsed() < NETWORK_LATE_MAX);
        let Some(look) = mpi.looks.get_mut(&world).filter(|look| is_early && **look != Look::Last) else {
            return false;
        };
        if *look == Look::Done {
            *look = Look::At(Instant::now() + LOOK_AFTER);
        }
        true
    }

    pub(super) fn on_found(
        &mut self,
        without_provider: Vec<Member>,
        shared: Option<(Member, Member, String)>,
    ) {
        if let (Some(member), Some(provider)) = (without_provider.first(), &self.plan.provider) {
            let words = format!(
                "its MPI library has not loaded the provider {}; `stillwire doctor PROGRAM` says why",
                provider.display()
            );
            self.break_off(*member, words);
        }
        if let Some((one, other, path)) = shared {
            let words = format!(
                "{one} and {other} share memory of their MPI library ({path}): messages may go past the provider, and will be in no checkpoint"
            );
            if !self.end.warnings.contains(&words) {
                self.notify(&Notice::Mpi(MpiNotice::SharedMemory { words: &words }));
                self.end.warnings.push(words);
            }
        }
    }
}
