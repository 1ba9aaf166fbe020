//! The ranks' processes: started, spoken to, collected.

use std::io;
use std::os::fd::AsFd as _;

use ckpt_glue::control::{Control, Decision, ExitedRecord, FaultReport, JobPhase, Message};
use ckpt_glue::keeper;
use ckpt_glue::keeper::RankPhase;
use ckpt_glue::names::{ExitStatus, GenerationId, ImageDigest, Party};
use ckpt_glue::pmi::{self, Member, RankState};
use nix::errno::Errno;
use nix::sys::epoll::{EpollEvent, EpollFlags};
use session::launch::Launch;
use store::image::Exited;
use store::{Section, StoreError, kinds};
use transport::{Epoch, Rank};

use super::super::limits::SHOWN_MAX;
use super::super::lines::{Channel, LineReader};
use super::super::notice::Notice;
use super::super::process::{Pipes, Process};
use super::super::{Saves, Verdict, whole};
use super::mpi::EndedRank;
use super::{Shell, Source, watch};
use crate::convert;
use crate::text;

/// Version of the section with the final counters of a rank that had ended.
const CLOSED_PORTS_VERSION: u16 = 1;

/// Version of the section with what a rank that had ended had done over PMI.
const PMI_VERSION: u16 = 1;

/// Exit codes of a process that has not become what it was to be: found, but not fit; not found, or a library of it.
const NOT_EXECUTED: u8 = 126;
const NOT_FOUND: u8 = 127;

impl Shell<'_> {
    pub(super) fn send(&mut self, rank: Rank, control: &Control) {
        if self.speaks_for(rank) {
            return self.answer_for(rank, control);
        }
        self.send_to_process(rank, control);
    }

    pub(super) fn send_to_process(&mut self, rank: Rank, control: &Control) {
        let Some(process) = self.processes.get_mut(&rank) else { return };
        if !process.send(control) {
            process.group.kill();
            let reason = "it does not read its control messages".to_owned();
            self.tell(&Notice::Misbehaves { rank, reason });
            return;
        }
        self.watch_connection(rank);
    }

    /// Asks `epoll` for room to write only while something waits.
    pub(super) fn watch_connection(&mut self, rank: Rank) {
        let Some(process) = self.processes.get(&rank) else { return };
        let found = self
            .sources
            .iter()
            .find(|(_, source)| matches!(source, Source::Connection(connected) if *connected == rank));
        let Some((token, _)) = found else { return };
        let mut flags = EpollFlags::EPOLLIN;
        flags.set(EpollFlags::EPOLLOUT, process.has_waiting());
        // Fails only for a descriptor that is being closed.
        let _ = self.epoll.modify(process.stream(), &mut EpollEvent::new(flags, *token));
    }

    pub(super) fn spawn(&mut self, rank: Rank, decision: Decision) {
        self.begin_pmi(decision);
        match self.exited_in_image(rank, decision) {
            Ok(Some((record, ended))) => {
                self.tell_keeper(keeper::Input::ExitedInImage { rank, record });
                return self.tell_ended(rank, ended);
            }
            Ok(None) => {}
            Err(error) => {
                self.tell(&Notice::Store { what: "an image that is to be restored", error: &error });
                return self.tell_keeper(keeper::Input::NotStarted { rank, errno: error.errno() });
            }
        }
        match self.start_process(rank, decision) {
            Ok(()) => self.tell_keeper(keeper::Input::Spawned { rank }),
            Err(error) => {
                self.tell(&Notice::NotSpawned { rank, error: &error });
                self.note_unrestored(rank, error.to_string());
                let unnamed = if error.kind() == io::ErrorKind::NotFound { Errno::ENOENT as i32 } else { 0 };
                let errno = u32::try_from(error.raw_os_error().unwrap_or(unnamed)).unwrap_or(0);
                self.tell_keeper(keeper::Input::NotStarted { rank, errno });
            }
        }
    }

    pub(super) fn start_process(&mut self, rank: Rank, decision: Decision) -> io::Result<()> {
        let launch = Launch {
            job: self.plan.job,
            key: self.key,
            life: decision.life,
            rank,
            ranks: self.plan.ranks,
            restore: decision.restore.map(convert::to_store),
            auth: self.plan.auth,
            bind: self.plan.bind,
            directory: self.plan.directory.clone(),
        };
        let restored = match launch.restore.filter(|_| self.plan.saves == Saves::Process) {
            Some(generation) => {
                let found = whole::restored(&self.plan.program, &mut self.directory, generation, rank);
                let found = found.map_err(io::Error::other)?;
                if let Some(program) = &found {
                    let there = program.find(&program.command[0]);
                    there.map_err(|error| io::Error::new(io::ErrorKind::NotFound, error.to_string()))?;
                }
                if found.is_none() {
                    // A script has started a program that names its own points: it will do so again, and has no agent that could tell.
                    self.tell_pmi(pmi::Input::State { rank, part: RankState::default(), last: true });
                }
                found
            }
            None => None,
        };
        let program = restored.as_ref().unwrap_or(&self.plan.program);
        let pmi = self.pmi_socket(Member::of_job(rank))?;
        let (process, pipes) = Process::spawn(program, &launch, pmi, &self.key_file, self.descriptors)?;
        self.guard.add(process.group.pid);
        let pid = process.group.pid;
        let token = self.token();
        let watched = watch(&self.epoll, process.stream().as_fd(), token);
        self.sources.insert(token, Source::Connection(rank));
        self.processes.insert(rank, process);
        watched?;
        self.watch_pipes(Member::of_job(rank), pipes)?;
        self.tell(&Notice::Spawned { rank, pid });
        Ok(())
    }

    /// Listens to what a process prints.
    pub(super) fn watch_pipes(&mut self, member: Member, pipes: Pipes) -> io::Result<()> {
        for (channel, pipe) in [(Channel::Output, pipes.stdout), (Channel::Error, pipes.stderr)] {
            let token = self.token();
            let lines = LineReader::new(pipe);
            watch(&self.epoll, lines.pipe().as_fd(), token)?;
            self.sources.insert(token, Source::Pipe { member, channel, lines });
        }
        Ok(())
    }

    /// Shows what a process has printed that has ended, before a new life of it prints: lines come in the order in which they were printed, and none
    /// goes on in another one.
    fn hear_last_output(&mut self, member: Member) {
        let mine = |source: &Source| matches!(source, Source::Pipe { member: of, .. } if *of == member);
        let tokens: Vec<u64> =
            self.sources.iter().filter(|(_, source)| mine(source)).map(|(token, _)| *token).collect();
        for token in tokens {
            self.show_lines(token, |lines, show| {
                lines.drain(show);
                lines.finish(show);
                true
            });
        }
    }

    /// Shows lines of a pipe; `false`: nothing more will come from it.
    pub(super) fn show_lines(
        &mut self,
        token: u64,
        take: impl FnOnce(&mut LineReader, &mut dyn FnMut(&[u8])) -> bool,
    ) -> bool {
        let at = self.started.elapsed();
        // Of a rank that does not come up, what it said last is why.
        let is_coming_up = self.restoring.is_some() && self.job.status().phase == JobPhase::Starting;
        let Some(Source::Pipe { member, channel, lines }) = self.sources.get_mut(&token) else { return true };
        let (member, channel) = (*member, *channel);
        let mut last = None;
        let open = take(lines, &mut |line| {
            self.observer.notice(at, &Notice::Line { member, channel, line });
            if is_coming_up && channel == Channel::Error {
                last = Some(String::from_utf8_lossy(line).into_owned());
            }
        });
        self.last_words.extend(last.map(|last| (member, last)));
        open
    }

    /// Whether a rank has not come up yet in a life that goes on from a checkpoint, in which it was saved as a whole.
    fn is_being_restored(&self, rank: Rank) -> bool {
        let starting =
            |(other, phase, _): (Rank, RankPhase, Epoch)| other == rank && phase == RankPhase::Spawning;
        self.plan.saves == Saves::Process && self.restoring.is_some() && self.keeper.ranks().any(starting)
    }

    fn note_unrestored(&mut self, rank: Rank, why: String) {
        if let Some(generation) = self.restoring.filter(|_| self.plan.saves == Saves::Process) {
            self.unrestored.get_or_insert((generation, rank, why));
        }
    }

    /// A generation that was not restored for a reason that lies elsewhere than in its files, which have been read meanwhile, is not restored the next
    /// time either: the job ends, and says why.
    pub(super) fn give_up_unrestored(&mut self, newest: Option<GenerationId>) {
        let Some((generation, rank, why)) = self.unrestored.take() else { return };
        if newest == Some(generation) {
            let why = why.strip_prefix("stillwire: ").unwrap_or(&why);
            let words = format!("rank {rank} cannot be restored from generation {generation}: {why}");
            self.verdict.get_or_insert(Verdict { words, exit_code: None });
            self.stop();
        }
    }

    /// Shows what ranks have printed until now: it lies before the cut of a checkpoint all of whose images are durable, and does not come again.
    pub(super) fn hear_output(&mut self) {
        if !self.observer.takes_lines() {
            return;
        }
        let is_pipe = |source: &Source| matches!(source, Source::Pipe { .. });
        let tokens: Vec<u64> =
            self.sources.iter().filter(|(_, source)| is_pipe(source)).map(|(token, _)| *token).collect();
        for token in tokens {
            self.show_lines(token, |lines, show| lines.drain(show));
        }
        self.observer.settle(SHOWN_MAX);
    }

    /// Rule 12: a rank that had ended when the generation was taken is not started again.
    pub(super) fn exited_in_image(
        &mut self,
        rank: Rank,
        decision: Decision,
    ) -> Result<Option<(ExitedRecord, EndedRank)>, StoreError> {
        let Some(generation) = decision.restore else { return Ok(None) };
        let reader = self.directory.open_committed_image(convert::to_store(generation), rank)?;
        if reader.find(kinds::CLOSED_PORTS).is_err() {
            return Ok(None);
        }
        let mut section = |kind| -> Result<Vec<u8>, StoreError> {
            reader.read_section(self.directory.storage(), reader.find(kind)?)
        };
        let unreadable = |kind, version, bytes: &[u8]| StoreError::Image {
            path: reader.path().to_owned(),
            error: store::ImageError::SectionUnreadable { kind, version, bytes: bytes.len() as u64 },
        };
        let ports = section(kinds::CLOSED_PORTS)?;
        let record = ExitedRecord::parse(&ports)
            .map_err(|_| unreadable(kinds::CLOSED_PORTS, CLOSED_PORTS_VERSION, &ports))?;
        // Images of before had no such section: nothing with MPI was saved.
        let ended = match reader.find(kinds::PMI) {
            Ok(_) => {
                let pmi = section(kinds::PMI)?;
                EndedRank::parse(&pmi).ok_or_else(|| unreadable(kinds::PMI, PMI_VERSION, &pmi))?
            }
            Err(_) => EndedRank::default(),
        };
        Ok(Some((record, ended)))
    }

    pub(super) fn write_exited(
        &mut self,
        rank: Rank,
        generation: GenerationId,
        record: &ExitedRecord,
    ) -> Result<(ImageDigest, u64), StoreError> {
        let generation = convert::to_store(generation);
        let status = match record.status {
            ExitStatus::Code(code) => i32::from(code),
            ExitStatus::Signal(signal) => -i32::from(signal),
        };
        let (exited, counters) = (Exited { status }.emit(), record.emit());
        let pmi = self.ended_rank(rank).emit();
        let sections = [
            Exited::section(&exited),
            Section::new(kinds::CLOSED_PORTS, CLOSED_PORTS_VERSION, &counters),
            Section::new(kinds::PMI, PMI_VERSION, &pmi),
        ];
        self.directory.begin_generation(generation)?;
        // It may have ended when it had begun one.
        self.directory.discard_begun(generation, rank)?;
        let summary = self.directory.write_image(generation, rank, &sections)?;
        Ok((ImageDigest(summary.digest.0), summary.bytes))
    }

    /// Notices who has ended. What a rank said before counts before its end.
    pub(super) fn collect_processes(&mut self) {
        let ended: Vec<(Rank, ExitStatus)> = self
            .processes
            .iter()
            .filter_map(|(rank, process)| process.group.try_wait().map(|status| (*rank, status)))
            .collect();
        for (rank, status) in ended {
            self.hear(rank);
            self.hear_last_of_pmi(Member::of_job(rank));
            let Some(process) = self.processes.remove(&rank) else { continue };
            // What it started and left behind goes with it.
            process.group.kill();
            self.hear_last_output(Member::of_job(rank));
            if matches!(status, ExitStatus::Code(NOT_EXECUTED | NOT_FOUND)) && self.is_being_restored(rank) {
                let said = self.last_words.remove(&Member::of_job(rank));
                self.note_unrestored(rank, said.unwrap_or_else(|| text::status(status)));
            }
            self.guard.remove(process.group.pid);
            self.sources.retain(|_, source| !matches!(source, Source::Connection(of) if *of == rank));
            self.tell(&Notice::Ended { rank, status });
            if status.is_success() && self.has_broken_off(rank) {
                self.speak_for(rank, Message::Fault { report: FaultReport::RankDied { rank, status } });
                self.pump();
            }
            let status = self.status_for_keeper(rank, status);
            self.tell_keeper(keeper::Input::ProcessEnded { rank, life: process.life, status });
            self.pump();
            self.end_pmi(Member::of_job(rank));
            self.pump();
        }
        self.collect_spawned();
    }

    pub(super) fn on_connection(&mut self, token: u64, rank: Rank, flags: EpollFlags) {
        if flags.contains(EpollFlags::EPOLLOUT)
            && let Some(process) = self.processes.get_mut(&rank)
        {
            process.flush();
            self.watch_connection(rank);
        }
        if !self.hear(rank)
            && let Some(process) = self.processes.get(&rank)
        {
            // A program may close the socket and go on: it is then like one that never opened a session. Its end will tell.
            let _ = self.epoll.delete(process.stream());
            self.sources.remove(&token);
        }
    }

    /// Takes what a rank has said. `false`: it will say nothing more.
    pub(super) fn hear(&mut self, rank: Rank) -> bool {
        let Some(process) = self.processes.get_mut(&rank) else { return false };
        let heard = process.hear();
        for control in heard.controls {
            // Nobody speaks for another rank.
            if control.sender == Party::Rank(rank) {
                self.tell_keeper(keeper::Input::Control(control));
                self.pump();
            }
        }
        if let Some(error) = heard.malformed {
            if let Some(process) = self.processes.get(&rank) {
                process.group.kill();
            }
            self.tell(&Notice::Misbehaves { rank, reason: error.to_string() });
        }
        !heard.closed
    }
}
