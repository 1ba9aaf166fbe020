//! The keeper's process: one for each node. It starts the ranks of its node, takes their messages and output, and ends them.
//!
//! The machine ([`ckpt_glue::Keeper`]) decides; this carries out, and talks to the coordinator over its standard input and output
//! ([`wire`](super::wire)). When that link ends, the launcher is gone: everything that runs here is ended at once, and the guard cleans up.

mod copy_parts;
mod files;
mod images;
mod input;
mod keyboard;
mod launcher_link;
mod link;
mod nics;
mod node_lock;
mod nodes;
mod output;
mod pmi;
mod ranks;
mod receive_address;
mod silent;
mod spawned;
mod successor;
mod suspension;
pub(super) mod terminal;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Instant;

use ckpt_glue::control::{Control, ControlKey, ExitedRecord, Message};
use ckpt_glue::keeper::{Input, Keeper, Output};
use ckpt_glue::names::{NodeIndex, Party};
use ckpt_glue::pmi::Member;
use ckpt_glue::sabotage::Sabotage;
use drivers::NicRequest;
use nix::sys::epoll::{EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use store::{Directory, Key};
use transport::config::AuthLevel;
use transport::{JobId, Rank};

use super::events::{Events, epoll_timeout};
use super::key::KeyFile;
use super::limits::EVENTS_PER_ROUND;
use super::nodes::NoState;
use super::version::VERSION;
use super::wire::{Begin, FromKeeper, Link, LinkError, Receiver, Sealed, ToKeeper};
use super::{Saves, node_name, take_signals};
use crate::mpi::replacement::Replacement;
use crate::spawn::descriptors;
use crate::spawn::guard::Guard;
use crate::spawn::namespace::Namespaces;
use crate::spawn::program::Program;
use copy_parts::CopyParts;
use launcher_link::LauncherLink;
use link::{finish_sending, greeting, open};
use nics::Nics;
use node_lock::NodeLock;
use nodes::OwnDirectory;
use output::Outputs;
use pmi::PmiSide;
use ranks::{Given, Ranks};
pub(crate) use receive_address::environment_for_others;
use spawned::Spawned;
use terminal::OwnTerminal;

/// This node's part of a job.
#[derive(Debug)]
struct Site {
    job: JobId,
    key: [u8; 16],
    node: NodeIndex,
    ranks: u32,
    program: Program,
    directory: PathBuf,
    bind: SocketAddr,
    ranks_bind: SocketAddr,
    /// The node on its other networks.
    further: Vec<IpAddr>,
    auth: AuthLevel,
    provider: Option<PathBuf>,
    /// The MPI library that programs get in place of their own.
    replacement: Option<Replacement>,
    saves: Saves,
    /// The key with which images are encrypted, if they are.
    encryption: Option<Key>,
    /// Limit of bytes of images and parity that this node reads and writes in a second.
    disk_bytes_per_s: Option<u64>,
}

/// Where an event comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Signals,
    Link,
    Connection(Rank),
    /// A process's PMI socket.
    Pmi(Member),
    /// A process's output.
    Pipe,
    /// Room in a rank's input.
    Input(Rank),
    /// The thread that works in the node's own directory.
    Disk,
    /// The node's protector.
    Protector,
    /// The thread that packs parts of copies.
    Copies,
    /// The thread that reads and writes images.
    Images,
}

struct Shell {
    site: Site,
    control_key: ControlKey,
    given: Given,
    started: Instant,
    keeper: Keeper,
    ranks: Ranks,
    nics: Nics,
    spawned: Spawned,
    events: Events<Source>,
    signals: SignalFd,
    launcher: LauncherLink,
    guard: Guard,
    lock: NodeLock,
    pmi: PmiSide,
    files: files::Files,
    outputs: Outputs,
    terminal: OwnTerminal,
    inputs: input::Inputs,
    suspension: suspension::Suspension,
    silence: silent::Silence,
    /// The node has a directory of its own.
    own: Option<OwnDirectory>,
    images: images::Images,
    /// A part of a copy has been asked for.
    copy_parts: Option<CopyParts>,
}

/// Why the keeper's process ends.
enum End {
    /// The job is over.
    Leave,
    /// The launcher is gone, or its messages make no sense.
    Lost(LinkError),
    /// Somebody wants this process to end.
    Signal,
}

/// The keeper's process itself. Returns whether it ended as it should.
pub fn keep() -> bool {
    let mut link = match open() {
        Ok(link) => link,
        Err(error) => {
            crate::print_message(format_args!(
                "keeper: its standard input and output are no link to a launcher: {error}"
            ));
            return false;
        }
    };
    let (begun, early) = match greeting(&mut link) {
        Ok(greeting) => greeting,
        Err(LinkError::OtherVersion { found }) => {
            let problem = format!(
                "it has version {VERSION} of stillwire, and the launcher {found}: install the same on both"
            );
            link.send(&FromKeeper::Unfit { problem });
            finish_sending(&mut link);
            return false;
        }
        Err(error) => {
            crate::print_message(format_args!(
                "keeper: no word of the launcher that has started it: {error}"
            ));
            return false;
        }
    };
    match Shell::new(begun, link) {
        Ok(mut shell) => shell.keep(early),
        Err((problem, mut link)) => {
            link.send(&FromKeeper::Unfit { problem });
            finish_sending(&mut link);
            false
        }
    }
}

impl Site {
    fn new(begin: &Begin) -> Result<Site, NoState> {
        let directory = match &begin.node_root {
            Some(root) => root.here()?.join(begin.node.to_string()),
            None => PathBuf::from(&begin.directory),
        };
        let mut environment = begin.environment.clone();
        let below = begin.inherited.clone().unwrap_or_else(|| std::env::vars_os().collect());
        let ranks_bind = receive_address::of_ranks(begin.bind, &mut environment, below);
        Ok(Site {
            job: JobId(begin.job),
            key: begin.key,
            node: NodeIndex(begin.node),
            ranks: begin.ranks,
            program: Program {
                command: begin.command.clone(),
                directory: PathBuf::from(&begin.program_directory),
                environment,
                inherited: begin.inherited.clone(),
            },
            directory,
            bind: begin.bind,
            ranks_bind,
            further: begin.further.clone(),
            auth: if begin.full_tags { AuthLevel::Full } else { AuthLevel::Header },
            provider: begin.provider.as_ref().map(PathBuf::from),
            replacement: begin.replacement.clone(),
            saves: if begin.saves_processes { Saves::Process } else { Saves::Points },
            encryption: begin.encryption.clone(),
            disk_bytes_per_s: begin.own.as_ref().and_then(|own| own.budget.limits.disk_bytes_per_s),
        })
    }

    /// The reason why ranks cannot be started here, as far as it can be seen in advance.
    fn problem(&self, share: u32) -> Option<String> {
        let nic = match self.program.check().and_then(|()| Ok(self.program.nic()?)) {
            Ok(choice) => NicRequest { choice, ranks_here: Some(share) },
            Err(error) => return Some(error.to_string()),
        };
        if let Err(error) = std::net::UdpSocket::bind((self.bind.ip(), 0)) {
            let address = self.bind.ip();
            return Some(format!(
                "ranks cannot receive on {address} ({error}); is it an address of this host?"
            ));
        }
        for address in &self.further {
            if let Err(error) = std::net::UdpSocket::bind((*address, 0)) {
                return Some(format!(
                    "nothing can be received on {address} ({error}); is it an address of this host?"
                ));
            }
        }
        let is_granted = || {
            let file = self.program.find(&self.program.command[0]);
            file.is_ok_and(|file| drivers::xdp::file_has_capabilities(&file))
        };
        let refused = match drivers::nic::check(&nic, self.bind.ip()) {
            Ok(()) if !is_granted() => drivers::nic::check_capabilities(&nic),
            other => other,
        };
        if let Err(error) = refused {
            return Some(error.to_string());
        }
        if let Some(library) = self.provider.as_ref().filter(|library| !library.is_file()) {
            return Some(format!("the provider {} is not there", library.display()));
        }
        self.replacement.as_ref()?.problem()
    }
}

impl Shell {
    fn new(begin: Begin, mut link: Link) -> Result<Shell, (String, Link)> {
        let mut site = match Site::new(&begin) {
            Ok(site) => site,
            Err(error) => return Err((error.to_string(), link)),
        };
        if let Some(problem) = site.problem(begin.share) {
            return Err((problem, link));
        }
        let mut parts = || -> Result<_, crate::error::LauncherError> {
            let mut events = Events::new()?;
            let signals = take_signals(&[Signal::SIGUSR1])?;
            events.watch(&signals, Source::Signals)?;
            let of_link = events.watch(link.from(), Source::Link)?;
            let (storage, own) = match &begin.own {
                Some(place) => {
                    let storage = Directory::create(&site.directory)?;
                    (storage, Some(OwnDirectory::start(&site, place, &mut events)?))
                }
                None => (Directory::open(&site.directory)?, None),
            };
            if let Some(replacement) = &site.replacement {
                // The loader takes paths only; nobody else can have this one lead elsewhere, as it was checked.
                replacement.equip(&mut site.program, &site.directory)?;
            }
            let descriptors = descriptors::provide(begin.share)?;
            let lock = NodeLock::open(&storage, site.node, begin.own.is_some())?;
            let mut guard = Guard::start(site.job, Path::new(&begin.directory), lock.share()?)?;
            guard.set_successor(site.successor(&begin, lock.path()).as_ref());
            let images = images::Images::start(&site, &mut events)?;
            let namespaces = begin.keeps_ids.then(Namespaces::new).transpose()?;
            let given = Given { key_file: KeyFile::new(&site.key)?, descriptors, namespaces };
            Ok(((events, of_link), signals, own, given, (lock, guard, images)))
        };
        let ((events, of_link), signals, own, given, (lock, guard, images)) = match parts() {
            Ok(parts) => parts,
            Err(error) => return Err((error.to_string(), link)),
        };
        link.send(&FromKeeper::Ready { version: VERSION.to_owned(), host: node_name() });
        let keeper = if begin.again { Keeper::again } else { Keeper::new };
        Ok(Shell {
            control_key: ControlKey::new(&site.key),
            given,
            started: Instant::now(),
            keeper: keeper(site.job, site.node, Sabotage::none()),
            ranks: Ranks::default(),
            nics: Nics::default(),
            spawned: Spawned::default(),
            events,
            signals,
            launcher: LauncherLink::new(link, of_link),
            guard,
            lock,
            pmi: PmiSide::new(begin.is_mpi),
            files: files::Files::default(),
            outputs: Outputs::new(begin.shows_parts),
            terminal: OwnTerminal::new(begin.terminal.clone()),
            inputs: input::Inputs::default(),
            suspension: suspension::Suspension::default(),
            silence: silent::Silence::default(),
            own,
            images,
            copy_parts: None,
            site,
        })
    }

    /// Until the job is over; `early`: messages that have come already. Returns whether it ended as it should.
    fn keep(&mut self, early: Vec<ToKeeper>) -> bool {
        let end = match self.on_messages(early) {
            Some(end) => Ok(end),
            None => self.run(),
        };
        let end = match end {
            Ok(end) => end,
            Err(error) => {
                crate::print_message(format_args!("keeper of {}: {error}", node_name()));
                return self.give_up();
            }
        };
        match end {
            End::Leave => {
                self.leave();
                self.guard.dismiss();
                finish_sending(&mut self.launcher.link);
                true
            }
            End::Lost(LinkError::Closed) | End::Signal => self.give_up(),
            End::Lost(error) => {
                crate::print_message(format_args!("keeper of {}: the launcher's link: {error}", node_name()));
                self.give_up()
            }
        }
    }

    /// Ends everything; the guard, which is not dismissed, cleans up behind.
    fn give_up(&mut self) -> bool {
        self.kill_all();
        // Nothing of this process may run on, not even destructors.
        std::process::exit(1);
    }

    fn kill_all(&mut self) {
        self.ranks.processes.values().for_each(|process| process.group.kill());
        self.spawned.give_up();
    }

    fn run(&mut self) -> io::Result<End> {
        let mut events = vec![EpollEvent::empty(); EVENTS_PER_ROUND];
        loop {
            self.pump();
            self.report_ranks();
            self.watch_link()?;
            let timeout = self.timeout();
            let count = self.events.wait(&mut events, timeout)?;
            for event in &events[..count] {
                if let Some(end) = self.on_event(event.data(), event.events()) {
                    return Ok(end);
                }
            }
            let now = self.now();
            if self.keeper.poll_timeout().is_some_and(|due| due <= now) {
                self.keeper.handle_timeout(now);
            }
            if self.launcher_is_gone() {
                return Ok(End::Lost(LinkError::Closed));
            }
            self.look_at_lock();
            self.look_at_silent();
            self.hand_over_parts();
            self.look_at_keyboards();
        }
    }

    fn now(&self) -> transport::Instant {
        let nanos = u64::try_from(self.suspension.running_for(self.started).as_nanos()).unwrap_or(u64::MAX);
        transport::Instant::from_nanos(nanos)
    }

    fn timeout(&self) -> EpollTimeout {
        let now = self.now();
        let machine = self.keeper.poll_timeout().map(|due| due.since(now));
        let others = self.silence.due().into_iter().chain(self.outputs.due()).chain(self.inputs.due());
        let others = others.chain(self.lock.due()).chain(self.launcher_due());
        let others = others.map(|due| due.saturating_duration_since(Instant::now()));
        let machine = machine.filter(|_| !self.suspension.is_on());
        epoll_timeout(machine.into_iter().chain(others).min())
    }

    fn seal(&self, control: &Control) -> Sealed {
        Sealed::new(&self.control_key, control)
    }

    /// Carries out the machine's outputs until it has none.
    fn pump(&mut self) {
        while let Some(output) = self.keeper.poll_output() {
            self.on_keeper(output);
        }
    }

    fn feed_keeper(&mut self, input: Input) {
        let now = self.now();
        self.keeper.handle(now, input);
    }

    fn on_keeper(&mut self, output: Output) {
        match output {
            Output::Send { to: Party::Rank(rank), control } => {
                self.note_ports(&control);
                self.send(rank, &control);
            }
            Output::Send { to, control } => {
                if let Some(to) = Receiver::of(to) {
                    let control = self.seal(&control);
                    self.send_to_launcher(&FromKeeper::Control { to, control });
                }
            }
            Output::Spawn { rank, decision } => self.spawn(rank, decision),
            Output::Kill { rank, life } => self.kill(rank, life),
            Output::WriteExitedImage { rank, generation, record } => {
                let (rank, generation, record) = (rank.0, generation, record.emit());
                self.send_to_launcher(&FromKeeper::ExitedImage { rank, generation, record });
            }
            Output::Pmi(input) => self.on_pmi_of_agent(input),
            Output::Lock => self.want_lock(),
            Output::Lease(lease) => self.guard.set_lease(lease),
            // Another launcher may decide about this node from now on.
            Output::LeaseOver => {
                self.kill_all();
                self.send_to_launcher(&FromKeeper::LeaseOver);
                finish_sending(&mut self.launcher.link);
                self.give_up();
            }
        }
    }

    fn on_event(&mut self, token: u64, flags: EpollFlags) -> Option<End> {
        match self.events.source(token) {
            None => {}
            Some(Source::Signals) => {
                while let Ok(Some(info)) = self.signals.read_signal() {
                    if info.ssi_signo != Signal::SIGCHLD as u32 {
                        return Some(End::Signal);
                    }
                    self.collect_processes();
                    if self.guard.has_ended() {
                        crate::print_message(format_args!(
                            "keeper of {}: its guard was killed, and nothing would end its ranks if this process were; it ends them and starts again",
                            node_name()
                        ));
                        return Some(End::Signal);
                    }
                }
            }
            Some(Source::Link) => return self.on_link(flags),
            Some(Source::Connection(rank)) => self.on_connection(token, rank, flags),
            Some(Source::Pmi(member)) => self.on_pmi_socket(member, flags),
            Some(Source::Pipe) => self.on_pipe(token),
            Some(Source::Input(rank)) => self.write_input(rank),
            Some(Source::Disk) => self.on_disk(),
            Some(Source::Copies) => self.on_copying(),
            Some(Source::Images) => self.on_images(),
            Some(Source::Protector) => self.on_protector(),
        }
        None
    }

    fn on_link(&mut self, flags: EpollFlags) -> Option<End> {
        self.launcher.link.flush();
        if flags.difference(EpollFlags::EPOLLOUT).is_empty() {
            return None;
        }
        let mut messages = Vec::new();
        let received = self.launcher.link.receive(&mut messages);
        self.on_messages(messages).or_else(|| received.err().map(End::Lost))
    }

    fn on_messages(&mut self, messages: Vec<ToKeeper>) -> Option<End> {
        self.launcher.has_spoken();
        for message in messages {
            if matches!(message, ToKeeper::Leave) {
                return Some(End::Leave);
            }
            if matches!(message, ToKeeper::GiveUp) {
                self.guard.set_successor(None);
                return Some(End::Lost(LinkError::Closed));
            }
            if let Err(error) = self.on_message(message) {
                return Some(End::Lost(error.into()));
            }
            self.pump();
        }
        None
    }

    fn on_message(&mut self, message: ToKeeper) -> Result<(), ckpt_glue::error::Malformed> {
        match message {
            ToKeeper::Control(control) => {
                let control = control.open(&self.control_key)?;
                self.feed_keeper(Input::Control(control));
            }
            ToKeeper::PmiAnswer { rank, answer } => {
                if let Message::PmiAnswer { answer } = answer.open(&self.control_key)?.message {
                    self.feed_keeper(Input::PmiAnswer { rank: Rank(rank), answer });
                }
            }
            ToKeeper::ToProcesses { ranks, control } => {
                let control = control.open(&self.control_key)?;
                for rank in ranks.into_iter().map(Rank) {
                    self.note_nic_request(rank, &control.message);
                    self.send_to_process(rank, &control);
                }
            }
            ToKeeper::Nic { nic } => self.note_nic(&nic),
            ToKeeper::SpeakFor { rank } => drop(self.pmi.spoken_for.insert(Rank(rank))),
            ToKeeper::PmiLine { who, line } => self.say_over_pmi(who, &line),
            ToKeeper::Excuse { rank, life } => {
                self.feed_keeper(Input::PortsAbandoned { rank: Rank(rank), life });
            }
            ToKeeper::Judged { rank, life, status } => self.on_judged(Rank(rank), life, status),
            ToKeeper::Kill { who } => self.kill_member(who),
            ToKeeper::WriteExited { rank, generation, record, pmi } => {
                let record = ExitedRecord::parse(&record)?;
                self.write_exited(Rank(rank), generation, record, pmi);
            }
            ToKeeper::StartWorld { world, running, commands, life } => {
                self.start_world(world, running, &commands, life);
            }
            ToKeeper::EndSpawned => self.spawned.give_up(),
            ToKeeper::Look { number, worlds, members } => self.look_at(number, worlds, &members),
            ToKeeper::NameWorld { name } => self.name_world(&name),
            ToKeeper::NoteFiles => self.note_files(),
            ToKeeper::Drain { number } => {
                self.hear_output();
                self.send_to_launcher(&FromKeeper::Drained { number });
            }
            ToKeeper::Shown { bytes } => self.shown(bytes),
            ToKeeper::Suspend => self.suspend(),
            ToKeeper::Resume => self.resume(),
            ToKeeper::Resize(size) => self.resize(size),
            ToKeeper::InputLife { life, ranks, replay_end } => {
                self.on_input_life(life, ranks, replay_end);
            }
            ToKeeper::Input { rank, life, offset, bytes, end } => {
                self.on_input(Rank(rank), life, offset, &bytes, end);
            }
            ToKeeper::Node { number, task } => self.on_node_task(number, task),
            ToKeeper::Copy(part) => self.on_copy(part),
            ToKeeper::GiveUpCopy { number } => self.on_copy_given_up(number),
            // Said first, and not again; and the last words, which are heard before.
            ToKeeper::Begin(_) | ToKeeper::Leave | ToKeeper::GiveUp | ToKeeper::Alive => {}
        }
        Ok(())
    }

    /// The last things: output of ended processes, and files that MPI libraries have left in memory.
    fn leave(&mut self) {
        self.kill_all();
        self.wait_for_spawned();
        self.wait_for_firsts();
        self.remove_files();
        self.hear_last_outputs();
        self.images.leave();
        self.leave_disk();
        self.copy_parts = None;
    }
}
