//! Coordinated checkpoints without a barrier: names epochs, counts images, commits.

mod points;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use transport::{Epoch, Instant, Rank};

use crate::config::CheckpointConfig;
use crate::control::{CutAt, ImageReport, Message, NoImageReason, Point, PointSummary, Source};
use crate::limits::{EPOCH_MAX, MISALIGNED_REPORT_AFTER, POINT_ANSWER_MAX, POINT_TIME_SHARE};
use crate::names::GenerationId;
use crate::protocols::{
    AbandonReason, CheckpointEvent, CheckpointInput, CheckpointOutput, CheckpointProtocol, LifeView,
    RefuseReason,
};
use crate::queue::Queue;
use crate::sabotage::{Rule, Sabotage};
use points::{Named, PointChooser};

/// ```text
///             begin            Request (counted ranks)
///   Fenced ----------> Idle ----------------------------> Asking
///     ^                ^ |  Request                         | all counts known
///     |                | +---------------> Cutting <--------+
///     | fence          |                    |  |
///     +-- (anywhere)   +--- no image, <-----+  | all images durable
///                      |    time over          v
///                      +------------------ Committing
///                         durable, failed
/// ```
#[derive(Clone, Debug)]
enum State {
    /// No life runs; nothing is committed.
    Fenced,
    Idle,
    /// The ranks are asked for their counts.
    Asking {
        source: Source,
        asked: Instant,
    },
    /// The command is out.
    Cutting(Cutting),
    /// The record is being written. Its outcome must be known before anything else: a record that may be
    /// durable cannot be abandoned.
    Committing(Cutting),
}

#[derive(Clone, Debug)]
struct Cutting {
    epoch: Epoch,
    source: Source,
    begun: Instant,
    until: Instant,
    named: Option<Named>,
    images: BTreeMap<Rank, ImageReport>,
}

/// The coordinator's half of the protocol. One decides for a job at a time (R9).
#[derive(Debug)]
pub struct Coordinated {
    config: CheckpointConfig,
    sabotage: Sabotage,
    life: Option<LifeView>,
    state: State,
    /// Highest epoch number sent out in this life (R1), or the one the life began with.
    sent: Epoch,
    query: u32,
    chooser: PointChooser,
    /// A request that came after the cut that is under way; several are one.
    pending: Option<Source>,
    /// The interval; `None`: only on request.
    every: Option<Duration>,
    /// The interval is counted from then: the last checkpoint's beginning, or the life's. `None`: no life runs.
    counted_from: Option<Instant>,
    /// Why no checkpoint is taken any more in this life.
    over: Option<RefuseReason>,
    outputs: Queue<CheckpointOutput>,
}

impl Coordinated {
    /// A coordinator that waits for its first life.
    #[must_use]
    pub fn new(config: CheckpointConfig, sabotage: Sabotage) -> Coordinated {
        // The job sends the interval that it chooses: `CheckpointInput::Every`.
        let every = config.every.fixed();
        Coordinated {
            config,
            sabotage,
            life: None,
            state: State::Fenced,
            sent: Epoch(0),
            query: 0,
            chooser: PointChooser::default(),
            pending: None,
            every,
            counted_from: None,
            over: None,
            outputs: Queue::default(),
        }
    }

    fn event(&mut self, event: CheckpointEvent) {
        self.outputs.push(CheckpointOutput::Event(event));
    }

    fn on_request(&mut self, now: Instant, source: Source) {
        let refused = match &self.state {
            State::Fenced => Some(RefuseReason::NotRunning),
            _ if self.over.is_some() => self.over,
            State::Idle if self.sent.0 >= EPOCH_MAX => Some(RefuseReason::EpochsUsedUp),
            State::Idle => None,
            // The cut comes after this request too: it serves both.
            State::Asking { source: first, asked } => {
                self.state = State::Asking { source: source.max(*first), asked: *asked };
                return;
            }
            State::Cutting(_) | State::Committing(_) => {
                // R1: the next epoch only when this one is committed or abandoned.
                self.pending = self.pending.max(Some(source));
                return;
            }
        };
        if let Some(reason) = refused {
            self.event(CheckpointEvent::Refused { source, reason });
            return;
        }
        if self.life.is_some_and(|life| life.counted > 0) {
            self.query += 1;
            self.state = State::Asking { source, asked: now };
            self.outputs.push(CheckpointOutput::Broadcast(Message::PointQuery { query: self.query }));
        } else {
            self.start(now, source, None);
        }
    }

    fn on_points(&mut self, now: Instant, query: u32, summary: &PointSummary) {
        let State::Asking { source, asked } = self.state else { return };
        let Some(life) = self.life else { return };
        if query != self.query || summary.ranks != life.ranks {
            return;
        }
        let named = match (self.chooser.choose(summary, now.since(asked)), summary.least, summary.most) {
            (Some(point), Some(least), Some(most)) => {
                let time = PointChooser::time_for(summary, point);
                Some(Named { point, least, most, time })
            }
            // All have finished: they are at every point.
            _ => None,
        };
        self.start(now, source, named);
    }

    fn start(&mut self, now: Instant, source: Source, named: Option<Named>) {
        // R1
        let epoch = self.sent.next();
        self.sent = epoch;
        let at = named.map_or(CutAt::Now, |named| CutAt::Point { count: named.point });
        let timeout = self.config.timeout;
        let until = now + timeout;
        let cutting = Cutting { epoch, source, begun: now, until, named, images: BTreeMap::new() };
        self.counted_from = Some(now);
        // Ranks that wait for a point give up early, so that they report themselves that it was too far, and
        // where they are.
        let time_left = named.map_or(timeout, |named| named.time.min(timeout.mul_f32(POINT_TIME_SHARE)));
        let time_left_ns = u64::try_from(time_left.as_nanos()).unwrap_or(u64::MAX);
        self.outputs.push(CheckpointOutput::Broadcast(Message::Cut { epoch, at, time_left_ns }));
        let point = named.map(|named| named.point);
        self.event(CheckpointEvent::Begun { epoch, source, point });
        self.state = State::Cutting(cutting);
    }

    fn on_images(&mut self, now: Instant, epoch: Epoch, reports: Vec<ImageReport>) {
        let State::Cutting(cutting) = &mut self.state else { return };
        let Some(life) = self.life else { return };
        // R1: an abandoned epoch is not the current one, even if messages of it arrive late.
        if epoch != cutting.epoch {
            return;
        }
        for report in reports.into_iter().filter(|report| report.rank.0 < life.ranks) {
            // A repeated report changes nothing: the first was durable already.
            cutting.images.entry(report.rank).or_insert(report);
        }
        let durable = u32::try_from(cutting.images.len()).unwrap_or(u32::MAX);
        // R8
        if durable == life.ranks || self.sabotage.is_out(Rule::CommitFirst) {
            self.commit(now);
        }
    }

    fn commit(&mut self, _now: Instant) {
        let State::Cutting(cutting) = core::mem::replace(&mut self.state, State::Idle) else { return };
        let Some(life) = self.life else { return };
        let generation = GenerationId { life: life.life, epoch: cutting.epoch };
        let images = cutting.images.values().copied().collect();
        self.outputs.push(CheckpointOutput::WriteCommit { generation, images });
        self.state = State::Committing(cutting);
    }

    fn on_commit_durable(&mut self, now: Instant, generation: GenerationId) {
        let Some(cutting) = self.take_committing(generation) else { return };
        self.chooser.succeeded();
        self.outputs.push(CheckpointOutput::Broadcast(Message::Committed { epoch: cutting.epoch }));
        self.outputs.push(CheckpointOutput::Collect { keep: generation });
        self.event(CheckpointEvent::Committed {
            generation,
            source: cutting.source,
            took: now.since(cutting.begun),
            images: cutting.images.into_values().collect(),
        });
        self.go_on(now);
    }

    /// The checkpoint whose record is `generation`, taken out of [`State::Committing`].
    fn take_committing(&mut self, generation: GenerationId) -> Option<Cutting> {
        let life = self.life?;
        match &self.state {
            State::Committing(cutting)
                if generation == (GenerationId { life: life.life, epoch: cutting.epoch }) => {}
            _ => return None,
        }
        match core::mem::replace(&mut self.state, State::Idle) {
            State::Committing(cutting) => Some(cutting),
            _ => None,
        }
    }

    fn on_no_image(&mut self, now: Instant, epoch: Epoch, rank: Rank, reason: NoImageReason) {
        let State::Cutting(cutting) = &self.state else { return };
        if cutting.epoch != epoch {
            return;
        }
        let named = cutting.named;
        let misaligned = self.chooser.failed(&reason);
        self.abandon(now, AbandonReason::NoImage { rank, reason });
        if let (Some(misaligned), Some(named)) = (misaligned, named)
            && misaligned.in_a_row >= MISALIGNED_REPORT_AFTER
        {
            self.event(CheckpointEvent::PointsDoNotLineUp {
                attempts: misaligned.in_a_row,
                point: named.point,
                least: named.least,
                most: named.most,
                spoiled_by: Point { count: misaligned.count, rank },
            });
        }
    }

    /// R1: from here on nothing that arrives can commit this epoch.
    fn abandon(&mut self, now: Instant, reason: AbandonReason) {
        let (State::Cutting(cutting) | State::Committing(cutting)) =
            core::mem::replace(&mut self.state, State::Idle)
        else {
            return;
        };
        if self.sabotage.is_out(Rule::EpochReuse) {
            self.sent = Epoch(cutting.epoch.0 - 1);
        }
        self.outputs.push(CheckpointOutput::Broadcast(Message::Abandon { epoch: cutting.epoch }));
        self.event(CheckpointEvent::Abandoned { epoch: cutting.epoch, source: cutting.source, reason });
        self.go_on(now);
    }

    fn go_on(&mut self, now: Instant) {
        if let Some(source) = self.pending.take() {
            self.on_request(now, source);
        }
    }

    /// Ends a checkpoint that is under way and can still be abandoned, and takes no further one in this life.
    fn take_no_more(&mut self, now: Instant, reason: RefuseReason, abandoned: AbandonReason) {
        self.over = Some(reason);
        let pending = self.pending.take();
        match self.state {
            State::Asking { source, .. } => {
                self.state = State::Idle;
                self.event(CheckpointEvent::Refused { source, reason });
            }
            State::Cutting(_) => self.abandon(now, abandoned),
            State::Fenced | State::Idle | State::Committing(_) => {}
        }
        if let Some(source) = pending {
            self.event(CheckpointEvent::Refused { source, reason });
        }
    }

    /// When the interval asks for a checkpoint.
    fn timer(&self) -> Option<Instant> {
        let at = self.counted_from? + self.every?;
        Some(at).filter(|_| self.over.is_none())
    }

    fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Asking { asked, .. } => Some(*asked + POINT_ANSWER_MAX.min(self.config.timeout)),
            State::Cutting(cutting) => Some(cutting.until),
            State::Fenced | State::Idle | State::Committing(_) => None,
        }
    }
}

impl CheckpointProtocol for Coordinated {
    fn name(&self) -> &'static str {
        "coordinated"
    }

    fn begin(&mut self, now: Instant, life: LifeView) {
        self.life = Some(life);
        self.state = State::Idle;
        self.sent = life.epoch;
        self.query = 0;
        self.pending = None;
        self.over = None;
        self.counted_from = Some(now);
    }

    fn handle(&mut self, now: Instant, input: CheckpointInput) {
        match input {
            CheckpointInput::Request(source) => self.on_request(now, source),
            CheckpointInput::Every(every) => self.every = every,
            CheckpointInput::Points { query, summary } => self.on_points(now, query, &summary),
            CheckpointInput::Images { life, epoch, reports } => {
                // R8
                let current = self.life.is_some_and(|view| view.life == life);
                if current || self.sabotage.is_out(Rule::KeyWithoutLife) {
                    self.on_images(now, epoch, reports);
                }
            }
            CheckpointInput::NoImage { epoch, rank, reason } => self.on_no_image(now, epoch, rank, reason),
            CheckpointInput::CommitDurable(generation) => self.on_commit_durable(now, generation),
            CheckpointInput::CommitFailed { generation, errno } => {
                if let Some(cutting) = self.take_committing(generation) {
                    self.state = State::Cutting(cutting);
                    self.abandon(now, AbandonReason::CommitFailed { errno });
                }
            }
            CheckpointInput::Finishing => {
                self.take_no_more(now, RefuseReason::Finishing, AbandonReason::Finishing);
            }
            CheckpointInput::RankLost { rank } => {
                self.take_no_more(now, RefuseReason::RankLost { rank }, AbandonReason::RankLost { rank });
            }
        }
    }

    fn fence(&mut self) {
        // R9
        if self.sabotage.is_out(Rule::NoFence) {
            return;
        }
        // No word to the ranks: they are being ended. A record that is being written may still become
        // durable; the recovery asks for it after the fence, before it decides about the next life.
        match core::mem::replace(&mut self.state, State::Fenced) {
            State::Cutting(Cutting { epoch, source, .. }) => {
                self.event(CheckpointEvent::Abandoned { epoch, source, reason: AbandonReason::LifeOver });
            }
            State::Asking { source, .. } => {
                self.event(CheckpointEvent::Refused { source, reason: RefuseReason::NotRunning });
            }
            State::Fenced | State::Idle | State::Committing(_) => {}
        }
        if let Some(source) = self.pending.take() {
            self.event(CheckpointEvent::Refused { source, reason: RefuseReason::NotRunning });
        }
        self.counted_from = None;
    }

    fn handle_timeout(&mut self, now: Instant) {
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            match &self.state {
                State::Asking { source, .. } => {
                    let source = *source;
                    self.state = State::Idle;
                    self.event(CheckpointEvent::Refused { source, reason: RefuseReason::NoAnswer });
                    // Ask again at the next interval, not at once: a silent node may be silent for long.
                    self.counted_from = Some(now);
                    self.go_on(now);
                }
                State::Cutting(cutting) => {
                    let images = u32::try_from(cutting.images.len()).unwrap_or(u32::MAX);
                    let ranks = self.life.map_or(0, |life| life.ranks);
                    self.abandon(now, AbandonReason::TimedOut { images, ranks });
                }
                State::Fenced | State::Idle | State::Committing(_) => {}
            }
        }
        if self.timer().is_some_and(|at| now >= at) {
            self.counted_from = Some(now);
            // One that is under way is not followed by another at once.
            if matches!(self.state, State::Idle) {
                self.on_request(now, Source::Timer);
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match (self.deadline(), self.timer()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn poll_output(&mut self) -> Option<CheckpointOutput> {
        self.outputs.pop()
    }

    fn saving(&self) -> Option<Epoch> {
        match &self.state {
            State::Cutting(cutting) | State::Committing(cutting) => Some(cutting.epoch),
            State::Fenced | State::Idle | State::Asking { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests;
