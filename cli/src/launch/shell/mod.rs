//! The loop: everything that happens to a job passes through here, one at a time.

mod asked;
mod mpi;
mod ranks;
mod records;
mod silent;
mod spawned;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ckpt_glue::control::JobPhase;
use ckpt_glue::job::{self, FinalReport, Job, JobSettings};
use ckpt_glue::keeper::{self, Keeper};
use ckpt_glue::layout::Layout;
use ckpt_glue::names::{ExitStatus, GenerationId, NodeIndex, Party};
use ckpt_glue::pmi::Member;
use ckpt_glue::recovery::Ending;
use ckpt_glue::sabotage::Sabotage;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use store::{Directory, JobDirectory};
use transport::Rank;

use super::descriptors::{self, Descriptors};
use super::guard::Guard;
use super::key::KeyFile;
use super::limits::{EVENTS_PER_ROUND, NEWS_EVERY, ROOM_EVERY};
use super::lines::{Channel, LineReader};
use super::notice::{MpiNotice, Notice, Observer};
use super::process::Process;
use super::requests::Requests;
use super::status::Saved;
use super::storage::{StoreWorker, Task};
use super::{Outcome, Plan, Verdict, registry::Registration};
use crate::error::CliError;
use mpi::MpiSide;
use spawned::Spawned;

/// Where an event of `epoll` comes from.
#[derive(Debug)]
enum Source {
    Signals,
    Store,
    /// People's commands: the listener, and who is connected.
    Requests(u64),
    Connection(Rank),
    /// What a process says over PMI.
    Pmi(Member),
    Pipe {
        member: Member,
        channel: Channel,
        lines: LineReader,
    },
}

struct Shell<'a> {
    plan: &'a Plan,
    key: [u8; 16],
    /// The same for programs of MPI libraries.
    key_file: KeyFile,
    /// What ranks are given.
    descriptors: Descriptors,
    started: Instant,
    job: Job,
    keeper: Keeper,
    directory: JobDirectory<Directory>,
    processes: BTreeMap<Rank, Process>,
    spawned: Spawned,
    epoll: Epoll,
    sources: BTreeMap<u64, Source>,
    next_token: u64,
    signals: SignalFd,
    store: StoreWorker,
    requests: Requests,
    saved: Option<Saved>,
    guard: Guard,
    observer: &'a mut dyn Observer,
    mpi: Option<MpiSide>,
    /// Some rank was a program of an MPI library.
    has_mpi: bool,
    /// Files that MPI libraries have made in memory, and remove when their ranks end by themselves.
    mpi_files: BTreeSet<PathBuf>,
    /// What the life that runs, or comes up, goes on from.
    restoring: Option<GenerationId>,
    /// A generation that could not be restored, the rank, and why.
    unrestored: Option<(GenerationId, Rank, String)>,
    /// The last line of errors of each process that comes up in such a life.
    last_words: BTreeMap<Member, String>,
    /// Why the launcher has ended the job.
    verdict: Option<Verdict>,
    /// What the final report warns of.
    warnings: Vec<String>,
    over: Option<FinalReport>,
    stops: u32,
    /// Outputs of ranks that nobody reads, for want of room: they are not in `epoll`.
    held: Vec<u64>,
    leaving: bool,
    /// When somebody who waits for the job to run is told how far it is.
    news: Option<Instant>,
}

/// Runs a job until nothing of it runs any more. `registration`: where people's commands find it.
pub(crate) fn run(
    plan: &Plan,
    registration: &Registration,
    observer: &mut dyn Observer,
) -> Result<Outcome, CliError> {
    let mut shell = Shell::new(plan, registration, observer)?;
    let report = shell.run()?;
    shell.observer.notice(shell.started.elapsed(), &Notice::Over);
    let verdict = shell.verdict.take();
    let verdict = verdict.or_else(|| shell.failed_after_all().filter(|_| report.ending == Ending::Finished));
    Ok(Outcome { report, is_mpi: shell.has_mpi, verdict, warnings: core::mem::take(&mut shell.warnings) })
}

impl<'a> Shell<'a> {
    fn new(
        plan: &'a Plan,
        registration: &Registration,
        observer: &'a mut dyn Observer,
    ) -> Result<Shell<'a>, CliError> {
        let descriptors = descriptors::provide(plan.ranks)?;
        let signals = take_signals()?;
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(|_| CliError::NoRandomness)?;
        let settings = JobSettings {
            job: plan.job,
            config: plan.config.clone(),
            layout: Layout::even(plan.ranks, 1, plan.config.keeper.fan_out)?,
            beginning: plan.beginning,
            counter_last: plan.counter_last,
            sabotage: Sabotage::none(),
        };
        let started = Instant::now();
        let job = Job::new(settings, transport::Instant::ZERO)?;
        let keeper = Keeper::new(plan.job, NodeIndex(0), Sabotage::none());
        let directory = JobDirectory::attach(Directory::open(&plan.directory)?, plan.job);
        let store = StoreWorker::start(directory.clone(), plan.ranks, node_name(), plan.suspects.clone())?;
        let guard = Guard::start(plan)?;
        let requests = Requests::listen(registration)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(io::Error::from)?;
        let mut shell = Shell {
            plan,
            key,
            key_file: KeyFile::new(&key)?,
            descriptors,
            started,
            job,
            keeper,
            directory,
            processes: BTreeMap::new(),
            spawned: Spawned::default(),
            epoll,
            sources: BTreeMap::new(),
            next_token: 0,
            signals,
            store,
            requests,
            saved: None,
            guard,
            observer,
            mpi: None,
            has_mpi: plan.is_mpi,
            mpi_files: BTreeSet::new(),
            restoring: None,
            unrestored: None,
            last_words: BTreeMap::new(),
            verdict: None,
            warnings: Vec::new(),
            over: None,
            stops: 0,
            held: Vec::new(),
            leaving: false,
            news: None,
        };
        shell.watch_fixed()?;
        Ok(shell)
    }

    fn watch_fixed(&mut self) -> io::Result<()> {
        self.sources.insert(0, Source::Signals);
        watch(&self.epoll, self.signals.as_fd(), 0)?;
        self.sources.insert(1, Source::Store);
        watch(&self.epoll, self.store.bell(), 1)?;
        self.sources.insert(2, Source::Requests(0));
        watch(&self.epoll, self.requests.listener(), 2)?;
        self.next_token = 3;
        Ok(())
    }

    fn run(&mut self) -> Result<FinalReport, CliError> {
        let mut events = vec![EpollEvent::empty(); EVENTS_PER_ROUND];
        loop {
            self.pump();
            if let Some(mut report) = self.over
                && self.processes.is_empty()
                && self.spawned_are_over()
            {
                self.leave(&mut report);
                return Ok(report);
            }
            let timeout = self.timeout();
            let count = match self.epoll.wait(&mut events, timeout) {
                Ok(count) => count,
                Err(nix::Error::EINTR) => 0,
                Err(error) => return Err(io::Error::from(error).into()),
            };
            for event in &events[..count] {
                self.on_event(event.data(), event.events());
            }
            let now = self.now();
            if self.job.poll_timeout().is_some_and(|due| due <= now) {
                self.job.handle_timeout(now);
            }
            if self.keeper.poll_timeout().is_some_and(|due| due <= now) {
                self.keeper.handle_timeout(now);
            }
            self.pmi_timeouts();
            let now = Instant::now();
            if self.observer.due().is_some_and(|due| due <= now) {
                self.observer.act(now);
            }
            self.tell_news(now);
            if self.observer.takes_lines() {
                self.listen_again();
            }
        }
    }

    /// Reads what ranks print again.
    fn listen_again(&mut self) {
        for token in core::mem::take(&mut self.held) {
            if let Some(Source::Pipe { lines, .. }) = self.sources.get(&token) {
                // Fails only for a descriptor that is being closed.
                let _ = watch(&self.epoll, lines.pipe().as_fd(), token);
            }
        }
    }

    /// Whoever waits for the job to run hears from time to time how far it is.
    fn tell_news(&mut self, now: Instant) {
        let status = self.job.status();
        if !matches!(status.phase, JobPhase::Fencing | JobPhase::Deciding | JobPhase::Starting) {
            self.news = None;
            return;
        }
        let due = *self.news.get_or_insert(now + NEWS_EVERY);
        if due <= now {
            self.news = Some(now + NEWS_EVERY);
            let why = self.why_silent();
            self.tell(&Notice::NotRunningYet { status: &status, why: why.as_deref() });
        }
    }

    fn now(&self) -> transport::Instant {
        let nanos = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        transport::Instant::from_nanos(nanos)
    }

    fn timeout(&self) -> EpollTimeout {
        let now = self.now();
        let (pmi, look) = self.pmi_due();
        let machines = [self.job.poll_timeout(), self.keeper.poll_timeout(), pmi];
        let machines = machines.into_iter().flatten().map(|due| due.since(now));
        let room = (!self.held.is_empty()).then(|| Instant::now() + ROOM_EVERY);
        let others = [self.observer.due(), self.news, room, look].into_iter().flatten();
        let others = others.map(|due| due.saturating_duration_since(Instant::now()));
        match machines.chain(others).min() {
            None => EpollTimeout::NONE,
            // Rounded up, so that what is due is due when we look.
            Some(Duration::ZERO) => EpollTimeout::ZERO,
            Some(left) => {
                EpollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(EpollTimeout::MAX)
            }
        }
    }

    fn tell(&mut self, notice: &Notice<'_>) {
        self.observer.notice(self.started.elapsed(), notice);
    }

    /// Carries out what the machines want until they want nothing.
    fn pump(&mut self) {
        loop {
            if let Some(output) = self.keeper.poll_output() {
                self.on_keeper(output);
            } else if let Some(output) = self.job.poll_output() {
                self.on_job(output);
            } else if let Some(output) = self.poll_pmi() {
                self.on_pmi(output);
            } else {
                return;
            }
        }
    }

    fn tell_keeper(&mut self, input: keeper::Input) {
        let now = self.now();
        self.keeper.handle(now, input);
    }

    fn tell_job(&mut self, input: job::Input) {
        let now = self.now();
        self.job.handle(now, input);
    }

    fn on_job(&mut self, output: job::Output) {
        match output {
            job::Output::Send { to: Party::Keeper(_), control } => {
                self.tell_keeper(keeper::Input::Control(control));
            }
            // People's commands are answered from the job's status and events, without control messages.
            job::Output::Send { .. } => {}
            job::Output::FenceStore { counter, refuse_below } => {
                self.store.ask(Task::Fence { counter, refuse_below });
            }
            job::Output::WriteDecision(decision) => self.store.ask(Task::Decide(decision)),
            job::Output::WriteCommit { generation, images } => {
                self.hear_output();
                self.store.ask(Task::Commit { generation, images });
            }
            job::Output::Collect { keep } => {
                self.store.ask(Task::Collect { life: keep.life, keep: self.plan.keep });
            }
            job::Output::Event(event) => {
                self.requests.on_event(&event);
                self.note_saved(&event);
                if let job::Event::LifeBegun { decision, .. } = &event {
                    self.restoring = decision.restore;
                    self.last_words.clear();
                }
                self.tell_silent(&event);
                if matches!(event, job::Event::AllRunning { .. }) {
                    self.store.ask(Task::Restored);
                }
                self.tell(&Notice::Event(&event));
            }
            job::Output::Over(report) => self.over = Some(report),
        }
    }

    fn on_keeper(&mut self, output: keeper::Output) {
        match output {
            keeper::Output::Send { to: Party::Coordinator, control } => {
                self.tell_job(job::Input::Control(control))
            }
            keeper::Output::Send { to: Party::Rank(rank), control } => self.send(rank, &control),
            // There is one keeper, and tools do not speak to it.
            keeper::Output::Send { .. } => {}
            keeper::Output::Spawn { rank, decision } => self.spawn(rank, decision),
            keeper::Output::Kill { rank, life } => {
                self.note_last_mpi_files();
                self.spawned.give_up();
                match self.processes.get(&rank) {
                    Some(process) if process.life == life => process.group.kill(),
                    _ => {
                        let status = ExitStatus::Signal(Signal::SIGKILL as u8);
                        self.tell_keeper(keeper::Input::ProcessEnded { rank, life, status });
                    }
                }
            }
            keeper::Output::WriteExitedImage { rank, generation, record } => {
                match self.write_exited(rank, generation, &record) {
                    Ok((digest, bytes)) => {
                        self.tell_keeper(keeper::Input::ExitedImageDone { rank, generation, digest, bytes });
                    }
                    Err(error) => {
                        self.tell(&Notice::Store {
                            what: "the image of a rank that has ended",
                            error: &error,
                        });
                        let errno = error.errno();
                        self.tell_keeper(keeper::Input::ExitedImageFailed { rank, generation, errno });
                    }
                }
            }
            keeper::Output::Pmi(input) => self.tell_pmi(input),
            // Only with several nodes.
            keeper::Output::LeaseOver => {}
        }
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token - 1
    }

    fn on_event(&mut self, token: u64, flags: EpollFlags) {
        match self.sources.get_mut(&token) {
            None => {}
            Some(Source::Signals) => self.on_signals(),
            Some(Source::Store) => self.on_store(),
            Some(Source::Requests(client)) => {
                let client = *client;
                self.on_request(token, client);
            }
            Some(Source::Connection(rank)) => {
                let rank = *rank;
                self.on_connection(token, rank, flags);
            }
            Some(Source::Pmi(member)) => {
                let member = *member;
                self.on_pmi_socket(member, flags);
            }
            Some(Source::Pipe { .. }) => self.on_pipe(token),
        }
    }

    fn on_signals(&mut self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            match i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok()) {
                Some(Signal::SIGCHLD) => self.collect_processes(),
                Some(Signal::SIGUSR1) if self.is_never_saved() => {
                    self.tell(&Notice::Mpi(MpiNotice::NoCheckpoints))
                }
                Some(Signal::SIGUSR1) => {
                    self.tell_job(job::Input::Request(ckpt_glue::control::Source::Signal));
                }
                Some(_) => {
                    self.stops += 1;
                    self.stop();
                }
                None => {}
            }
        }
    }

    fn on_pipe(&mut self, token: u64) {
        let Some(Source::Pipe { lines, .. }) = self.sources.get(&token) else { return };
        if !self.leaving && !self.observer.takes_lines() {
            let _ = self.epoll.delete(lines.pipe());
            self.held.push(token);
            return;
        }
        if !self.show_lines(token, LineReader::read)
            && let Some(Source::Pipe { lines, .. }) = self.sources.remove(&token)
        {
            let _ = self.epoll.delete(lines.pipe());
        }
    }
}

impl Drop for Shell<'_> {
    /// Whatever went wrong: no process is left.
    fn drop(&mut self) {
        for process in self.processes.values() {
            process.group.kill();
        }
        self.spawned.kill();
    }
}

fn watch(epoll: &Epoll, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
    Ok(epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token))?)
}

/// Signals that end a process do so again.
pub(crate) fn give_signals_back() {
    let mut mask = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        mask.add(signal);
    }
    // Fails for no set of signals.
    let _ = mask.thread_unblock();
}

/// Signals become events. Those that a parent had ignored (`nohup`) stay ignored.
pub(crate) fn take_signals() -> io::Result<SignalFd> {
    let mut mask = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGUSR1] {
        mask.add(signal);
    }
    mask.thread_block()?;
    Ok(SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?)
}

fn node_name() -> String {
    nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_else(|| "localhost".to_owned())
}
