//! Output of `run` and `restart` while the job runs.

use std::cell::Cell;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use ckpt_glue::control::{FaultReport, JobPhase, JobStatus, Source};
use ckpt_glue::job::{Event, Monitor, Record, SuspicionEvent};
use ckpt_glue::names::ExitStatus;
use ckpt_glue::pmi::{Member, Ranks};
use ckpt_glue::protocols::CheckpointEvent;
use ckpt_glue::recovery::{Plan, StopReason};
use launcher::repeats::{AGAIN_EVERY, Repeats, Say};
use launcher::requests::NO_CHECKPOINTS;
use launcher::status::Checkpoints;
use launcher::text;
use launcher::{Channel, CopyNotice, MpiNotice, Notice, Observer, SoFar};
use transport::{Epoch, Rank};

use super::printer::{Printer, Stream};

/// Prints lines of the program with their rank in front, and lines of our own about the job.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Only the program's output, and errors.
    pub(crate) quiet: bool,
    /// Standard output belongs to our result: the program's goes to standard error too.
    pub(crate) json: bool,
    /// Digits of the largest rank.
    pub(crate) width: usize,
    /// Lines of the only rank have nothing in front.
    is_bare: bool,
    /// The terminal is the program's: it does not add a carriage return to the end of a line.
    is_raw: bool,
    /// A program may have drawn on the screen that messages would appear on.
    spares_screen: bool,
    /// A person reads the output, and may wait for the beginning of a line.
    is_watched: bool,
    /// The process whose line has begun on the terminal, and has no end yet.
    begun: Cell<Option<(Member, Stream)>>,
    printer: Printer,
    /// The obstacle printed last; it is not printed twice in a row.
    said: Option<String>,
    /// The progress of the start printed last, and when.
    start: Option<(String, Duration)>,
    repeats: Repeats,
    /// Also events that only matter to who looks for a fault.
    verbose: bool,
    /// The launcher is ending the ranks, so their exits are not reported.
    is_ending: bool,
}

/// Subjects of problems that come again.
const CHECKPOINT: &str = "checkpoint";
const COPY: &str = "copy";
const RAIL: &str = "rail";
const RANK: &str = "rank";
const STORE: &str = "store";

impl Progress {
    pub(crate) fn new(ranks: u32, quiet: bool, json: bool) -> io::Result<Progress> {
        let width = ranks.saturating_sub(1).to_string().len();
        Ok(Progress {
            quiet,
            json,
            width,
            is_bare: quiet && ranks == 1,
            is_raw: false,
            spares_screen: false,
            is_watched: io::stdout().is_terminal() && !json,
            begun: Cell::new(None),
            printer: Printer::start()?,
            said: None,
            start: None,
            repeats: Repeats::default(),
            verbose: false,
            is_ending: false,
        })
    }

    /// The only rank has a terminal. If that is where messages would appear, they would spoil a program's screen: only warnings do.
    pub(crate) fn on_terminal(self, has_terminal: bool) -> Progress {
        let is_bare = self.is_bare || has_terminal;
        let spares_screen = has_terminal && io::stderr().is_terminal();
        Progress { spares_screen, is_bare, is_raw: has_terminal, ..self }
    }

    /// Suspicions of nodes are printed too that end at once.
    pub(crate) fn verbose(self, verbose: bool) -> Progress {
        Progress { verbose, ..self }
    }

    fn line(&self, member: Member, channel: Channel, line: &[u8], is_part: bool) {
        let stream = if channel == Channel::Output && !self.json { Stream::Output } else { Stream::Error };
        let (Member { world, rank: Rank(rank) }, width) = (member, self.width);
        let goes_on = self.begun.get() == Some((member, stream));
        if !goes_on {
            self.end_line();
        }
        let head = match world {
            _ if goes_on => String::new(),
            0 if self.is_bare => String::new(),
            0 => format!("[{rank:>width$}] "),
            _ => format!("[{world}:{rank}] "),
        };
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(line);
        if !is_part {
            bytes.push(b'\n');
        }
        self.begun.set(is_part.then_some((member, stream)));
        self.printer.print(stream, bytes);
    }

    /// The next message begins a new line, even if a rank has left one without an end. Output that is passed on unchanged gets no such line end.
    fn end_line(&self) {
        if let Some((_, stream)) = self.begun.take().filter(|_| !self.is_bare) {
            self.printer.print(stream, b"\n".to_vec());
        }
    }

    fn say(&self, at: Duration, words: &str) {
        if !self.quiet && !self.spares_screen {
            self.warn(&format!("{:8.3} s  {words}", at.as_secs_f64()));
        }
    }

    fn warn(&self, words: &str) {
        self.end_line();
        let end = if self.is_raw { "\r\n" } else { "\n" };
        self.printer.print_message(format!("stillwire: {words}{end}").into_bytes());
    }

    /// Warns of a problem that may come again. `head`: the event; `why`: the problem behind it.
    fn warn_again(&mut self, at: Duration, subject: &'static str, head: &str, why: &str) {
        match self.repeats.note(at, subject, why) {
            Say::InFull => self.warn(&format!("{head}: {why}")),
            Say::Again { times } => self.warn(&again(head, times)),
            Say::Nothing => {}
        }
    }

    fn not_saved(&mut self, at: Duration, epoch: Epoch, source: Source, why: &str) {
        let say = match source {
            Source::Timer => self.repeats.note(at, CHECKPOINT, why),
            Source::Signal | Source::Command | Source::TimeLimit => {
                self.repeats.note_awaited(at, CHECKPOINT, why)
            }
        };
        let head = format!("checkpoint {epoch} was abandoned");
        match say {
            Say::InFull => self.say(at, &format!("{head}: {why}")),
            Say::Again { times } => self.say(at, &again(&head, times)),
            Say::Nothing => {}
        }
    }

    fn event(&mut self, at: Duration, event: &Event) {
        match event {
            // Said with its reason, by a notice of its own.
            Event::Checkpoint(CheckpointEvent::Abandoned { .. }) => return,
            Event::Checkpoint(CheckpointEvent::Committed { .. }) => {
                self.repeats.over(CHECKPOINT);
                self.repeats.over(STORE);
            }
            // After a rollback a problem that persists is printed in full again.
            Event::LifeBegun { .. } => {
                self.repeats = Repeats::default();
                self.is_ending = false;
            }
            Event::Reported { action: Some(_), .. } => self.is_ending = true,
            Event::AllFinished => self.spares_screen = false,
            _ => {}
        }
        let Some(words) = event_words(event) else { return };
        let subject = match event {
            Event::Checkpoint(
                CheckpointEvent::Refused { source: Source::Timer, .. }
                | CheckpointEvent::PointsDoNotLineUp { .. },
            ) => CHECKPOINT,
            Event::Reported { report: FaultReport::RankSilent { .. }, action: None } => RANK,
            _ => return self.say(at, &words),
        };
        match self.repeats.note(at, subject, &words) {
            Say::InFull => self.say(at, &words),
            Say::Again { times } => self.say(at, &again(&words, times)),
            Say::Nothing => {}
        }
    }

    /// A suspicion that ends at once is nothing that a person can act on.
    fn suspicion(&mut self, at: Duration, event: &SuspicionEvent, host: &str, timeout: Duration) {
        match event {
            SuspicionEvent::Raised { node, by } if self.verbose => {
                self.say(at, &format!("{host} (node {node}) is suspected: {}", monitor_words(*by)));
            }
            SuspicionEvent::Withdrawn { node, by, lasted } if self.verbose => {
                let lasted = text::nanos(nanos(*lasted));
                self.say(
                    at,
                    &format!(
                        "{host} (node {node}) is not suspected any more by its {} ({lasted})",
                        by.name()
                    ),
                );
            }
            SuspicionEvent::Raised { .. } | SuspicionEvent::Withdrawn { .. } => {}
            SuspicionEvent::Lasts { node, lasted } => {
                let lasted = text::nanos(nanos(*lasted));
                self.say(
                    at,
                    &format!(
                        "the node daemon (keeper) of {host} (node {node}) has been suspected for {lasted} and does not answer; \
                         the node is lost after a silence of {timeout:?} (--node-timeout)"
                    ),
                );
            }
            SuspicionEvent::DataSilent { node, others, lasted } => {
                let ranks = Ranks(others.clone());
                let lasted = text::nanos(nanos(*lasted));
                self.warn(&format!(
                    "the data network of {host} (node {node}) may be cut: {ranks} and its ranks heard nothing of each other when they looked last, since {lasted} ago, \
                     and its node daemon answers. Perhaps some of these only stand still, or compute; the job waits and loses nothing. \
                     If it makes no progress, stop it (Ctrl-C) and run `stillwire restart` with other --hosts"
                ));
            }
        }
    }

    fn not_running_yet(&mut self, at: Duration, status: &JobStatus, why: Option<&str>) {
        let words = not_running_yet(status);
        let is_news =
            |(said, when): &(String, Duration)| *said != words || at.saturating_sub(*when) >= AGAIN_EVERY;
        if self.start.as_ref().is_none_or(is_news) {
            self.say(at, &words);
            self.start = Some((words, at));
        }
        self.say_why(why);
    }

    fn say_why(&mut self, why: Option<&str>) {
        if let Some(why) = why.filter(|why| self.said.as_deref() != Some(why)) {
            self.warn(why);
            self.said = Some(why.to_owned());
        }
    }

    fn mpi_notice(&self, at: Duration, notice: &MpiNotice<'_>) {
        match notice {
            MpiNotice::BrokenOff { words } => self.warn(words),
            MpiNotice::SpawnRefused { by, why } => {
                self.warn(&format!(
                    "{by} asks for more processes (MPI_Comm_spawn), which are not started: {why}"
                ));
            }
            MpiNotice::Spawned { by, world, processes } => {
                self.say(at, &format!("{by} has spawned world {world}, {processes} processes"));
            }
            MpiNotice::Ended { member, status } if !status.is_success() => {
                self.say(at, &format!("{member} ended: {}", text::status(*status)));
            }
            MpiNotice::Ended { .. } => {}
            MpiNotice::SpawnedRemain { processes } => {
                self.say(at, &format!("waiting for {processes} spawned processes to end"));
            }
            MpiNotice::Barrier { world, missing, waited } => {
                let of = if *world == 0 { String::new() } else { format!(" of spawned world {world}") };
                self.say(
                    at,
                    &format!("{missing}{of} has not come to a barrier of the launcher for {waited:?}"),
                );
            }
            MpiNotice::SharedMemory { words } | MpiNotice::Unfinished { words } => self.warn(words),
            MpiNotice::NoAgent { rank } => self.warn(&format!(
                "rank {rank} cannot be saved, and so there will be no checkpoints: the library that does it is not in the process that calls \
                 MPI_Init. Is that linked statically, or started by a script that waits for it (`exec` mends that)?"
            )),
            MpiNotice::NoCheckpoints => self.say(at, &format!("no checkpoint: {NO_CHECKPOINTS}")),
        }
    }

    fn copy_notice(&mut self, at: Duration, notice: &CopyNotice<'_>) {
        match notice {
            CopyNotice::Progress(so_far) => {
                self.say(at, &format!("the copy of generation {}: {}", so_far.generation, read(so_far)));
            }
            CopyNotice::Written { generation, bytes, new_bytes, took } => {
                self.repeats.over(COPY);
                let (bytes, new_bytes) = (text::bytes(*bytes), text::bytes(*new_bytes));
                let took = text::nanos(nanos(*took));
                self.say(at, &format!("generation {generation} copied ({bytes}, {new_bytes} written in {took})"));
            }
            CopyNotice::Failed { generation, error } => {
                let head = format!("the copy of generation {generation} was abandoned");
                self.warn_again(at, COPY, &head, &format!("{error}; the job goes on"));
            }
            CopyNotice::Unremoved { error } => self.warn(&format!("removing old copies: {error}")),
            CopyNotice::LeftOut { generation } => self.say(
                at,
                &format!("generation {generation} is not copied: an older copy is still being written, and a newer generation is there"),
            ),
            CopyNotice::Awaited(so_far) => {
                let (generation, read) = (so_far.generation, read(so_far));
                self.say(at, &format!("waiting for the copy of generation {generation} ({read}); Ctrl-C twice leaves it"));
            }
            CopyNotice::Silent { so_far, patience } => {
                let (generation, read) = (so_far.generation, read(so_far));
                self.warn(&format!(
                    "the copy of generation {generation} is given up: it has made no progress for {patience:?}, as if its place did not answer ({read}); the next one begins \
                     when that answers (--flush-patience gives it more time). The job goes on"
                ));
            }
            CopyNotice::Again => self.say(at, "once more, and the copy is given up; the generation stays where it is"),
            CopyNotice::GivenUp { so_far, why, newest } => {
                let newest = match newest {
                    Some(newest) => format!("the newest copy is that of generation {newest}"),
                    None => "this run has made no copy".to_owned(),
                };
                let (generation, read) = (so_far.generation, read(so_far));
                self.warn(&format!(
                    "the copy of generation {generation} is given up: {why}. {read}; what is written of it does not count, and the next copy \
                     removes it; {newest}. The generation itself stays where it is"
                ));
            }
        }
    }
}

/// How much a copy has read, in words.
fn read(so_far: &SoFar) -> String {
    format!("{} of {} and bases read", text::bytes(so_far.bytes), text::bytes(so_far.of))
}

impl Observer for Progress {
    fn takes_lines(&self) -> bool {
        self.printer.has_room()
    }

    fn shows_parts(&self) -> bool {
        self.is_bare || self.is_watched
    }

    fn settle(&mut self, limit: Duration) {
        self.printer.settle(limit);
    }

    fn finish(&mut self, limit: Option<Duration>) -> bool {
        self.end_line();
        self.printer.finish(limit)
    }

    fn notice(&mut self, at: Duration, notice: &Notice<'_>) {
        match notice {
            Notice::Line { member, channel, line, is_part } => self.line(*member, *channel, line, *is_part),
            Notice::Suspended => self.say(at, "the ranks stand still"),
            Notice::Resumed => self.say(at, "the ranks go on"),
            Notice::Event(event) => self.event(at, event),
            Notice::NotSaved { epoch, source, words } => self.not_saved(at, *epoch, *source, words),
            Notice::NotSavedYet { why } => {
                self.say(at, "no checkpoint is taken before all ranks have connected, and none has yet");
                self.say_why(*why);
            }
            // The job's report covers an exit code that is none of a rank's work.
            Notice::Ended { rank, status, has_finished }
                if !self.is_ending
                    && !status.is_success()
                    && (*has_finished || matches!(status, ExitStatus::Signal(_))) =>
            {
                self.say(at, &format!("rank {rank} ended: {}", text::status(*status)));
            }
            Notice::NotSpawned { rank, problem } => {
                self.warn(&format!("rank {rank} could not be started: {problem}"))
            }
            Notice::KeeperLost { host, why } => self.warn(&format!("the node daemon (keeper) of {host}: {why}")),
            Notice::RailLost { rank, nic, is_possible: true } => {
                self.warn(&format!("rank {rank}: its rail over {nic} has died: all ranks go over udp"));
            }
            Notice::RailLost { rank, nic, is_possible: false } => self.warn(&format!(
                "rank {rank}: its rail over {nic} has died, and processes that ranks have spawned cannot learn another address: it waits for the NIC"
            )),
            Notice::RailReplaced { nic, refused: None } => {
                self.repeats.over(RAIL);
                self.say(at, &format!("all ranks go on over {nic}"));
            }
            Notice::RailReplaced { nic, refused: Some(why) } => {
                self.warn_again(at, RAIL, &format!("the ranks do not go over {nic} yet"), why);
            }
            Notice::Damaged { generation, damages } => {
                let problem = damages.first().map(|damage| damage.error.to_string()).unwrap_or_default();
                let more = damages.len().saturating_sub(1);
                let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
                self.warn(&format!("generation {generation} is passed over: {problem}{more}"));
            }
            Notice::Lost { generation, why } => {
                self.warn(&format!("generation {generation} is passed over: {why}"));
            }
            Notice::Repair { words } | Notice::Component { words } => self.say(at, words),
            Notice::ComponentFailed { words } => self.warn(words),
            Notice::Suspicion { event, host, timeout } => self.suspicion(at, event, host, *timeout),
            Notice::NotRunningYet { status, why } => self.not_running_yet(at, status, *why),
            Notice::InputFull { held } => self.warn(&format!(
                "{} of standard input are kept for a rollback: no more is read before the next checkpoint is committed (--stdin-limit)",
                text::bytes(*held)
            )),
            Notice::InputFailed { error } => self.warn(&format!("the ranks' standard input ends here: {error}")),
            Notice::Store { what, error } => self.warn_again(at, STORE, what, error),
            Notice::Misbehaves { rank, reason } => self.warn(&format!("rank {rank} is ended: {reason}")),
            Notice::Copy(notice) => self.copy_notice(at, notice),
            Notice::Mpi(notice) => self.mpi_notice(at, notice),
            Notice::Spawned { .. } | Notice::Ended { .. } | Notice::Over => {}
        }
    }
}

/// The line about a problem that was printed in full before.
fn again(head: &str, times: u64) -> String {
    format!("{head}: for the same reason as before, {times} times by now")
}

fn not_running_yet(status: &JobStatus) -> String {
    match status.phase {
        JobPhase::Starting => format!("{} of {} ranks have come up", status.running, status.ranks),
        _ => "ending what ran before, and reading the job's directory".to_owned(),
    }
}

/// Whether the job's final report covers it.
fn is_said_last(reason: StopReason) -> bool {
    matches!(reason, StopReason::ProgramExited | StopReason::ProgramAborted | StopReason::NotAllConnected)
}

/// An event in one line; `None` for those that only matter to a timeline.
pub(crate) fn event_words(event: &Event) -> Option<String> {
    Some(match event {
        Event::LifeBegun { decision, attempt } => {
            let from = match decision.restore {
                Some(generation) => format!("from generation {generation}"),
                None => "from the beginning".to_owned(),
            };
            match attempt {
                0 => format!("life {} begins {from}", decision.life),
                _ => format!("life {} begins {from} (attempt {attempt})", decision.life),
            }
        }
        Event::AllRunning { since_fault: Some(since), price, .. } => {
            let price = price.as_ref().map(|price| format!(" ({})", text::price(price))).unwrap_or_default();
            format!("all ranks run again, {} after the fault{price}", text::nanos(nanos(*since)))
        }
        Event::AllRunning { .. } => "all ranks run".to_owned(),
        Event::Checkpoint(event) => checkpoint_words(event)?,
        Event::IntervalTuned(every) => {
            format!("{} from now on, as asked", Checkpoints::asked(*every).words())
        }
        Event::IntervalChosen { chosen, cause } => {
            let words = Checkpoints::chosen(*chosen).words();
            match text::cause(*cause) {
                Some(why) => format!("{words} from now on: {why}"),
                None => words,
            }
        }
        Event::Reported { action: Some((_, Plan::Stop { reason })), .. } if is_said_last(*reason) => {
            return None;
        }
        Event::Reported { report, action: Some((_, plan)) } => {
            format!("{}; {}", text::report(report), text::plan(*plan))
        }
        Event::Reported { report, action: None } => text::report(report),
        Event::DiskSilent { record, waited } => {
            let waited = text::nanos(nanos(*waited));
            match record {
                // Nodes with directories of their own write parity first.
                Record::Commit(generation) => format!(
                    "the commit of generation {generation} has waited {waited} for nodes that protect it, for the networks of its ranks, or for the disk of the job's directory; the ranks continue, \
                     and no newer generation is committed before it"
                ),
                Record::Decision(life) => format!(
                    "the decision about life {life} has waited {waited} for the disk of the job's directory; nothing is saved or restarted before it answers"
                ),
            }
        }
        Event::AllFinished => "all ranks have finished".to_owned(),
        Event::PolicyChanged => "faults have other reactions from now on, as asked".to_owned(),
        // Said with the host's name, by a notice of its own.
        Event::Suspicion(_) => return None,
    })
}

fn checkpoint_words(event: &CheckpointEvent) -> Option<String> {
    Some(match event {
        CheckpointEvent::Begun { source: Source::TimeLimit, .. } => {
            "the time limit is near: the last checkpoint begins".to_owned()
        }
        CheckpointEvent::Begun { .. } => return None,
        CheckpointEvent::Committed { generation, took, images, source } => {
            let bytes = images.iter().map(|image| image.bytes).sum();
            let pause = images.iter().map(|image| image.statistics.pause_ns()).max().unwrap_or(0);
            format!(
                "generation {generation} committed ({}; {}, longest pause {}, {} in all)",
                text::source(*source),
                text::bytes(bytes),
                text::nanos(pause),
                text::nanos(nanos(*took)),
            )
        }
        CheckpointEvent::Abandoned { epoch, reason, .. } => {
            format!("checkpoint {epoch} was abandoned: {}", text::abandoned(reason))
        }
        CheckpointEvent::Refused { reason, .. } => format!("no checkpoint: {}", text::refused(*reason)),
        CheckpointEvent::PointsDoNotLineUp { attempts, point, least, most, spoiled_by } => format!(
            "{attempts} checkpoints in a row were abandoned: the program's points do not line up. Point {point} was named \
             when rank {} had passed {} and rank {} had passed {}; rank {} was then at {}. Every rank must pass the same \
             points, often enough",
            least.rank, least.count, most.rank, most.count, spoiled_by.rank, spoiled_by.count
        ),
    })
}

/// What a monitor has noticed.
fn monitor_words(monitor: Monitor) -> &'static str {
    match monitor {
        Monitor::Heartbeats => "its heartbeats do not come (heartbeats)",
        Monitor::Probe => "it does not answer a question (probe)",
        Monitor::DataPath => "ranks of other nodes hear nothing of its ranks (data-path)",
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
