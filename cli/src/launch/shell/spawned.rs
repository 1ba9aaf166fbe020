//! Processes that ranks of an MPI program spawn. The keeper knows nothing of them: they are started here, and end with the job.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use ckpt_glue::job;
use ckpt_glue::names::ExitStatus;
use ckpt_glue::pmi::{self, Member, SpawnCommand};
use ckpt_glue::recovery::Ending;
use session::launch::company_text;
use transport::Rank;

use super::super::descriptors;
use super::super::notice::{MpiNotice, Notice};
use super::super::process::{Group, Program, Seat};
use super::super::{Plan, Saves, Verdict};
use super::mpi::MpiSide;
use super::{Shell, node_name};
use crate::text;

/// The spawned processes of a job.
#[derive(Debug, Default)]
pub(super) struct Spawned {
    processes: BTreeMap<Member, Running>,
    /// People have been told that nothing but these runs any more.
    told: bool,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    group: Group,
    /// It was started, and another one of its world could not be, or its life is over: its end means nothing.
    given_up: bool,
}

/// Why processes are not started: for the program in one word, and for people.
struct NotStarted {
    word: &'static str,
    why: String,
}

impl Spawned {
    pub(super) fn iter(&self) -> impl Iterator<Item = (Member, Group)> {
        self.processes.iter().map(|(member, running)| (*member, running.group))
    }

    pub(super) fn group(&self, member: Member) -> Option<Group> {
        self.processes.get(&member).map(|running| running.group)
    }

    pub(super) fn kill(&self) {
        self.iter().for_each(|(_, group)| group.kill());
    }

    /// Ends them with the life in which they were spawned.
    pub(super) fn give_up(&mut self) {
        self.processes.values_mut().for_each(|running| running.given_up = true);
        self.kill();
    }
}

impl Shell<'_> {
    pub(super) fn on_spawn(&mut self, by: Member, world: u32, commands: &[SpawnCommand]) {
        let outcome = self.start_world(world, commands);
        match &outcome {
            Ok(processes) => {
                self.tell(&Notice::Mpi(MpiNotice::Spawned { by, world, processes: *processes }));
            }
            Err(NotStarted { why, .. }) => self.tell(&Notice::Mpi(MpiNotice::SpawnRefused { by, why })),
        }
        let outcome = outcome.map(drop).map_err(|not| not.word);
        self.tell_pmi(pmi::Input::Spawned { world, outcome });
    }

    /// Starts all processes of a world, or none. Returns how many.
    fn start_world(&mut self, world: u32, commands: &[SpawnCommand]) -> Result<u32, NotStarted> {
        let programs: Vec<(u32, Program)> = commands
            .iter()
            .map(|command| Ok((command.processes, program(self.plan, command)?)))
            .collect::<Result<_, NotStarted>>()?;
        let ranks = programs.iter().map(|(processes, _)| processes).sum();
        let running = u32::try_from(self.spawned.processes.len()).unwrap_or(u32::MAX);
        let all = self.plan.ranks.saturating_add(running).saturating_add(ranks);
        descriptors::provide(all)
            .map_err(|error| NotStarted { word: "no_descriptors", why: error.to_string() })?;
        let each = programs.iter().flat_map(|(processes, program)| (0..*processes).map(move |_| program));
        for (rank, program) in (0..).zip(each) {
            let member = Member { world, rank: Rank(rank) };
            if let Err(error) = self.start_spawned(member, ranks, program) {
                for (_, running) in self.spawned.processes.range_mut(world_of(member)) {
                    running.given_up = true;
                    running.group.kill();
                }
                let program = program.command[0].to_string_lossy();
                return Err(NotStarted { word: "cannot_start", why: format!("{program}: {error}") });
            }
        }
        Ok(ranks)
    }

    fn start_spawned(&mut self, member: Member, ranks: u32, program: &Program) -> io::Result<()> {
        let pmi: UnixStream = self.pmi_socket(member)?;
        let (job, life) = (self.plan.job, self.mpi.as_ref().map(MpiSide::life));
        let company = life.filter(|_| self.plan.saves == Saves::Process).map(|life| company_text(job, life));
        let seat = Seat { rank: member.rank.0, ranks, pmi, key: self.key_file.variable(), company };
        let (group, pipes) = Group::spawn(program, seat, self.descriptors)?;
        self.guard.add(group.pid);
        self.spawned.processes.insert(member, Running { group, given_up: false });
        self.watch_pipes(member, pipes)
    }

    /// Notices which spawned processes have ended. What one said before counts before its end.
    pub(super) fn collect_spawned(&mut self) {
        let ended = |(member, running): (&Member, &Running)| Some((*member, running.group.try_wait()?));
        let ended: Vec<(Member, ExitStatus)> = self.spawned.processes.iter().filter_map(ended).collect();
        for (member, status) in ended {
            self.hear_last_of_pmi(member);
            let Some(running) = self.spawned.processes.remove(&member) else { continue };
            // What it started and left behind goes with it.
            running.group.kill();
            self.guard.remove(running.group.pid);
            if !running.given_up {
                self.tell(&Notice::Mpi(MpiNotice::Ended { member, status }));
                self.judge(member, status);
            }
            self.end_pmi(member);
            self.pump();
        }
    }

    /// A spawned process may end when it has finished, and with success, as any other.
    fn judge(&mut self, member: Member, status: ExitStatus) {
        let mpi = self.mpi.as_ref();
        let (begun, finished) = mpi.map_or((false, false), |mpi| {
            (mpi.server().has_begun(member), mpi.server().has_finished(member))
        });
        let code = match status {
            // One that never began is another matter, which the server judges.
            ExitStatus::Code(0) if finished || !begun => return,
            ExitStatus::Code(0) => None,
            ExitStatus::Code(code) => Some(code),
            ExitStatus::Signal(number) => Some(number.saturating_add(128)),
        };
        self.fail(member, format!("{member} died ({})", text::status(status)), code);
    }

    /// Ends the job because of a process that was spawned, or of what has become of it.
    pub(super) fn fail(&mut self, member: Member, why: String, exit_code: Option<u8>) {
        if !self.may_fail() {
            return;
        }
        self.tell(&Notice::Mpi(MpiNotice::BrokenOff { words: &why }));
        self.verdict = Some(Verdict { words: format!("{why}; the job ends"), exit_code });
        if let Some(group) = self.spawned.group(member) {
            group.kill();
        }
        self.tell_job(job::Input::Stop);
        self.kill_spawned_of_ended_job();
    }

    /// Whether the job is not being ended already, for a reason of its own.
    pub(super) fn may_fail(&self) -> bool {
        let only_spawned = self.over.is_some_and(|report| report.ending == Ending::Finished);
        self.verdict.is_none() && self.stops == 0 && (self.is_running() || only_spawned)
    }

    /// A person wants the end.
    pub(super) fn stop(&mut self) {
        self.tell_job(job::Input::Stop);
        if let Some(report) = &mut self.over
            && !self.spawned.processes.is_empty()
        {
            report.ending = Ending::Stopped;
            self.spawned.kill();
        }
    }

    /// Whether no spawned process runs, once no rank does. Those of a job that did not end well are ended.
    pub(super) fn spawned_are_over(&mut self) -> bool {
        if self.spawned.processes.is_empty() {
            return true;
        }
        let ended_well = self.kill_spawned_of_ended_job();
        if ended_well && !core::mem::replace(&mut self.spawned.told, true) {
            let processes = self.spawned.processes.len();
            self.tell(&Notice::Mpi(MpiNotice::SpawnedRemain { processes }));
        }
        false
    }

    /// Returns whether the job is over and has ended well.
    fn kill_spawned_of_ended_job(&self) -> bool {
        let Some(report) = self.over else { return false };
        let well = report.ending == Ending::Finished && self.verdict.is_none();
        if !well {
            self.spawned.kill();
        }
        well
    }
}

fn world_of(member: Member) -> std::ops::RangeInclusive<Member> {
    Member { rank: Rank(0), ..member }..=Member { rank: Rank(u32::MAX), ..member }
}

/// What a command starts, which can be started. Hints that are not known are passed over, as MPI has it.
fn program(plan: &Plan, command: &SpawnCommand) -> Result<Program, NotStarted> {
    let hint =
        |name: &str| command.hints.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    if let Some(host) = hint("host")
        .or_else(|| hint("hosts"))
        .into_iter()
        .flat_map(|hosts| hosts.split(','))
        .find(|host| !is_here(host))
    {
        let why = format!("host '{host}' is not this one, and ranks are started here only");
        return Err(NotStarted { word: "no_such_host", why });
    }
    let mut program = Program { command: vec![OsString::from(&command.program)], ..plan.program.clone() };
    if let Some(folder) = hint("wdir") {
        // A name that begins at the root counts as it is.
        program.directory = plan.program.directory.join(folder);
    }
    let not = |error: crate::error::CliError| NotStarted { word: "no_such_program", why: error.to_string() };
    let folders =
        hint("path").into_iter().flat_map(|path| path.split(':')).filter(|folder| !folder.is_empty());
    let near = folders.map(|folder| plan.program.directory.join(folder).join(&command.program));
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
