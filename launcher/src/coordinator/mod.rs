//! The coordinator's shell: everything that happens to a job passes through here, one at a time.

mod client_requests;
mod components;
mod first_keepers;
mod generation_copies;
mod input;
mod job_end;
mod keeper_messages;
mod keepers;
mod mpi;
mod networks;
mod nodes;
mod output;
mod parts;
mod pending_commit;
mod rail_changes;
mod records;
mod restore;
mod settings;
mod spares;
mod spawned;
mod suspension;
mod terminal;
mod unfinished;
mod unsaved;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use ckpt_glue::control::{Control, ControlKey, JobPhase};
use ckpt_glue::job::{self, FinalReport, Job, JobSettings};
use ckpt_glue::keeper::RankPhase;
use ckpt_glue::layout::{Layout, Share};
use ckpt_glue::names::{NodeIndex, Party};
use ckpt_glue::protection::nodes::Input as NodesInput;
use ckpt_glue::protocols::CheckpointEvent;
use ckpt_glue::recovery::Ending;
use ckpt_glue::sabotage::Sabotage;
use nix::sys::epoll::{EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use store::JobFile;
use transport::{Epoch, Rank};

use super::components::ComponentKind;
use super::events::{Events, epoll_timeout};
use super::flush::Flusher;
use super::limits::{EVENTS_PER_ROUND, NEWS_EVERY, ROOM_EVERY};
use super::notice::{MpiNotice, Notice, Observer};
use super::registry::Registration;
use super::requests::Requests;
use super::status::Saved;
use super::storage::{self, StoreWorker, Task};
use super::wire::{Sealed, ToKeeper};
use super::{Outcome, Plan, Saves, Verdict, take_signals};
use crate::error::LauncherError;
use components::Components;
use first_keepers::FirstKeepers;
use generation_copies::Copying;
use input::Input;
use job_end::End;
use keepers::Keepers;
use mpi::MpiSide;
use nodes::Nodes;
use pending_commit::PendingCommit;
use rail_changes::RailChanges;
use restore::Restore;
use spares::Spares;
use spawned::Spawned;
use suspension::Suspension;
use terminal::JobTerminal;
use unfinished::Unfinished;
use unsaved::Unsaved;

/// A rank's process that runs.
#[derive(Debug)]
struct Process {
    node: NodeIndex,
    pid: i32,
    /// Over which NIC it reaches other hosts, once it has reported that.
    nic: Option<String>,
}

/// Where an event comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Signals,
    Store,
    /// People's commands: the listener (0), and their connections.
    Requests(u64),
    Keeper(NodeIndex),
    Copies,
    /// Standard input.
    Input,
    Component(ComponentKind),
}

struct Shell<'a> {
    plan: &'a Plan,
    key: [u8; 16],
    control_key: ControlKey,
    layout: Layout,
    started: Instant,
    suspension: Suspension,
    job: Job,
    keepers: Keepers,
    first_keepers: FirstKeepers,
    /// Hosts in the place of lost ones.
    spares: Spares,
    components: Components,
    processes: BTreeMap<Rank, Process>,
    /// The keepers' reports of each rank.
    ranks: BTreeMap<Rank, (RankPhase, Epoch)>,
    spawned: Spawned,
    unfinished: Unfinished,
    events: Events<Source>,
    signals: SignalFd,
    store: StoreWorker,
    pending_commit: PendingCommit,
    input: Option<Input>,
    /// The job has a terminal.
    terminal: Option<JobTerminal>,
    copying: Copying,
    /// Nodes have directories of their own.
    nodes: Option<Nodes>,
    requests: Requests,
    /// Of another NIC.
    rail_changes: RailChanges,
    /// That hosts have the nodes' directories on one disk.
    has_reported_of_sharing: bool,
    /// The new contents of the job's file.
    job_file: Option<JobFile>,
    saved: Option<Saved>,
    observer: &'a mut dyn Observer,
    mpi: Option<MpiSide>,
    /// Some rank was a program of an MPI library.
    has_mpi: bool,
    restore: Restore,
    /// Why there are no checkpoints.
    unsaved: Unsaved,
    end: End,
    /// The warning that nobody has connected, so that there are no checkpoints, has been printed, with the reason if that can be seen.
    unconnected: Option<Option<String>>,
    /// The observer had no room for lines when it was last asked.
    is_full: bool,
    /// When progress is reported to an observer that waits for the job to run.
    news: Option<Instant>,
}

/// Runs a job until nothing of it runs any more. `registration`: where people's commands find it.
pub fn run(
    plan: &Plan,
    registration: &Registration,
    observer: &mut dyn Observer,
) -> Result<Outcome, LauncherError> {
    let mut shell = Shell::new(plan, registration, observer)?;
    let report = shell.run()?;
    shell.observer.notice(shell.started.elapsed(), &Notice::Over);
    let verdict = shell.end.verdict.take();
    let verdict =
        verdict.or_else(|| shell.failed_after_all(&report).filter(|_| report.ending == Ending::Finished));
    let mut warnings = core::mem::take(&mut shell.end.warnings);
    warnings.extend(shell.unsaved.warning());
    if let Some(why) = shell.unconnected.take().filter(|_| report.commits == 0) {
        let why = why.map_or_else(String::new, |why| format!(": {why}"));
        warnings.push(format!("no checkpoint was taken, as no rank connected{why}"));
    }
    let (unsaved, failing) = (shell.unsaved.all(), shell.unsaved.failing().map(|failing| failing.reason));
    let repairs = shell.nodes.take().map(Nodes::into_repairs).unwrap_or_default();
    let (copied, is_mpi) = (shell.copying.newest, shell.has_mpi);
    let is_interrupted = shell.end.is_interrupted;
    Ok(Outcome { report, is_mpi, verdict, unsaved, failing, warnings, copied, repairs, is_interrupted })
}

/// Which node keeps which ranks.
fn layout(plan: &Plan) -> Result<Layout, LauncherError> {
    let shares =
        (0..).map(NodeIndex).zip(&plan.nodes).map(|(node, place)| Share { node, ranks: place.ranks });
    Ok(Layout::new(shares.collect(), plan.config.keeper.fan_out)?)
}

/// Ranks of an earlier launcher may run for so long on hosts that this one does not use (R32).
fn earlier_lease(plan: &Plan) -> Duration {
    if plan.left_out().next().is_some() { plan.former_silence } else { Duration::ZERO }
}

impl<'a> Shell<'a> {
    fn new(
        plan: &'a Plan,
        registration: &Registration,
        observer: &'a mut dyn Observer,
    ) -> Result<Shell<'a>, LauncherError> {
        let signals = take_signals(&[Signal::SIGUSR1, Signal::SIGTSTP, Signal::SIGWINCH])?;
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(|_| LauncherError::NoRandomness)?;
        let layout = layout(plan)?;
        let settings = JobSettings {
            job: plan.job,
            config: plan.config.clone(),
            layout: layout.clone(),
            beginning: plan.beginning,
            counter_last: plan.counter_last,
            is_remote: plan.nodes.iter().any(|node| node.host.is_some()),
            earlier_lease: earlier_lease(plan),
            former_silence: plan.former_silence,
            connects: false,
            sabotage: Sabotage::none(),
        };
        let started = Instant::now();
        let job = Job::new(settings, transport::Instant::ZERO)?;
        let keepers = Keepers::new(plan);
        let hosts = keepers.iter().map(|keeper| keeper.host.clone()).collect();
        let store = storage::start(plan, layout.clone(), hosts)?;
        let requests = Requests::listen(registration)?;
        let mut shell = Shell {
            plan,
            key,
            control_key: ControlKey::new(&key),
            layout,
            started,
            suspension: Suspension::default(),
            job,
            keepers,
            first_keepers: FirstKeepers::new(plan, started),
            spares: Spares::new(plan),
            components: Components::default(),
            processes: BTreeMap::new(),
            ranks: BTreeMap::new(),
            spawned: Spawned::default(),
            unfinished: Unfinished::default(),
            events: Events::new()?,
            signals,
            store,
            pending_commit: PendingCommit::default(),
            input: Input::start(plan)?,
            terminal: plan.input.has_terminal.then(JobTerminal::new),
            copying: Copying::start(plan)?,
            nodes: Nodes::new(plan),
            requests,
            rail_changes: RailChanges::default(),
            has_reported_of_sharing: false,
            job_file: JobFile::parse(&plan.job_file).ok(),
            saved: None,
            observer,
            mpi: None,
            has_mpi: plan.is_mpi,
            restore: Restore::default(),
            unsaved: Unsaved::default(),
            end: End::default(),
            unconnected: None,
            is_full: false,
            news: None,
        };
        shell.watch_fixed()?;
        shell.start_components();
        for node in shell.keepers.nodes() {
            shell.start_keeper(node)?;
        }
        Ok(shell)
    }

    fn watch_fixed(&mut self) -> io::Result<()> {
        self.events.watch(self.signals.as_fd(), Source::Signals)?;
        self.events.watch(self.store.wake_fd(), Source::Store)?;
        self.events.watch(self.requests.listener(), Source::Requests(0))?;
        if let Some(flusher) = &self.copying.flusher {
            self.events.watch(flusher.wake_fd(), Source::Copies)?;
        }
        if let Some(input) = &self.input {
            self.events.watch(input.bell(), Source::Input)?;
        }
        Ok(())
    }

    fn start_keeper(&mut self, node: NodeIndex) -> Result<(), LauncherError> {
        let terminal = self.terminal.as_ref().map(|terminal| terminal.launcher.spec());
        let settings = (self.key, self.observer.shows_parts(), terminal);
        self.keepers.start(node, self.plan, settings, &mut self.events)
    }

    fn run(&mut self) -> Result<FinalReport, LauncherError> {
        let mut events = vec![EpollEvent::empty(); EVENTS_PER_ROUND];
        loop {
            self.pump();
            self.judge_unfinished();
            self.tend_terminal(Instant::now());
            if let Some(error) = self.end.unfit.take() {
                return Err(error);
            }
            if let Some(full) = self.store.overflow() {
                return Err(full.into());
            }
            if let Some(mut report) = self.end.over
                && self.processes.is_empty()
                && self.spawned_are_over()
            {
                self.leave(&mut report);
                return Ok(report);
            }
            self.keepers.watch_links(&self.events)?;
            let timeout = self.timeout();
            let count = self.events.wait(&mut events, timeout)?;
            for event in &events[..count] {
                self.on_event(event.data(), event.events());
            }
            let now = self.now();
            if self.job.poll_timeout().is_some_and(|due| due <= now) {
                self.job.handle_timeout(now);
            }
            self.nodes_due(now);
            self.pmi_timeouts();
            let now = Instant::now();
            self.components_due(now);
            if self.observer.due().is_some_and(|due| due <= now) {
                self.observer.act(now);
            }
            self.suspend_due(now);
            self.report_news(now);
            self.report_shown();
            self.commit_due(now);
            self.end_rail_requests(now);
            self.report_copying(now);
            if self.end.is_late(now) {
                self.give_up_keepers();
            }
            self.keepers.show_alive(now);
            for node in self.keepers.late(now) {
                self.reconnect_late(node);
            }
            for node in self.keepers.take_due(now) {
                // Without it the job ends for want of its node, after a time.
                if let Err(error) = self.start_keeper(node) {
                    self.notify(&Notice::KeeperLost {
                        host: &self.keepers.name(node),
                        why: &error.to_string(),
                    });
                }
            }
        }
    }

    /// The job is over, and some keepers have not reported the ends of their processes: they stand still, or hang. Their guards end those.
    fn give_up_keepers(&mut self) {
        for node in self.processes.values().map(|process| process.node).collect::<BTreeSet<_>>() {
            // Its end is heard over the link.
            self.keepers.end(node);
        }
    }

    /// Reports progress from time to time, until the job runs. A program that does not connect runs.
    fn report_news(&mut self, now: Instant) {
        let status = self.job.status();
        let simply_runs = self.simply_runs();
        let is_awaited = matches!(status.phase, JobPhase::Fencing | JobPhase::Deciding | JobPhase::Starting);
        if !is_awaited || (simply_runs && (self.unconnected.is_some() || !self.plan.is_saved())) {
            self.news = None;
            return;
        }
        let due = *self.news.get_or_insert(now + NEWS_EVERY);
        if due > now {
            return;
        }
        self.news = Some(now + NEWS_EVERY);
        let why = self.why_silent();
        if simply_runs {
            self.notify(&Notice::NotSavedYet { why: why.as_deref() });
            self.unconnected = Some(why);
        } else {
            self.notify(&Notice::NotRunningYet { status: &status, why: why.as_deref() });
        }
    }

    /// Whether nobody waits for the ranks of a new program to connect: each has its process, and none stands in a session, or in MPI_Init. A provider
    /// that saves whole processes waits for nobody.
    fn simply_runs(&self) -> bool {
        let status = self.job.status();
        let waits = |phase: &RankPhase| match phase {
            RankPhase::Spawning => false,
            RankPhase::Attached | RankPhase::Running => self.plan.saves == Saves::Points,
            RankPhase::Finalizing | RankPhase::Exited(_) | RankPhase::Dead => false,
        };
        let gone = self.ranks.values().filter(|(phase, _)| matches!(phase, RankPhase::Exited(_))).count();
        status.phase == JobPhase::Starting
            && self.restore.generation.is_none()
            && self.processes.len() + gone >= status.ranks as usize
            && !self.ranks.values().any(|(phase, _)| waits(phase))
    }

    fn now(&self) -> transport::Instant {
        let nanos = u64::try_from(self.suspension.running_for(self.started).as_nanos()).unwrap_or(u64::MAX);
        transport::Instant::from_nanos(nanos)
    }

    fn timeout(&self) -> EpollTimeout {
        let now = self.now();
        let (pmi, look) = self.pmi_due();
        let nodes = self.nodes.as_ref().and_then(Nodes::poll_timeout);
        let machines = [self.job.poll_timeout(), pmi, nodes, self.rail_changes.step_due()];
        let machines = machines.into_iter().flatten().map(|due| due.since(now));
        let room = self.is_full.then(|| Instant::now() + ROOM_EVERY);
        let copying = self.copying.flusher.as_ref().and_then(Flusher::due);
        let others = [
            self.observer.due(),
            self.end.due(),
            self.news,
            self.suspension.due(),
            self.terminal.as_ref().and_then(JobTerminal::due),
            room,
            look,
            self.pending_commit.due(),
            self.keepers.due(),
            copying,
            self.parts_due(),
            self.rail_changes.due(),
            self.unfinished.due(),
            self.components.due(),
        ];
        let others = others.into_iter().flatten().map(|due| due.saturating_duration_since(Instant::now()));
        epoll_timeout(machines.chain(others).min())
    }

    fn notify(&mut self, notice: &Notice<'_>) {
        self.observer.notice(self.started.elapsed(), notice);
    }

    /// Carries out the machines' outputs until they have none.
    fn pump(&mut self) {
        loop {
            if let Some(output) = self.job.poll_output() {
                self.on_job(output);
            } else if let Some(output) = self.poll_pmi() {
                self.on_pmi(output);
            } else {
                return;
            }
        }
    }

    /// For the machine of a keeper.
    fn feed_keeper(&mut self, node: NodeIndex, control: &Control) {
        let control = Sealed::new(&self.control_key, control);
        self.keepers.send(node, &ToKeeper::Control(control));
    }

    fn node_of(&self, rank: Rank) -> NodeIndex {
        self.layout.node_of(rank).unwrap_or(self.layout.root())
    }

    fn feed_job(&mut self, input: job::Input) {
        let now = self.now();
        self.job.handle(now, input);
    }

    fn on_job(&mut self, output: job::Output) {
        match output {
            job::Output::Send { to: Party::Keeper(node), control } => self.feed_keeper(node, &control),
            // People's commands are answered from the job's status and events, without control messages.
            job::Output::Send { .. } => {}
            job::Output::FenceStore { counter, refuse_below } => {
                self.commit_all();
                self.feed_nodes(NodesInput::LifeOver);
                self.end_input();
                self.end_spawned();
                self.store.ask(Task::Fence { counter, refuse_below });
            }
            job::Output::Reconnect { node } => self.reconnect(node),
            job::Output::Replace { node, answers } => self.replace(node, answers),
            job::Output::Await { node } => self.await_host(node),
            job::Output::Ask { number, question } => self.ask(number, question),
            job::Output::WriteDecision(decision) => self.store.ask(Task::Decide(decision)),
            job::Output::WriteCommit { generation, images } => self.begin_protection(generation, images),
            job::Output::Collect { keep } => {
                self.collect(keep.life);
            }
            job::Output::Diagnosed(diagnosis) => self.requests.on_diagnosis(diagnosis),
            job::Output::Event(event) => {
                let unsaved = &self.unsaved;
                self.requests.on_event(&event, |reason| unsaved.words(reason));
                self.note_saved(&event);
                if let job::Event::LifeBegun { decision, .. } = &event {
                    self.restore.generation = decision.restore;
                    self.end.failed = None;
                    self.end.lost.clear();
                    self.restore.last_words.clear();
                    self.begin_pmi(*decision);
                    self.begin_input(decision);
                }
                self.report_silent(&event);
                self.note_lost(&event);
                if let job::Event::Suspicion(event) = &event {
                    self.note_suspicion(event);
                }
                if let job::Event::Checkpoint(event) = &event {
                    self.note_unsaved(event);
                    if matches!(event, CheckpointEvent::Abandoned { .. }) {
                        self.feed_nodes(NodesInput::CheckpointFailed);
                    }
                }
                if matches!(event, job::Event::AllRunning { .. }) {
                    self.end.has_run = true;
                    if !self.processes.is_empty() {
                        self.unconnected = None;
                    }
                    self.store.ask(Task::Restored);
                    self.settle_hosts();
                    self.keep_settings();
                    self.start_worlds();
                    self.feed_nodes(NodesInput::AllRunning);
                }
                self.notify(&Notice::Event(&event));
            }
            job::Output::Over(report) => {
                self.end.report(report);
            }
        }
    }

    fn on_event(&mut self, token: u64, flags: EpollFlags) {
        match self.events.source(token) {
            None => {}
            Some(Source::Signals) => self.on_signals(),
            Some(Source::Store) => self.on_store(),
            Some(Source::Copies) => self.on_copies(),
            Some(Source::Input) => self.on_input(),
            Some(Source::Component(kind)) => self.on_component(kind),
            Some(Source::Requests(client)) => self.on_request(token, client),
            Some(Source::Keeper(node)) => self.on_keeper(token, node, flags),
        }
    }

    fn on_signals(&mut self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            match i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok()) {
                // A keeper's process; its link reports its end too.
                Some(Signal::SIGCHLD) => {}
                Some(Signal::SIGUSR1) if self.is_never_saved() => {
                    self.notify(&Notice::Mpi(MpiNotice::NoCheckpoints))
                }
                Some(Signal::SIGUSR1) => {
                    self.feed_job(job::Input::Request(ckpt_glue::control::Source::Signal));
                }
                Some(Signal::SIGTSTP) => self.suspend(),
                Some(Signal::SIGWINCH) => self.resize(),
                Some(_) => {
                    self.end.stops += 1;
                    self.interrupt();
                }
                None => {}
            }
        }
    }
}

impl Drop for Shell<'_> {
    /// After any error, too: no process is left. A keeper that is killed takes its ranks with it.
    fn drop(&mut self) {
        if self.plan.succession.options.is_some() {
            self.keepers.give_up();
        }
        self.keepers.kill();
        self.remove_sign();
    }
}
