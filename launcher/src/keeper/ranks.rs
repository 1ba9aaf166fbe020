//! The ranks' processes: started, spoken to, collected.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use ckpt_glue::control::{Control, Decision, Message};
use ckpt_glue::keeper::{Input, RankPhase};
use ckpt_glue::names::{ExitStatus, Party};
use ckpt_glue::pmi::Member;
use client::launch::Launch;
use drivers::NicRequest;
use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use transport::{Life, Rank};

use super::super::Saves;
use super::super::key::KeyFile;
use super::super::limits::OUTPUT_GRACE;
use super::super::wire::FromKeeper;
use super::images::RankImage;
use super::{Shell, Source};
use crate::spawn::descriptors::Descriptors;
use crate::spawn::namespace::{Namespaces, Wanted};
use crate::spawn::process::{PidNamespace, Process, RankEnds};

#[derive(Default)]
pub(super) struct Ranks {
    pub(super) processes: BTreeMap<Rank, Process>,
    /// Their processes have ended, and the coordinator has not decided how the machine is to see it.
    unjudged: BTreeSet<Rank>,
    /// First processes of namespaces whose ranks have ended.
    past_firsts: Vec<Pid>,
    /// The last report to the coordinator about each rank.
    reported: BTreeMap<Rank, (RankPhase, u32)>,
}

/// What each process is given, but what belongs to its rank.
pub(super) struct Given {
    /// With the job's key, for programs of MPI libraries.
    pub(super) key_file: KeyFile,
    pub(super) descriptors: Descriptors,
    /// For each rank one of its own; `None`: they are in the keeper's.
    pub(super) namespaces: Option<Namespaces>,
}

impl Shell {
    /// Reports the ranks whose phase or epoch has changed.
    pub(super) fn report_ranks(&mut self) {
        let changed: Vec<_> = self
            .keeper
            .ranks()
            .map(|(rank, phase, epoch)| (rank, (phase, epoch.0)))
            .filter(|(rank, state)| self.ranks.reported.get(rank) != Some(state))
            .collect();
        if !changed.is_empty() {
            self.ranks.reported.extend(changed.iter().copied());
            let changes = changed.into_iter().map(|(rank, (phase, epoch))| (rank.0, phase, epoch)).collect();
            self.send_to_launcher(&FromKeeper::Ranks(changes));
        }
    }

    /// Sends a message of the machine to a rank.
    pub(super) fn send(&mut self, rank: Rank, control: &Control) {
        if self.pmi.spoken_for.contains(&rank) {
            let control = self.seal(control);
            return self.send_to_launcher(&FromKeeper::ForRank { rank: rank.0, control });
        }
        self.send_to_process(rank, control);
    }

    pub(super) fn send_to_process(&mut self, rank: Rank, control: &Control) {
        let Some(process) = self.ranks.processes.get_mut(&rank) else { return };
        if !process.send(control) {
            process.group.kill();
            let reason = "it does not read its control messages".to_owned();
            self.send_to_launcher(&FromKeeper::Misbehaves { rank: rank.0, reason });
            return;
        }
        self.watch_connection(rank);
    }

    /// Asks `epoll` for room to write only while something waits.
    fn watch_connection(&mut self, rank: Rank) {
        let Some(process) = self.ranks.processes.get(&rank) else { return };
        let Some(token) = self.events.token_of(Source::Connection(rank)) else { return };
        let mut flags = EpollFlags::EPOLLIN;
        flags.set(EpollFlags::EPOLLOUT, process.has_waiting());
        self.events.await_flags(process.stream(), token, flags);
    }

    /// Starts a rank, from the beginning or by its image, which has been read.
    pub(super) fn start(&mut self, rank: Rank, decision: Decision, image: RankImage) {
        match self.start_process(rank, decision, image) {
            Ok(()) => self.feed_keeper(Input::Spawned { rank }),
            Err(error) => self.not_started(rank, &error),
        }
    }

    pub(super) fn not_started(&mut self, rank: Rank, error: &io::Error) {
        self.send_to_launcher(&FromKeeper::NotSpawned { rank: rank.0, problem: error.to_string() });
        let unnamed = if error.kind() == io::ErrorKind::NotFound { Errno::ENOENT as i32 } else { 0 };
        let errno = u32::try_from(error.raw_os_error().unwrap_or(unnamed)).unwrap_or(0);
        self.feed_keeper(Input::NotStarted { rank, errno });
    }

    fn start_process(&mut self, rank: Rank, decision: Decision, image: RankImage) -> io::Result<()> {
        let site = &self.site;
        let kept = || self.keeper.ranks().map(|(kept, ..)| kept);
        let count = |ranks: usize| u32::try_from(ranks).unwrap_or(u32::MAX);
        let (local, locals) = (count(kept().filter(|kept| *kept < rank).count()), count(kept().count()));
        let launch = Launch {
            job: site.job,
            key: site.key,
            life: decision.life,
            rank,
            ranks: site.ranks,
            restore: decision.restore,
            auth: site.auth,
            bind: site.ranks_bind,
            nic: NicRequest {
                choice: self.nic_of(rank).map_err(io::Error::other)?,
                ranks_here: Some(locals),
            },
            encryption: site.encryption.clone(),
            // Their images are written at the same time.
            disk_bytes_per_s: site.disk_bytes_per_s.map(|rate| (rate / u64::from(locals.max(1))).max(1)),
            directory: site.directory.clone(),
        };
        let is_whole = launch.restore.is_some() && site.saves == Saves::Process;
        let (restored, wanted) = match image {
            RankImage::Whole(program, ids) => (Some(program), ids),
            RankImage::Exited { .. } | RankImage::Points => {
                (None, Wanted::New { part: rank.0, parts: site.ranks })
            }
        };
        if is_whole && restored.is_none() {
            // A script has started a program that names its own points: it will do so again, and has no agent that could report it.
            self.send_to_launcher(&FromKeeper::PmiNothing { rank: rank.0 });
        }
        let terminal = self.new_terminal()?;
        let ends = RankEnds {
            pmi: self.pmi_socket(Member::of_job(rank))?,
            stdin: self.new_input(rank, decision.life, terminal.as_ref(), restored.is_some())?,
            terminal,
        };
        let program = restored.as_deref().unwrap_or(&self.site.program);
        let pid_namespace =
            self.given.namespaces.as_ref().map(|namespaces| PidNamespace { namespaces, wanted });
        let place = (local, locals);
        let (process, pipes) = Process::spawn(
            program,
            &launch,
            place,
            ends,
            &self.given.key_file,
            self.given.descriptors,
            pid_namespace,
        )?;
        let pid = process.group.pid;
        process.group.pids().for_each(|pid| self.guard.add(pid));
        let watched = self.events.watch(process.stream(), Source::Connection(rank));
        self.ranks.processes.insert(rank, process);
        watched?;
        self.watch_pipes(Member::of_job(rank), pipes)?;
        self.send_to_launcher(&FromKeeper::Spawned { rank: rank.0, pid: pid.as_raw() });
        self.input_begins(rank);
        self.suspend_new(rank);
        Ok(())
    }

    pub(super) fn kill(&mut self, rank: Rank, life: Life) {
        self.note_last_files();
        self.spawned.give_up();
        self.images.forget(rank, life);
        match self.ranks.processes.get(&rank) {
            Some(process) if process.life == life => process.group.kill(),
            // It has ended, and the machine will learn that.
            _ if self.ranks.unjudged.contains(&rank) => {}
            _ => {
                let status = ExitStatus::Signal(Signal::SIGKILL as u8);
                self.feed_keeper(Input::ProcessEnded { rank, life, status });
            }
        }
    }

    /// Notices ended processes. A rank's earlier messages count before its end.
    pub(super) fn collect_processes(&mut self) {
        let ended: Vec<(Rank, ExitStatus)> = self
            .ranks
            .processes
            .iter()
            .filter_map(|(rank, process)| process.group.try_wait().map(|status| (*rank, status)))
            .collect();
        for (rank, status) in ended {
            self.hear(rank);
            self.hear_last_of_pmi(Member::of_job(rank));
            let Some(process) = self.ranks.processes.remove(&rank) else { continue };
            self.hear_last_output(Member::of_job(rank));
            self.end_input(rank);
            self.guard.remove(process.group.pid);
            self.ranks.past_firsts.extend(process.group.first);
            self.events.forget_if(|source| source == Source::Connection(rank));
            let is_new =
                self.keeper.ranks().any(|(other, phase, _)| other == rank && phase == RankPhase::Spawning);
            self.ranks.unjudged.insert(rank);
            let (life, status) = (process.life, self.ended_by_key(status));
            self.send_to_launcher(&FromKeeper::Ended { rank: rank.0, life, status, is_new });
        }
        self.collect_spawned();
        self.collect_firsts();
    }

    /// The coordinator has decided how the machine is to see the end of a rank's process.
    pub(super) fn on_judged(&mut self, rank: Rank, life: Life, status: ExitStatus) {
        self.ranks.unjudged.remove(&rank);
        self.feed_keeper(Input::ProcessEnded { rank, life, status });
        self.pump();
        self.send_to_launcher(&FromKeeper::Settled { rank: rank.0, status });
    }

    /// The first processes of namespaces that were ended. Each has to wait for all in its namespace to be gone.
    fn collect_firsts(&mut self) {
        let is_gone = |first: &mut Pid| {
            !matches!(
                waitpid(*first, Some(WaitPidFlag::WNOHANG)),
                Ok(WaitStatus::StillAlive) | Err(Errno::EINTR)
            )
        };
        for first in self.ranks.past_firsts.extract_if(.., is_gone) {
            self.guard.remove(first);
        }
    }

    /// Waits until the namespaces of ended ranks are gone: system calls that are under way end first.
    pub(super) fn wait_for_firsts(&mut self) {
        let until = Instant::now() + OUTPUT_GRACE;
        self.collect_processes();
        while !self.ranks.past_firsts.is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
            self.collect_processes();
        }
    }

    pub(super) fn on_connection(&mut self, token: u64, rank: Rank, flags: EpollFlags) {
        if flags.contains(EpollFlags::EPOLLOUT)
            && let Some(process) = self.ranks.processes.get_mut(&rank)
        {
            process.flush();
            self.watch_connection(rank);
        }
        if !self.hear(rank)
            && let Some(process) = self.ranks.processes.get(&rank)
        {
            // A program may close the socket and go on: it is then like one that never opened a session. Its end will show that.
            self.events.take_out(process.stream());
            self.events.forget(token);
        }
    }

    /// Takes a rank's messages. `false`: no more will come.
    fn hear(&mut self, rank: Rank) -> bool {
        let Some(process) = self.ranks.processes.get_mut(&rank) else { return false };
        let heard = process.hear();
        if !heard.controls.is_empty() {
            self.release_input(rank);
        }
        for control in heard.controls {
            // Nobody speaks for another rank.
            if control.sender != Party::Rank(rank) {
                continue;
            }
            match &control.message {
                Message::Nic { words } => {
                    if let Some(process) = self.ranks.processes.get_mut(&rank) {
                        process.has_network = true;
                    }
                    self.send_to_launcher(&FromKeeper::Nic {
                        rank: rank.0,
                        words: words.as_str().to_owned(),
                    });
                }
                Message::Unsaved { reason } => {
                    self.send_to_launcher(&FromKeeper::Unsaved {
                        rank: rank.0,
                        reason: reason.as_str().to_owned(),
                    });
                }
                Message::HandedOver { number, refused } => self.handed_over(rank, *number, refused.as_str()),
                Message::RailOpened { .. } | Message::RailsMet { .. } | Message::RailLost { .. } => {
                    let control = self.seal(&control);
                    self.send_to_launcher(&FromKeeper::Rail { rank: rank.0, control });
                }
                _ => {
                    self.feed_keeper(Input::Control(control));
                    self.pump();
                }
            }
        }
        if let Some(error) = heard.malformed {
            self.kill_rank(rank);
            self.send_to_launcher(&FromKeeper::Misbehaves { rank: rank.0, reason: error.to_string() });
        }
        !heard.closed
    }
}
