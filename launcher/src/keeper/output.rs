//! Output of processes: read line by line, and handed to the coordinator as far as it shows them.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use ckpt_glue::pmi::Member;

use super::super::limits::{LINE_WINDOW_BYTES, OUTPUT_GRACE, PART_AFTER};
use super::super::lines::{Channel, LineReader};
use super::super::wire::FromKeeper;
use super::{Shell, Source};
use crate::spawn::process::Pipes;

/// A pipe and its process.
#[derive(Debug)]
struct Pipe {
    member: Member,
    channel: Channel,
    lines: LineReader,
    /// Everything is handed over at once: a person types, and looks.
    is_terminal: bool,
    /// When the beginning of a line is handed over.
    part_due: Option<Instant>,
    /// Nobody reads it, for want of room: it is not in `epoll`.
    is_held: bool,
}

#[derive(Debug, Default)]
pub(super) struct Outputs {
    /// By token.
    pipes: BTreeMap<u64, Pipe>,
    /// Bytes of lines that the coordinator has not shown.
    unshown: u64,
    /// The job is over: everything is handed over.
    last: bool,
    /// Somebody may wait for the beginning of a line.
    shows_parts: bool,
}

impl Outputs {
    pub(super) fn new(shows_parts: bool) -> Outputs {
        Outputs { shows_parts, ..Outputs::default() }
    }

    fn has_room(&self) -> bool {
        self.last || self.unshown < LINE_WINDOW_BYTES
    }

    /// When the beginning of some line is handed over.
    pub(super) fn due(&self) -> Option<Instant> {
        self.pipes.values().filter_map(|pipe| pipe.part_due).min()
    }
}

impl Shell {
    /// Listens to a process's output.
    pub(super) fn watch_pipes(&mut self, member: Member, pipes: Pipes) -> io::Result<()> {
        let Pipes { stdout, stderr, is_terminal } = pipes;
        let error = stderr.map(|pipe| (Channel::Error, pipe));
        for (channel, pipe) in [(Channel::Output, stdout)].into_iter().chain(error) {
            let lines = if self.outputs.shows_parts { LineReader::bare(pipe) } else { LineReader::new(pipe) };
            let token = self.events.watch(lines.pipe(), Source::Pipe)?;
            self.outputs
                .pipes
                .insert(token, Pipe { member, channel, lines, is_terminal, part_due: None, is_held: false });
        }
        Ok(())
    }

    pub(super) fn on_pipe(&mut self, token: u64) {
        let has_room = self.outputs.has_room();
        let Some(pipe) = self.outputs.pipes.get_mut(&token) else { return };
        if !has_room {
            self.events.take_out(pipe.lines.pipe());
            pipe.is_held = true;
        } else if !self.hand_over(token, LineReader::read) {
            self.forget_pipe(token);
        }
    }

    fn forget_pipe(&mut self, token: u64) {
        self.events.forget(token);
        if let Some(pipe) = self.outputs.pipes.remove(&token)
            && !pipe.is_held
        {
            self.events.take_out(pipe.lines.pipe());
        }
    }

    /// Hands over lines of a pipe; `false`: nothing more will come from it.
    fn hand_over(
        &mut self,
        token: u64,
        take: impl FnOnce(&mut LineReader, &mut dyn FnMut(&[u8])) -> bool,
    ) -> bool {
        let Some(pipe) = self.outputs.pipes.get_mut(&token) else { return true };
        let mut lines = Vec::new();
        let open = take(&mut pipe.lines, &mut |line| lines.push(line.to_vec()));
        if pipe.is_terminal {
            pipe.lines.finish(&mut |part| lines.push(part.to_vec()));
        }
        let (who, is_error) = (pipe.member, pipe.channel == Channel::Error);
        pipe.part_due = pipe.lines.has_part().then(|| pipe.part_due.unwrap_or(Instant::now() + PART_AFTER));
        let shows_parts = self.outputs.shows_parts;
        for mut line in lines {
            let is_part = shows_parts && line.pop_if(|last| *last == b'\n').is_none();
            self.outputs.unshown += line.len() as u64 + 1;
            self.send_to_launcher(&FromKeeper::Line { who, is_error, line, is_part });
        }
        open
    }

    /// Hands over the beginnings of lines that have waited long enough for their ends.
    pub(super) fn hand_over_parts(&mut self) {
        let now = Instant::now();
        let due = self.outputs.pipes.iter().filter(|(_, pipe)| pipe.part_due.is_some_and(|due| due <= now));
        for token in due.map(|(token, _)| *token).collect::<Vec<_>>() {
            self.hand_over(token, |lines, each| {
                lines.finish(each);
                true
            });
        }
    }

    /// The coordinator has shown so much.
    pub(super) fn shown(&mut self, bytes: u64) {
        self.outputs.unshown = self.outputs.unshown.saturating_sub(bytes);
        if self.outputs.has_room() {
            self.listen_again();
        }
    }

    fn listen_again(&mut self) {
        for (token, pipe) in self.outputs.pipes.iter_mut().filter(|(_, pipe)| pipe.is_held) {
            self.events.put_back(pipe.lines.pipe(), *token);
            pipe.is_held = false;
        }
    }

    fn tokens(&self, wanted: impl Fn(Member) -> bool) -> Vec<u64> {
        let pipes = self.outputs.pipes.iter();
        pipes.filter(|(_, pipe)| wanted(pipe.member)).map(|(token, _)| *token).collect()
    }

    /// Hands over the ranks' output until now: it lies before the cut of a checkpoint all of whose images are durable, and does not come again.
    pub(super) fn hear_output(&mut self) {
        if !self.outputs.has_room() {
            return;
        }
        for token in self.tokens(|_| true) {
            self.hand_over(token, LineReader::drain);
        }
    }

    /// Hands over the output of an ended process, before a new life of it prints: lines come in the order in which they were printed, and
    /// none goes on in another one.
    pub(super) fn hear_last_output(&mut self, member: Member) {
        for token in self.tokens(|of| of == member) {
            self.hand_over(token, |lines, each| {
                lines.drain(each);
                lines.finish(each);
                true
            });
        }
    }

    /// No process is left that could print more than the pipes hold, but for children of theirs that hold a pipe open: they get a moment.
    pub(super) fn hear_last_outputs(&mut self) {
        self.outputs.last = true;
        let until = Instant::now() + OUTPUT_GRACE;
        loop {
            for token in self.tokens(|_| true) {
                if !self.hand_over(token, LineReader::read) {
                    self.forget_pipe(token);
                }
            }
            if self.outputs.pipes.is_empty() || Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
