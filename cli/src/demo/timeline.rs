//! The demo's director and its chronicle: kills a process when the time has come, and writes down the events.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ckpt_glue::control::{FaultReport, ImageContent, ImageReport, MessageStates};
use ckpt_glue::job::{Event, FinalReport};
use ckpt_glue::pmi::Member;
use ckpt_glue::protocols::CheckpointEvent;
use launcher::spawn::pidfd::PidFd;
use launcher::text;
use launcher::{Channel, Notice, Observer};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde::Serialize;
use transport::Rank;

use super::program::Outcome;
use crate::commands::{event_words, say};

/// The demo's planned events.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    /// Made when everything has been shown: the program then ends.
    pub(crate) enough: PathBuf,
    /// Generations before the kill.
    pub(crate) before_kill: u32,
    /// Generations after the rollback.
    pub(crate) after_kill: u32,
    /// From the last of the generations before it until the kill.
    pub(crate) kill_after: Duration,
    /// The rank to kill, by its place modulo the number of ranks.
    pub(crate) victim: u64,
    /// When the demo asks the program to end in any case.
    pub(crate) longest: Duration,
}

/// How far the story has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    Before,
    /// The kill comes at this instant.
    Aiming(Instant),
    /// The process is dead; nobody else has noticed.
    Killed(Instant),
    /// The launcher has noticed.
    Recovering(Instant),
    /// All ranks run again.
    After,
    /// The demo has asked the program to end.
    Enough,
}

#[derive(Debug)]
pub(crate) struct Timeline {
    script: Script,
    json: bool,
    began: Instant,
    act: Act,
    pids: BTreeMap<Rank, (Pid, PidFd)>,
    committed_after: u32,
    summary: Summary,
}

/// A committed generation.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct GenerationShown {
    generation: String,
    /// Since the demo began.
    at_seconds: f64,
    /// From the command to the durable record.
    milliseconds: f64,
    bytes: u64,
    ranks: Vec<RankShown>,
}

/// One rank's image and its cost. Times in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RankShown {
    rank: u32,
    bytes: u64,
    /// A frame of a peer that had cut already announced the cut, before the command did.
    by_traffic: bool,
    stop_ns: u64,
    freeze_ns: u64,
    dump_ns: u64,
    thaw_ns: u64,
    write_ns: u64,
    /// Messages found in each of the five states.
    to_send: u64,
    unacknowledged: u64,
    acknowledged: u64,
    unanswered: u64,
    delivered: u64,
}

/// The result, as `--json` prints it.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Summary {
    pub(crate) verified: bool,
    /// `mpi` or `native`.
    program: &'static str,
    /// Why it is not the MPI program.
    why_native: Option<String>,
    pub(crate) generations: u32,
    pub(crate) killed: u32,
    pub(crate) rollbacks: u32,
    pub(crate) seconds: f64,
    killed_rank: Option<u32>,
    /// From SIGKILL until the launcher had noticed.
    detection_ms: Option<f64>,
    /// From SIGKILL until all ranks ran again.
    recovery_ms: Option<f64>,
    /// The generation that the ranks went back to.
    restored: Option<String>,
    abandoned: u32,
    outcome: Option<Outcome>,
    timeline: Vec<GenerationShown>,
}

impl Timeline {
    /// `why_native`: why the program is none of an MPI library, unless it is.
    pub(crate) fn new(script: Script, why_native: Option<String>, json: bool) -> Timeline {
        let (began, act) = (Instant::now(), Act::Before);
        let program = if why_native.is_none() { "mpi" } else { "native" };
        let (pids, summary) = (BTreeMap::new(), Summary { program, why_native, ..Summary::default() });
        Timeline { script, json, began, act, pids, committed_after: 0, summary }
    }

    pub(crate) fn begin(&self, class: &str, ranks: u32, directory: &Path, library: Option<&Path>) {
        if let Some(why) = &self.summary.why_native {
            self.say(&format!("no MPI program, but one with points of its own: {why}"));
        }
        let program = match library {
            Some(library) => format!("an MPI program ({}) that sorts integers", library.display()),
            None => "NAS integer sort".to_owned(),
        };
        self.say(&format!(
            "{program}, class {class}, on {ranks} processes over UDP; 32 messages to every peer in flight at each {}; \
             checkpoints in {}",
            if library.is_some() { "round" } else { "point" },
            directory.display()
        ));
    }

    pub(crate) fn summarize(mut self, report: &FinalReport, took: Duration) -> Summary {
        self.summary.verified = self.summary.outcome.as_ref().is_some_and(|outcome| outcome.verified);
        self.summary.generations = report.commits;
        self.summary.rollbacks = report.rollbacks;
        self.summary.seconds = took.as_secs_f64();
        self.summary
    }

    fn say(&self, words: &str) {
        let line = format!("{:8.3} s  {words}", self.began.elapsed().as_secs_f64());
        // Nobody may be reading any more; the demo goes on all the same.
        let _ = if self.json { writeln!(io::stderr(), "{line}") } else { writeln!(io::stdout(), "{line}") };
    }

    fn on_event(&mut self, event: &Event) {
        match event {
            Event::Checkpoint(CheckpointEvent::Committed { generation, took, images, .. }) => {
                self.on_committed(&generation.to_string(), *took, images);
            }
            Event::Checkpoint(CheckpointEvent::Abandoned { .. }) => {
                self.summary.abandoned += 1;
                self.say_event(event);
            }
            Event::LifeBegun { decision, .. } => {
                if let Act::Recovering(_) = self.act {
                    self.summary.restored = decision.restore.map(|generation| generation.to_string());
                }
                self.say_event(event);
            }
            Event::Reported { report: FaultReport::RankDied { .. }, action: Some(_) } => {
                if let Act::Killed(at) = self.act {
                    self.summary.detection_ms = Some(millis(at.elapsed()));
                    self.act = Act::Recovering(at);
                }
                self.say_event(event);
            }
            Event::AllRunning { .. } => {
                if let Act::Recovering(at) = self.act {
                    self.summary.recovery_ms = Some(millis(at.elapsed()));
                    self.act = Act::After;
                }
                self.say_event(event);
            }
            // A process that is dead has not answered either.
            Event::Reported { report: FaultReport::RankSilent { .. }, .. } => {}
            _ => self.say_event(event),
        }
    }

    fn say_event(&self, event: &Event) {
        if let Some(words) = event_words(event) {
            self.say(&words);
        }
    }

    fn on_committed(&mut self, generation: &str, took: Duration, images: &[ImageReport]) {
        let shown = GenerationShown {
            generation: generation.to_owned(),
            at_seconds: self.began.elapsed().as_secs_f64(),
            milliseconds: millis(took),
            bytes: images.iter().map(|image| image.bytes).sum(),
            ranks: images.iter().map(RankShown::of).collect(),
        };
        self.say(&format!(
            "generation {generation} committed: {} in {:.1} ms",
            text::bytes(shown.bytes),
            shown.milliseconds
        ));
        if !self.json {
            // Nobody may be reading any more.
            let _ = shown.print_ranks(images, self.summary.why_native.is_some());
        }
        self.summary.timeline.push(shown);
        let committed = u32::try_from(self.summary.timeline.len()).unwrap_or(u32::MAX);
        match self.act {
            Act::Before if committed >= self.script.before_kill => {
                self.act = Act::Aiming(Instant::now() + self.script.kill_after);
            }
            Act::After => {
                self.committed_after += 1;
                if self.committed_after >= self.script.after_kill {
                    self.enough();
                }
            }
            _ => {}
        }
    }

    fn kill(&mut self) {
        let victims: Vec<_> = self.pids.iter().collect();
        let place = usize::try_from(self.script.victim).unwrap_or(0) % victims.len().max(1);
        let Some((rank, (pid, process))) = victims.get(place).copied() else { return };
        let (rank, pid, at) = (*rank, *pid, Instant::now());
        if process.signal(Signal::SIGKILL).is_ok() {
            self.act = Act::Killed(at);
            self.summary.killed += 1;
            self.summary.killed_rank = Some(rank.0);
            self.say(&format!("kill -9 {pid}: rank {rank}"));
        }
    }

    fn enough(&mut self) {
        self.act = Act::Enough;
        if let Err(error) = std::fs::write(&self.script.enough, b"") {
            self.say(&format!("{}: {error}", self.script.enough.display()));
        }
    }
}

impl Observer for Timeline {
    fn notice(&mut self, _at: Duration, notice: &Notice<'_>) {
        match notice {
            Notice::Event(event) => self.on_event(event),
            Notice::Spawned { rank, pid, .. } => {
                // One that has ended already is no victim.
                if let Ok(process) = PidFd::open(*pid) {
                    self.pids.insert(*rank, (*pid, process));
                }
            }
            Notice::Ended { rank, .. } => drop(self.pids.remove(rank)),
            Notice::Line {
                member: Member { world: 0, rank: Rank(0) },
                channel: Channel::Output,
                line,
                ..
            } => match serde_json::from_slice::<Outcome>(line) {
                Ok(outcome) => self.summary.outcome = Some(outcome),
                Err(_) => self.say(&String::from_utf8_lossy(line)),
            },
            Notice::Line { member: Member { rank, .. }, line, .. } => {
                self.say(&format!("[{rank}] {}", String::from_utf8_lossy(line)))
            }
            Notice::NotSpawned { rank, problem: error } => {
                self.say(&format!("rank {rank} could not be started: {error}"))
            }
            Notice::KeeperLost { host, why } => {
                self.say(&format!("the node daemon (keeper) of {host}: {why}"))
            }
            Notice::Store { what, error } => self.say(&format!("{what}: {error}")),
            Notice::Misbehaves { rank, reason } => self.say(&format!("rank {rank} is ended: {reason}")),
            Notice::Damaged { generation, .. } => self.say(&format!("generation {generation} is damaged")),
            Notice::Lost { generation, .. } => self.say(&format!("generation {generation} is lost")),
            Notice::RailLost { .. }
            | Notice::RailReplaced { .. }
            | Notice::NotRunningYet { .. }
            | Notice::Suspicion { .. }
            | Notice::NotSavedYet { .. }
            | Notice::NotSaved { .. }
            | Notice::Copy(_)
            | Notice::InputFull { .. }
            | Notice::Suspended
            | Notice::Resumed
            | Notice::InputFailed { .. }
            | Notice::Repair { .. }
            | Notice::Component { .. }
            | Notice::ComponentFailed { .. }
            | Notice::Mpi(_)
            | Notice::Over => {}
        }
    }

    fn due(&self) -> Option<Instant> {
        match self.act {
            Act::Aiming(at) => Some(at),
            Act::Enough => None,
            _ => Some(self.began + self.script.longest),
        }
    }

    fn act(&mut self, now: Instant) {
        match self.act {
            Act::Aiming(at) if now >= at => self.kill(),
            _ if now >= self.began + self.script.longest => self.enough(),
            _ => {}
        }
    }
}

impl RankShown {
    fn of(image: &ImageReport) -> RankShown {
        let statistics = &image.statistics;
        let MessageStates { to_send, unacknowledged, acknowledged, unanswered, delivered } =
            statistics.messages;
        RankShown {
            rank: image.rank.0,
            bytes: image.bytes,
            by_traffic: image.content == ImageContent::ByTraffic,
            stop_ns: statistics.stop_ns,
            freeze_ns: statistics.freeze_ns,
            dump_ns: statistics.dump_ns,
            thaw_ns: statistics.thaw_ns,
            write_ns: statistics.write_ns,
            to_send,
            unacknowledged,
            acknowledged,
            unanswered,
            delivered,
        }
    }
}

impl RankShown {
    fn pause(&self, image: &ImageReport) -> String {
        format!(
            "{:>4} {:>10} = {:>8} + {:>8} + {:>8} + {:>8}",
            self.rank,
            text::nanos(image.statistics.pause_ns()),
            text::nanos(self.stop_ns),
            text::nanos(self.freeze_ns),
            text::nanos(self.dump_ns),
            text::nanos(self.thaw_ns),
        )
    }
}

impl GenerationShown {
    /// `counted`: its program counts messages; of others only their ports know.
    fn print_ranks(&self, images: &[ImageReport], counted: bool) -> io::Result<()> {
        if !counted {
            say!("            rank      pause =     stop +   freeze +     dump +     thaw | image")?;
            for (rank, image) in self.ranks.iter().zip(images) {
                let pause = rank.pause(image);
                say!("            {pause} | {:>9}", text::bytes(rank.bytes))?;
            }
            return Ok(());
        }
        say!(
            "            rank      pause =     stop +   freeze +     dump +     thaw | messages: to send  unacked    acked  unanswered  delivered"
        )?;
        for (rank, image) in self.ranks.iter().zip(images) {
            say!(
                "            {} | {:>17} {:>8} {:>8} {:>11} {:>10}",
                rank.pause(image),
                rank.to_send,
                rank.unacknowledged,
                rank.acknowledged,
                rank.unanswered,
                rank.delivered,
            )?;
        }
        Ok(())
    }
}

impl Summary {
    pub(crate) fn print(&self) -> io::Result<()> {
        say!("")?;
        match &self.outcome {
            Some(outcome) => say!(
                "result        {} ({} rounds of {} keys; {} of {} test keys, {} of {} full verifications, {} burst messages)",
                if outcome.verified { "verified" } else { "WRONG" },
                outcome.rounds,
                outcome.keys,
                outcome.partial_passed,
                outcome.partial_expected,
                outcome.full_passed,
                outcome.full_expected,
                outcome.burst_messages,
            )?,
            None => say!("result        none: the job did not finish")?,
        }
        say!("checkpoints   {} committed, {} given up", self.generations, self.abandoned)?;
        if let (Some(rank), Some(detection), Some(recovery)) =
            (self.killed_rank, self.detection_ms, self.recovery_ms)
        {
            let restored = self.restored.as_deref().unwrap_or("the beginning");
            say!(
                "kill -9       rank {rank}; noticed after {detection:.1} ms, all ranks ran again after {recovery:.1} ms, from generation {restored}"
            )?;
        }
        say!("rollbacks     {}", self.rollbacks)?;
        say!("time          {:.1} s", self.seconds)
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
