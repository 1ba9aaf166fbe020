//! Processes that ranks of an MPI program spawn. The machine knows nothing of them: they are started here, and end with the job.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ckpt_glue::control::{Control, Message};
use ckpt_glue::enrolment::AddressTable;
use ckpt_glue::names::ExitStatus;
use ckpt_glue::pmi::{Member, SpawnCommand};
use client::parent_job::ParentJob;
use transport::{Life, Rank};

use super::super::limits::OUTPUT_GRACE;
use super::super::node_name;
use super::super::wire::FromKeeper;
use super::Shell;
use crate::spawn::descriptors;
use crate::spawn::process::{Group, SpawnSpec};
use crate::spawn::program::Program;

/// The spawned processes of this node.
#[derive(Debug, Default)]
pub(super) struct Spawned {
    processes: BTreeMap<Member, Group>,
    /// Killed with their life, or because another one of their world could not be started: how they end means nothing, and members of a later life
    /// may have their names.
    past: Vec<Group>,
    /// In the life that runs: where ports are that are older.
    moved: Option<(Life, AddressTable)>,
}

/// Why processes are not started: for the program in one word, and for people.
struct NotStarted {
    word: &'static str,
    why: String,
}

impl Spawned {
    pub(super) fn iter(&self) -> impl Iterator<Item = (Member, Group)> {
        self.processes.iter().map(|(member, group)| (*member, *group))
    }

    pub(super) fn group(&self, member: Member) -> Option<Group> {
        self.processes.get(&member).copied()
    }

    /// Ends all of them.
    pub(super) fn give_up(&mut self) {
        self.give_up_if(|_| true);
    }

    fn give_up_if(&mut self, wanted: impl Fn(Member) -> bool) {
        let given_up = self.processes.extract_if(.., |member, _| wanted(*member)).map(|(_, group)| group);
        for group in given_up {
            group.kill();
            self.past.push(group);
        }
    }

    /// Collects those that were given up. Returns which have ended.
    fn collect_past(&mut self) -> Vec<Group> {
        self.past.extract_if(.., |group| group.try_wait().is_some()).collect()
    }
}

impl Shell {
    /// Starts all processes of a world, or none, and reports which. `running`: processes of the job that run.
    pub(super) fn start_world(
        &mut self,
        world: u32,
        running: u32,
        commands: &[SpawnCommand],
        life: Option<Life>,
    ) {
        let outcome = self.try_start_world(world, running, commands, life);
        let outcome = outcome.map_err(|NotStarted { word, why }| (word.to_owned(), why));
        self.send_to_launcher(&FromKeeper::WorldStarted { world, outcome });
    }

    fn try_start_world(
        &mut self,
        world: u32,
        running: u32,
        commands: &[SpawnCommand],
        life: Option<Life>,
    ) -> Result<u32, NotStarted> {
        let programs: Vec<(u32, Program)> = commands
            .iter()
            .map(|command| Ok((command.processes, program(&self.site.program, command)?)))
            .collect::<Result<_, NotStarted>>()?;
        let ranks = programs.iter().map(|(processes, _)| processes).sum();
        descriptors::provide(running.saturating_add(ranks))
            .map_err(|error| NotStarted { word: "no_descriptors", why: error.to_string() })?;
        let each = programs.iter().flat_map(|(processes, program)| (0..*processes).map(move |_| program));
        for (rank, program) in (0..).zip(each) {
            let member = Member { world, rank: Rank(rank) };
            if let Err(error) = self.start_spawned(member, ranks, program, life) {
                self.spawned.give_up_if(|other| other.world == world);
                let program = program.command[0].to_string_lossy();
                return Err(NotStarted { word: "cannot_start", why: format!("{program}: {error}") });
            }
        }
        Ok(ranks)
    }

    /// The addresses that ranks receive before they run: of ports that are older than this life. All receive the same, in several parts.
    pub(super) fn note_ports(&mut self, control: &Control) {
        let Message::Addresses { ports } = &control.message else { return };
        if self.spawned.moved.as_ref().is_none_or(|(life, _)| *life != control.life) {
            self.spawned.moved = Some((control.life, AddressTable::new()));
        }
        let Some((_, moved)) = &mut self.spawned.moved else { return };
        if ports.first().is_some_and(|entry| !moved.contains_key(&entry.port)) {
            moved.extend(ports.iter().map(|entry| (entry.port, entry.rails.clone())));
        }
    }

    fn start_spawned(
        &mut self,
        member: Member,
        ranks: u32,
        program: &Program,
        life: Option<Life>,
    ) -> io::Result<()> {
        let pmi = self.pmi_socket(member)?;
        let parent_job = life.map(|life| {
            let moved = self.spawned.moved.as_ref().filter(|(of, _)| *of == life);
            let moved = moved.map_or_else(AddressTable::new, |(_, ports)| ports.clone());
            let parent_job = ParentJob { job: self.site.job, life, auth: self.site.auth, moved };
            parent_job
                .text()
                .ok_or_else(|| io::Error::other("there are too many restored ports to tell it of"))
        });
        let parent_job = parent_job.transpose()?;
        let (local, locals) = (member.rank.0, ranks);
        let spec = SpawnSpec {
            rank: member.rank.0,
            ranks,
            local,
            locals,
            pmi,
            key: self.given.key_file.variable(),
            parent_job,
        };
        let (group, pipes) = Group::spawn(program, spec, self.given.descriptors)?;
        self.guard.add(group.pid);
        self.spawned.processes.insert(member, group);
        self.watch_pipes(member, pipes)
    }

    /// Notices which spawned processes have ended. Earlier messages of one count before its end.
    pub(super) fn collect_spawned(&mut self) {
        let ended = |(member, group): (&Member, &Group)| Some((*member, group.try_wait()?));
        let ended: Vec<(Member, ExitStatus)> = self.spawned.processes.iter().filter_map(ended).collect();
        for (member, status) in ended {
            self.hear_last_of_pmi(member);
            let Some(group) = self.spawned.processes.remove(&member) else { continue };
            self.forget_group(group);
            self.send_to_launcher(&FromKeeper::SpawnedEnded { who: member, status });
        }
        for group in self.spawned.collect_past() {
            self.forget_group(group);
        }
    }

    /// The first process of a group has ended, and those that it left behind with it.
    fn forget_group(&mut self, group: Group) {
        self.guard.remove(group.pid);
    }

    /// Waits until all that were spawned are gone. They have been killed: one that is in the kernel ends when it leaves it.
    pub(super) fn wait_for_spawned(&mut self) {
        let until = Instant::now() + OUTPUT_GRACE;
        while !self.spawned.past.is_empty() && Instant::now() < until {
            self.collect_spawned();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The program that a command starts, if it can be started. Unknown hints are ignored, as MPI has it.
fn program(own: &Program, command: &SpawnCommand) -> Result<Program, NotStarted> {
    let hint =
        |name: &str| command.hints.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    if let Some(host) = hint("host")
        .or_else(|| hint("hosts"))
        .into_iter()
        .flat_map(|hosts| hosts.split(','))
        .find(|host| !is_here(host))
    {
        let why = format!("host '{host}' is not this one, and processes are spawned here only");
        return Err(NotStarted { word: "no_such_host", why });
    }
    let mut program = Program { command: vec![OsString::from(&command.program)], ..own.clone() };
    if let Some(folder) = hint("wdir") {
        // A name that begins at the root counts as it is.
        program.directory = own.directory.join(folder);
    }
    let not =
        |error: crate::error::LauncherError| NotStarted { word: "no_such_program", why: error.to_string() };
    let folders =
        hint("path").into_iter().flat_map(|path| path.split(':')).filter(|folder| !folder.is_empty());
    let near = folders.map(|folder| own.directory.join(folder).join(&command.program));
    program.command[0] = match near.into_iter().find(|file: &PathBuf| file.is_file()) {
        Some(file) => program.find(file.as_os_str()).map_err(not)?.into_os_string(),
        None => program.find(&program.command[0]).map_err(not)?.into_os_string(),
    };
    program.command.extend(command.arguments.iter().map(OsString::from));
    Ok(program)
}

/// Whether a host's name is that of this one, with its domain or without.
fn is_here(host: &str) -> bool {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    host.parse::<std::net::IpAddr>().map_or_else(
        |_| host == "localhost" || short(host) == short(&node_name()),
        |address| address.is_loopback(),
    )
}
