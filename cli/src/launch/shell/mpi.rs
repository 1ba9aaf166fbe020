//! Ranks that are programs of an MPI library: they speak PMI, and the launcher speaks for them to the keeper.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use ckpt_glue::control::{Control, CutMode, FaultReport, JobPhase, Message, PortEntry, Registration};
use ckpt_glue::job::Event;
use ckpt_glue::keeper;
use ckpt_glue::names::{ExitStatus, Party};
use ckpt_glue::pmi::{self, Member};
use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use transport::{Life, PortId, Rank};

use super::super::limits::LOOK_AFTER;
use super::super::notice::{MpiNotice, Notice};
use super::super::pmi::PmiLines;
use super::super::{Verdict, mappings};
use super::{Shell, Source, watch};

/// What a job of an MPI library has besides.
#[derive(Debug)]
pub(super) struct MpiSide {
    /// The life that it serves: a new one begins with an empty server.
    life: Life,
    server: pmi::Server,
    lines: PmiLines,
    /// By world that has met.
    looks: BTreeMap<u32, Look>,
    /// By world: barriers at which it has been looked which files its processes have.
    barriers_seen: BTreeMap<u32, u64>,
    /// That has been looked before its ranks are killed.
    noted: bool,
    /// The first rank that has ended with an exit code of its own after MPI_Finalize.
    failed: Option<(Rank, u8)>,
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
    fn new(job: transport::JobId, life: Life, ranks: u32, start_timeout: std::time::Duration) -> MpiSide {
        let name = format!("stillwire-{job}-{life}");
        let server = pmi::Server::new(name, ranks, start_timeout);
        MpiSide {
            life,
            server,
            lines: PmiLines::default(),
            looks: BTreeMap::new(),
            barriers_seen: BTreeMap::new(),
            noted: false,
            failed: None,
        }
    }
}

impl MpiSide {
    pub(super) fn server(&self) -> &pmi::Server {
        &self.server
    }
}

impl Shell<'_> {
    /// A socket for a rank that is about to be started in a life.
    pub(super) fn pmi_of_life(&mut self, rank: Rank, life: Life) -> io::Result<UnixStream> {
        if self.mpi.as_ref().is_none_or(|mpi| mpi.life != life) {
            self.sources.retain(|_, source| !matches!(source, Source::Pmi(_)));
            let timeout = self.plan.config.fault.start_timeout;
            self.mpi = Some(MpiSide::new(self.plan.job, life, self.plan.ranks, timeout));
        }
        self.pmi_socket(Member::of_job(rank))
    }

    /// A socket for a process that is about to be started; the other end is kept.
    pub(super) fn pmi_socket(&mut self, member: Member) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        let token = self.token();
        watch(&self.epoll, ours.as_fd(), token)?;
        self.sources.insert(token, Source::Pmi(member));
        if let Some(mpi) = &mut self.mpi {
            mpi.lines.insert(member, ours)?;
        }
        Ok(theirs)
    }

    pub(super) fn tell_pmi(&mut self, input: pmi::Input) {
        let now = self.now();
        if let Some(mpi) = &mut self.mpi {
            mpi.server.handle(now, input);
        }
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

    pub(super) fn on_pmi_socket(&mut self, member: Member, flags: EpollFlags) {
        if flags.contains(EpollFlags::EPOLLOUT) {
            if let Some(mpi) = &mut self.mpi {
                mpi.lines.flush(member);
            }
            self.watch_pmi(member);
        }
        if !flags.difference(EpollFlags::EPOLLOUT).is_empty() {
            self.hear_pmi(member);
        }
    }

    /// Takes what a process has said over PMI. `false`: there was nothing.
    pub(super) fn hear_pmi(&mut self, member: Member) -> bool {
        let now = self.now();
        let Some(mpi) = &mut self.mpi else { return false };
        let said = mpi.lines.hear(member);
        if said.closed {
            // Its process has ended, or is about to: how is said better by its status.
            self.forget_pmi(member);
            return false;
        }
        let any = !said.bytes.is_empty();
        mpi.server.handle(now, pmi::Input::Bytes { member, bytes: said.bytes });
        let barriers = mpi.server.barriers_passed(member.world);
        if barriers > 0 {
            mpi.looks.entry(member.world).or_insert_with(|| Look::At(Instant::now() + LOOK_AFTER));
        }
        let seen = mpi.barriers_seen.entry(member.world).or_default();
        if *seen < barriers && matches!(mpi.looks.get(&member.world), None | Some(Look::At(_))) {
            *seen = barriers;
            self.note_mpi_files();
        }
        any
    }

    /// Takes all that a process has said that has ended.
    pub(super) fn hear_last_of_pmi(&mut self, member: Member) {
        while self.hear_pmi(member) {
            self.pump();
        }
    }

    /// A process has ended; if it is a rank's, the keeper knows.
    pub(super) fn end_pmi(&mut self, member: Member) {
        self.tell_pmi(pmi::Input::Gone { member });
        self.forget_pmi(member);
        if let Some(mpi) = &mut self.mpi
            && !self.spawned.iter().any(|(other, _)| other.world == member.world)
            && member.job_rank().is_none()
        {
            mpi.looks.remove(&member.world);
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

    /// What is wrong with a job whose ranks have all ended.
    pub(super) fn failed_after_all(&self) -> Option<Verdict> {
        let (rank, code) = self.mpi.as_ref()?.failed?;
        Some(Verdict { words: format!("rank {rank} ended with exit code {code}"), exit_code: Some(code) })
    }

    fn forget_pmi(&mut self, member: Member) {
        self.sources.retain(|_, source| !matches!(source, Source::Pmi(of) if *of == member));
        if let Some(mpi) = &mut self.mpi {
            mpi.lines.remove(member);
        }
    }

    /// Asks `epoll` for room to write only while something waits.
    fn watch_pmi(&mut self, member: Member) {
        let Some(mpi) = &self.mpi else { return };
        let Some(stream) = mpi.lines.stream(member) else { return };
        let found =
            self.sources.iter().find(|(_, source)| matches!(source, Source::Pmi(of) if *of == member));
        let Some((token, _)) = found else { return };
        let mut flags = EpollFlags::EPOLLIN;
        flags.set(EpollFlags::EPOLLOUT, mpi.lines.has_waiting(member));
        // Fails only for a descriptor that is being closed.
        let _ = self.epoll.modify(stream, &mut EpollEvent::new(flags, *token));
    }

    /// Whether a rank is an MPI program: the launcher speaks for it.
    pub(super) fn is_mpi(&self, rank: Rank) -> bool {
        self.mpi.as_ref().is_some_and(|mpi| mpi.server.has_begun(Member::of_job(rank)))
    }

    /// Names the ranks that have not begun although others have, when that ends the job.
    pub(super) fn tell_silent(&mut self, event: &Event) {
        let timed_out = matches!(event, Event::Reported { report: FaultReport::StartTimedOut { .. }, .. });
        let silent = self.mpi.as_ref().filter(|_| timed_out).and_then(|mpi| mpi.server.silent());
        if let Some(ranks) = silent {
            let timeout = self.plan.config.fault.start_timeout;
            let words = format!("{ranks} did not call MPI_Init within {timeout:?} (--start-timeout)");
            self.tell(&Notice::Mpi(MpiNotice::BrokenOff { words: &words }));
            self.verdict.get_or_insert(Verdict { words, exit_code: None });
        }
    }

    pub(super) fn on_pmi(&mut self, output: pmi::Output) {
        match output {
            pmi::Output::Send { member, line } => {
                let Some(mpi) = &mut self.mpi else { return };
                if !mpi.lines.send(member, &line) {
                    let why = "it asks the launcher's PMI server and does not read the answers";
                    self.break_off(member, why.into());
                }
                self.watch_pmi(member);
            }
            pmi::Output::Answer { rank, answer } => {
                self.tell_keeper(keeper::Input::PmiAnswer { rank, answer });
            }
            pmi::Output::Began { member } => self.on_begun(member),
            pmi::Output::Finished { member } => {
                self.look_at_finished(member);
                let Some(rank) = member.job_rank() else { return };
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
                self.tell(&Notice::Mpi(MpiNotice::SpawnRefused { by: member, why: &why.to_string() }));
            }
            pmi::Output::Waiting { world, missing, waited } => {
                self.tell(&Notice::Mpi(MpiNotice::Barrier { world, missing: &missing, waited }))
            }
        }
    }

    fn on_begun(&mut self, member: Member) {
        let Some(rank) = member.job_rank() else { return };
        // There is no image of an MPI program to go back to.
        self.job.end_on_fault();
        self.has_mpi = true;
        if let Some(problem) = &self.plan.mpi_problem {
            return self.break_off(member, format!("it is an MPI program, and {problem}"));
        }
        let Some(process) = self.processes.get(&rank) else { return };
        let pid = u32::try_from(process.group.pid.as_raw()).unwrap_or(0);
        // Its port is the provider's, which finds its peers without us; here it stands for "has not finished".
        let port = PortEntry { port: PortId::of_rank(rank, 0), rails: Vec::new() };
        let registration = Registration { rank, pid, mode: CutMode::Instant, ports: vec![port] };
        self.speak_for(rank, Message::Hello { registration });
    }

    /// What the keeper tells a rank whose program does not know of it.
    pub(super) fn answer_for(&mut self, rank: Rank, control: &Control) {
        match control.message {
            Message::Start { .. } => self.speak_for(rank, Message::Running { ranks: 1, counted: 0 }),
            // Its provider has asked for it.
            Message::ClosedAnswer { .. } => self.send_to_process(rank, control),
            _ => {}
        }
    }

    fn speak_for(&mut self, rank: Rank, message: Message) {
        let Some(mpi) = &self.mpi else { return };
        let (job, life) = (self.plan.job, mpi.life);
        let control = Control { job, life, epoch: transport::Epoch(0), sender: Party::Rank(rank), message };
        self.tell_keeper(keeper::Input::Control(control));
    }

    /// Whether the job runs, or is about to.
    pub(super) fn is_running(&self) -> bool {
        matches!(self.job.status().phase, JobPhase::Starting | JobPhase::Running | JobPhase::Finishing)
    }

    /// Ends a process, and with it the job: why, is the job's report.
    fn break_off(&mut self, member: Member, why: String) {
        let words = format!("{member} is ended: {why}");
        let Some(rank) = member.job_rank() else { return self.fail(member, words, None) };
        if !self.is_running() {
            // It is being ended already, for a reason of its own.
            return;
        }
        self.job.end_on_fault();
        self.tell(&Notice::Mpi(MpiNotice::BrokenOff { words: &words }));
        self.verdict.get_or_insert(Verdict { words, exit_code: None });
        if let Some(process) = self.processes.get(&rank) {
            process.group.kill();
        }
        let report = FaultReport::RankDied { rank, status: ExitStatus::Signal(Signal::SIGKILL as u8) };
        self.speak_for(rank, Message::Fault { report });
    }

    /// Before ranks are killed: as [`Shell::note_mpi_files`], once.
    pub(super) fn note_last_mpi_files(&mut self) {
        if self.mpi.as_mut().is_some_and(|mpi| !core::mem::replace(&mut mpi.noted, true)) {
            self.note_mpi_files();
        }
    }

    /// Notes which files in memory the ranks have: who is killed cannot remove them, and who is dead cannot be asked any more. Libraries make
    /// theirs between the barriers of MPI_Init.
    fn note_mpi_files(&mut self) {
        let Some(provider) = &self.plan.provider else { return };
        if !self.has_mpi {
            return;
        }
        let files = mappings::look(&self.members(), provider).files;
        self.mpi_files.extend(files);
    }

    /// The processes of the job, and those that were spawned.
    fn members(&self) -> Vec<(Member, Pid)> {
        let ranks = self.processes.iter().map(|(rank, process)| (Member::of_job(*rank), process.group.pid));
        ranks.chain(self.spawned.iter().map(|(member, group)| (member, group.pid))).collect()
    }

    /// Removes what killed ranks have left in memory. Nobody else has files of these names: ranks of this job had them mapped.
    pub(super) fn remove_mpi_files(&mut self) {
        for file in core::mem::take(&mut self.mpi_files) {
            // Most often its owner has removed it.
            let _ = std::fs::remove_file(file);
        }
    }

    /// A process is about to end: it is looked at before, with its world, unless that has been done for another one of its world.
    fn look_at_finished(&mut self, member: Member) {
        let Some(mpi) = &self.mpi else { return };
        if mpi.server.barriers_passed(member.world) > 0 {
            self.look_at_worlds(Look::Last, |world, look| world == member.world && look != Look::Last);
        } else {
            // Before the first barrier nothing is known of the others.
            self.look_at_mappings(|other| other == member);
        }
    }

    /// Looks at the worlds of which this says so.
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
            self.look_at_mappings(|member| worlds.contains(&member.world));
        }
    }

    /// Messages of an MPI library go over the provider, and not past it: looked at for each world when all of it have come up, and when the first
    /// of it has finished.
    fn look_at_mappings(&mut self, wanted: impl Fn(Member) -> bool) {
        let (Some(mpi), Some(provider)) = (&self.mpi, &self.plan.provider) else { return };
        let mut members = self.members();
        members.retain(|(member, _)| mpi.server.has_begun(*member) && wanted(*member));
        let mut findings = mappings::look(&members, provider);
        self.mpi_files.append(&mut findings.files);
        if let Some(member) = findings.without_provider.first() {
            let words = format!(
                "its MPI library has not loaded the provider {}; `stillwire doctor PROGRAM` says why",
                provider.display()
            );
            self.break_off(*member, words);
        }
        if let Some((one, other, path)) = &findings.shared {
            let words = format!(
                "{one} and {other} share memory of their MPI library ({path}): messages may go past the provider, and will be in no checkpoint"
            );
            if !self.warnings.contains(&words) {
                self.tell(&Notice::Mpi(MpiNotice::SharedMemory { words: &words }));
                self.warnings.push(words);
            }
        }
    }
}
