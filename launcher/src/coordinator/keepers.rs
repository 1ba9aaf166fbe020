//! The keepers of a job's nodes, as the coordinator sees them: their processes, the links to them, and their states.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ckpt_glue::names::NodeIndex;
use nix::sys::epoll::EpollFlags;
use nix::sys::signal::Signal;

use super::super::events::Events;
use super::super::keeper::environment_for_others;
use super::super::limits::{
    DISMISS_MAX, GIVE_UP_MAX, KEEPER_AGAIN_AFTER, KEEPER_AGAIN_MAX, KEEPER_ANSWER_LONGEST, KEEPER_ANSWER_MAX,
    KEEPER_STATUS_MAX, LAUNCHER_ALIVE_EVERY, LINK_QUEUE_BYTES_MAX,
};
use super::super::secrets::withheld;
use super::super::succession::SuccessorPlace;
use super::super::terminal::TerminalSpec;
use super::super::version::VERSION;
use super::super::wire::{Begin, Frame, FromKeeper, Link, LinkError, ToKeeper};
use super::super::{Node, Plan, Saves};
use super::Source;
use crate::error::LauncherError;
use crate::spawn::process::{end_with_launcher, non_blocking};
use crate::spawn::remote_shell::{ShellMessages, may_pass, node_command};
use transport::config::AuthLevel;

/// A keeper that runs.
#[derive(Debug)]
struct Running {
    child: Child,
    /// Of a remote shell.
    messages: Option<ShellMessages>,
    link: Link,
    token: u64,
    watches_room: bool,
    /// It has to answer by then.
    answer_by: Option<Instant>,
}

/// How the process of a keeper has ended.
#[derive(Debug)]
pub(super) struct KeeperEnd {
    status: ExitStatus,
    /// The last messages of its remote shell.
    messages: Option<String>,
}

impl KeeperEnd {
    /// Whether the host may be reached at the next attempt.
    pub(super) fn may_pass(&self) -> bool {
        self.messages.as_ref().is_some_and(|messages| may_pass(self.status, messages))
    }
}

impl core::fmt::Display for KeeperEnd {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "its process has ended ({})", self.status)?;
        let last = self.messages.as_deref().and_then(|messages| messages.trim_end().lines().last());
        last.map_or(Ok(()), |last| write!(f, ": {}", last.trim()))
    }
}

#[derive(Debug)]
pub(super) struct Keeper {
    /// Where its node is: another host may have taken the place of the one in the plan.
    place: Node,
    running: Option<Running>,
    /// The host that it has named.
    pub(super) host: String,
    /// It has been started before.
    is_started: bool,
    /// A keeper of the node has been there before.
    again: bool,
    /// Its node has come to another host since all ranks ran last: no keeper there remembers earlier lives.
    is_moved: bool,
    /// When it is started again, and how long the wait after that one is.
    due: Option<Instant>,
    wait: Duration,
    /// How long it may take to answer; doubles after each timeout. Logins of a busy host are slow.
    answer_max: Duration,
    /// It has reported that it is there, since it was last started.
    is_ready: bool,
    /// Bytes of its lines that the observer has received, and the keeper does not know of yet.
    pub(super) shown: u64,
    /// Why ranks of it do not come up, as far as it can see.
    pub(super) silent: Option<String>,
}

impl Keeper {
    /// When it must have answered.
    fn answer_by(&self) -> Option<Instant> {
        self.running.as_ref()?.answer_by.filter(|_| !self.is_ready)
    }
}

#[derive(Debug)]
pub(super) struct Keepers {
    all: BTreeMap<NodeIndex, Keeper>,
    begun: Instant,
    /// When they are to hear next that the launcher is there.
    alive_at: Instant,
    /// Killed processes of connections that were given up, until they are collected.
    killed: Vec<Child>,
    /// Of nodes that have left the job: their keepers end by themselves, or are killed at this time.
    dismissed: Vec<(Running, Instant)>,
}

impl Keepers {
    pub(super) fn new(plan: &Plan) -> Keepers {
        let keeper = |node: &Node| Keeper {
            place: node.clone(),
            running: None,
            host: node.name(),
            is_started: false,
            again: false,
            is_moved: false,
            due: None,
            wait: KEEPER_AGAIN_AFTER,
            answer_max: KEEPER_ANSWER_MAX,
            is_ready: false,
            shown: 0,
            silent: None,
        };
        let all = (0..).map(NodeIndex).zip(plan.nodes.iter().map(keeper)).collect();
        let begun = Instant::now();
        Keepers {
            all,
            begun,
            alive_at: begun + LAUNCHER_ALIVE_EVERY,
            killed: Vec::new(),
            dismissed: Vec::new(),
        }
    }

    pub(super) fn nodes(&self) -> Vec<NodeIndex> {
        self.all.keys().copied().collect()
    }

    /// Where a node is.
    pub(super) fn place(&self, node: NodeIndex) -> &Node {
        &self.all[&node].place
    }

    /// The name of its host.
    pub(super) fn name(&self, node: NodeIndex) -> String {
        self.place(node).name()
    }

    pub(super) fn get(&self, node: NodeIndex) -> Option<&Keeper> {
        self.all.get(&node)
    }

    pub(super) fn get_mut(&mut self, node: NodeIndex) -> Option<&mut Keeper> {
        self.all.get_mut(&node)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Keeper> {
        self.all.values()
    }

    /// Keepers without ranks have no other sign of their launcher.
    pub(super) fn show_alive(&mut self, now: Instant) {
        self.collect_dismissed(now);
        if self.alive_at <= now {
            self.alive_at = now + LAUNCHER_ALIVE_EVERY;
            self.send_to_all(&ToKeeper::Alive);
            self.killed.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        }
    }

    /// When the first of those that ended is started again, or something else is due.
    pub(super) fn due(&self) -> Option<Instant> {
        let answers = self.all.values().filter_map(Keeper::answer_by);
        let dismissed = self.dismissed.iter().map(|(_, until)| *until);
        let others = answers.chain(dismissed).chain([self.alive_at]);
        self.all.values().filter_map(|keeper| keeper.due).chain(others).min()
    }

    /// Those that have not answered in time.
    pub(super) fn late(&self, now: Instant) -> Vec<NodeIndex> {
        let late = self.all.iter().filter(|(_, keeper)| keeper.answer_by().is_some_and(|by| by <= now));
        late.map(|(node, _)| *node).collect()
    }

    /// Those that are to be started again now.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<NodeIndex> {
        let due = self.all.iter_mut().filter(|(_, keeper)| keeper.due.is_some_and(|due| due <= now));
        due.map(|(node, keeper)| {
            keeper.due = None;
            *node
        })
        .collect()
    }

    /// A keeper has reported that it is there, on this host.
    pub(super) fn ready(&mut self, node: NodeIndex, host: String) {
        if let Some(keeper) = self.all.get_mut(&node) {
            (keeper.host, keeper.is_ready, keeper.again) = (host, true, true);
            (keeper.wait, keeper.answer_max) = (KEEPER_AGAIN_AFTER, KEEPER_ANSWER_MAX);
        }
    }

    /// A keeper has not answered in time. Returns how long it had; the next one has longer.
    pub(super) fn extend_answer_time(&mut self, node: NodeIndex) -> Duration {
        let Some(keeper) = self.all.get_mut(&node) else { return KEEPER_ANSWER_MAX };
        let next = (keeper.answer_max * 2).min(KEEPER_ANSWER_LONGEST);
        core::mem::replace(&mut keeper.answer_max, next)
    }

    /// The first keeper of a node did not come up: it is started again, by then at the latest.
    pub(super) fn start_first_later(&mut self, node: NodeIndex, by: Instant) {
        self.start_later(node);
        if let Some(keeper) = self.all.get_mut(&node) {
            keeper.due = keeper.due.min(Some(by));
        }
    }

    /// A keeper is to be started again. Returns whether it had been there since it was last started.
    pub(super) fn start_later(&mut self, node: NodeIndex) -> bool {
        let Some(keeper) = self.all.get_mut(&node) else { return false };
        keeper.due = Some(Instant::now() + keeper.wait);
        keeper.wait = (keeper.wait * 2).min(KEEPER_AGAIN_MAX);
        core::mem::replace(&mut keeper.is_ready, false)
    }

    /// Whether the keeper has reported that it is there.
    pub(super) fn is_ready(&self, node: NodeIndex) -> bool {
        self.all.get(&node).is_some_and(|keeper| keeper.is_ready)
    }

    /// Whether another host has got the place of its node since all ranks ran last.
    pub(super) fn is_moved(&self, node: NodeIndex) -> bool {
        self.all.get(&node).is_some_and(|keeper| keeper.is_moved)
    }

    pub(super) fn any_runs(&self) -> bool {
        self.all.values().any(|keeper| keeper.running.is_some())
    }

    /// Starts the keeper of a node, and gives it its part of the job.
    pub(super) fn start(
        &mut self,
        node: NodeIndex,
        plan: &Plan,
        (key, shows_parts, terminal): ([u8; 16], bool, Option<TerminalSpec>),
        events: &mut Events<Source>,
    ) -> Result<(), LauncherError> {
        let Some(keeper) = self.all.get_mut(&node) else { return Ok(()) };
        let place = &keeper.place;
        let failed = |error| LauncherError::Keeper { host: place.name(), error };
        let mut command = node_command(place, "__keeper")?;
        for name in withheld(plan) {
            command.env_remove(name);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        if place.host.is_some() {
            command.stderr(Stdio::piped());
        }
        // Killed, not asked to end: its guard cleans up, as when it is killed alone.
        end_with_launcher(&mut command, Signal::SIGKILL);
        let mut child = command.spawn().map_err(failed)?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        };
        let messages = child.stderr.take().map(ShellMessages::print).transpose().map_err(failed)?;
        let pipe = |fd: OwnedFd| non_blocking(fd).map_err(failed);
        let mut link = Link::new(pipe(from.into())?, pipe(to.into())?);
        let token = events.watch(link.from(), Source::Keeper(node)).map_err(failed)?;
        let is_late = core::mem::replace(&mut keeper.is_started, true) || keeper.is_moved;
        let again = keeper.again && !keeper.is_moved;
        let successor = SuccessorPlace::of(plan, node, &keeper.place, self.begun.elapsed());
        let begin =
            Begin { shows_parts, terminal, successor, ..begin(plan, &keeper.place, node, key, again) };
        link.send(&ToKeeper::Begin(Box::new(begin)));
        (keeper.shown, keeper.is_ready) = (0, false);
        let answer_by = is_late.then(|| Instant::now() + keeper.answer_max);
        keeper.running = Some(Running { child, messages, link, token, watches_room: false, answer_by });
        Ok(())
    }

    pub(super) fn send(&mut self, node: NodeIndex, message: &ToKeeper) {
        self.queue(node, |link| link.send(message));
    }

    pub(super) fn send_frame(&mut self, node: NodeIndex, frame: &Frame) {
        self.queue(node, |link| link.send_frame(frame));
    }

    pub(super) fn send_to_all(&mut self, message: &ToKeeper) {
        let frame = Frame::new(message);
        for node in self.nodes() {
            self.send_frame(node, &frame);
        }
    }

    /// `send` returns how many bytes wait for the keeper to read.
    fn queue(&mut self, node: NodeIndex, send: impl FnOnce(&mut Link) -> usize) {
        let Some(running) = self.all.get_mut(&node).and_then(|keeper| keeper.running.as_mut()) else {
            return;
        };
        if send(&mut running.link) > LINK_QUEUE_BYTES_MAX {
            // Its end is heard over the link.
            self.end(node);
        }
    }

    /// Asks `epoll` for room to write only while something waits.
    pub(super) fn watch_links(&mut self, events: &Events<Source>) -> io::Result<()> {
        for running in self.all.values_mut().filter_map(|keeper| keeper.running.as_mut()) {
            let waits = running.link.has_waiting();
            if waits != core::mem::replace(&mut running.watches_room, waits) {
                if waits {
                    events.add(running.link.to(), running.token, EpollFlags::EPOLLOUT)?;
                } else {
                    events.take_out(running.link.to());
                }
            }
        }
        Ok(())
    }

    /// Takes a keeper's messages. The error: it is gone.
    pub(super) fn hear(
        &mut self,
        node: NodeIndex,
        flags: EpollFlags,
        messages: &mut Vec<FromKeeper>,
    ) -> Result<(), LinkError> {
        let Some(running) = self.all.get_mut(&node).and_then(|keeper| keeper.running.as_mut()) else {
            return Ok(());
        };
        running.link.flush();
        // If the keeper is gone, the next read reports it.
        if flags.difference(EpollFlags::EPOLLOUT).is_empty() {
            return Ok(());
        }
        running.link.receive(messages)
    }

    /// Gives up a keeper whose link has ended. Returns how its process has ended: of itself, or by our hand.
    pub(super) fn lost(&mut self, node: NodeIndex) -> Option<KeeperEnd> {
        self.lost_by(node, Instant::now() + KEEPER_STATUS_MAX)
    }

    fn lost_by(&mut self, node: NodeIndex, until: Instant) -> Option<KeeperEnd> {
        let mut running = self.all.get_mut(&node).and_then(|keeper| keeper.running.take())?;
        // It has closed its end, and ends itself: how is worth a moment, and so are its last messages.
        let mut status = None;
        while Instant::now() < until {
            if status.is_none() {
                status = running.child.try_wait().ok().flatten();
            }
            if status.is_some() && running.messages.as_ref().is_none_or(ShellMessages::is_over) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let messages = running.messages.map(|messages| messages.last());
        if status.is_none() {
            let _ = running.child.kill();
            status = running.child.wait().ok();
        }
        Some(KeeperEnd { status: status?, messages })
    }

    /// Another host takes the place of a node's. The keeper there is a new one: it remembers nothing.
    pub(super) fn move_to(&mut self, node: NodeIndex, place: Node) {
        if let Some(keeper) = self.all.get_mut(&node) {
            keeper.host = place.name();
            keeper.place = place;
            keeper.is_moved = true;
            (keeper.due, keeper.silent) = (None, None);
            (keeper.wait, keeper.answer_max) = (KEEPER_AGAIN_AFTER, KEEPER_ANSWER_MAX);
        }
    }

    /// All ranks run, so every keeper knows the life.
    pub(super) fn settle(&mut self) {
        self.all.values_mut().for_each(|keeper| keeper.is_moved = false);
    }

    /// Ends the connection to a node, if there is one, without a wait. Returns its token.
    pub(super) fn disconnect(&mut self, node: NodeIndex) -> Option<u64> {
        let keeper = self.all.get_mut(&node)?;
        keeper.is_ready = false;
        let mut running = keeper.running.take()?;
        let _ = running.child.kill();
        // It ends at once, unless it waits for a disk.
        self.killed.push(running.child);
        Some(running.token)
    }

    /// The node leaves the job, and its keeper, which is there, is to end and to leave no candidate behind. A remote shell that is killed may not pass the word
    /// on, so it has some time. Returns the token of the connection.
    pub(super) fn dismiss(&mut self, node: NodeIndex) -> Option<u64> {
        self.send(node, &ToKeeper::GiveUp);
        let keeper = self.all.get_mut(&node)?;
        keeper.is_ready = false;
        let mut running = keeper.running.take()?;
        running.link.flush();
        let token = running.token;
        self.dismissed.push((running, Instant::now() + DISMISS_MAX));
        Some(token)
    }

    /// Collects the processes of keepers that were dismissed.
    fn collect_dismissed(&mut self, now: Instant) {
        for (mut running, until) in core::mem::take(&mut self.dismissed) {
            running.link.flush();
            if now >= until {
                let _ = running.child.kill();
                self.killed.push(running.child);
            } else if matches!(running.child.try_wait(), Ok(None)) {
                self.dismissed.push((running, until));
            }
        }
    }

    /// Ends the process of a keeper.
    pub(super) fn end(&mut self, node: NodeIndex) {
        if let Some(running) = self.all.get_mut(&node).and_then(|keeper| keeper.running.as_mut()) {
            let _ = running.child.kill();
        }
    }

    /// The launcher ends with an error: no keeper leaves a candidate behind. Waits until those on other hosts have ended, because remote shells that are killed
    /// may not have passed the word on.
    pub(super) fn give_up(&mut self) {
        self.send_to_all(&ToKeeper::GiveUp);
        let until = Instant::now() + GIVE_UP_MAX;
        let elsewhere = |keeper: &&mut Keeper| keeper.place.host.is_some();
        let runs = |running: &mut Running| {
            running.link.flush();
            matches!(running.child.try_wait(), Ok(None))
        };
        let mut any_runs = || {
            let keepers = self.all.values_mut().filter(elsewhere);
            // Each has its turn.
            keepers
                .filter_map(|keeper| keeper.running.as_mut())
                .map(runs)
                .fold(false, core::ops::BitOr::bitor)
        };
        while any_runs() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends all at once.
    pub(super) fn kill(&mut self) {
        for running in self.all.values_mut().filter_map(|keeper| keeper.running.as_mut()) {
            let _ = running.child.kill();
        }
        let until = Instant::now() + KEEPER_STATUS_MAX;
        self.collect_dismissed(Instant::now() + DISMISS_MAX);
        for node in self.nodes() {
            self.lost_by(node, until);
        }
    }
}

fn begin(plan: &Plan, place: &Node, node: NodeIndex, key: [u8; 16], again: bool) -> Begin {
    let program = &plan.program;
    Begin {
        version: VERSION.to_owned(),
        job: plan.job.0,
        key,
        node: node.0,
        again,
        ranks: plan.ranks,
        share: place.ranks,
        command: program.command.clone(),
        program_directory: program.directory.clone().into(),
        environment: program.environment.clone(),
        inherited: place.host.is_some().then(|| environment_for_others(plan)),
        directory: plan.directory.clone().into(),
        node_root: plan.own_directories.as_ref().map(|own| own.root.clone()),
        bind: place.bind,
        further: place.further.clone(),
        full_tags: plan.auth == AuthLevel::Full,
        provider: plan.provider.clone().map(Into::into),
        is_mpi: plan.is_mpi,
        replacement: plan.replacement.clone(),
        saves_processes: plan.saves == Saves::Process,
        own: plan.own_directories.as_ref().map(|own| own.membership(node, &plan.job_file)),
        keeps_ids: plan.keeps_ids,
        encryption: plan.encryption.as_ref().and_then(|encryption| encryption.key.clone()),
        shows_parts: false,
        terminal: None,
        successor: None,
    }
}
