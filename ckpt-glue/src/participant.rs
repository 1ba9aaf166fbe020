//! The part that a rank plays in a checkpoint: when it cuts, and its messages about it.
//!
//! The shell around it lives in the rank's process: it carries out [`Output`]s in order and at once, holding the same lock
//! that keeps the program and the helper thread away from the ports. After [`Output::TakeCut`] or
//! [`Output::RaiseEpoch`] it must not let a frame in or out before that is done.

use core::time::Duration;

use transport::{Epoch, Instant, Rank};

use crate::control::Message;
use crate::control::checkpoint::{
    CutAt, CutMode, CutStatistics, ImageContent, ImageReport, NoImageReason, Point, PointSummary,
};
use crate::limits::{COMMAND_GRACE, EPOCH_STEP_MAX, STAND_MAX};
use crate::names::ImageDigest;
use crate::queue::Queue;
use crate::sabotage::{Rule, Sabotage};

/// An input of a participant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// A message from the keeper. The caller has checked job and life (R7).
    Message(Message),
    /// A port got an authentic frame of this higher epoch (R3).
    CutRequired {
        /// The frame's epoch.
        epoch: Epoch,
    },
    /// The first peer that has not received a message which the program sent without a request and which a peer could
    /// not receive any more before its own cut; `None`: there is no such message. Given before [`Input::PointReached`]
    /// and [`Input::Finalizing`], and when it changes.
    Unreceived {
        /// The peer.
        by: Option<Rank>,
    },
    /// The program is at a point of its own and has passed `count` of them, this one included.
    PointReached {
        /// Points passed since the program began, over all lives.
        count: u64,
    },
    /// The program has finished its work: it will pass no more points, and can be saved at any instant.
    Finalizing,
    /// From now on the rank holds something that cannot be saved; `None`: no more.
    Unsavable {
        /// The unsavable state, by the shell's own numbering.
        what: Option<u32>,
    },
    /// The image is durable.
    Captured {
        /// Its cut.
        epoch: Epoch,
        /// Names its content.
        digest: ImageDigest,
        /// Its size.
        bytes: u64,
        /// Its cost.
        statistics: CutStatistics,
    },
    /// The image could not be written. The epoch has been raised all the same.
    CaptureFailed {
        /// Its cut.
        epoch: Epoch,
        /// Why.
        reason: NoImageReason,
    },
}

/// An output of a participant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Freeze all ports, capture memory, raise the epoch, thaw: one instant (R2). Answer with [`Input::Captured`] or
    /// [`Input::CaptureFailed`] when the image is written.
    TakeCut {
        /// The epoch from then on.
        epoch: Epoch,
    },
    /// Freeze all ports, raise the epoch, thaw; no image (R2).
    RaiseEpoch {
        /// The epoch from then on.
        epoch: Epoch,
    },
    /// Stop writing the image of this cut and discard the written part. No answer.
    CancelImage {
        /// The cut.
        epoch: Epoch,
    },
    /// The generation of this epoch is durable: state kept for older ones may go.
    Committed {
        /// Its epoch.
        epoch: Epoch,
    },
    /// To the keeper, in the rank's life and with the epoch that holds after the outputs before this one.
    Send(Message),
}

/// Rules that a peer or keeper broke, or that our own bounds turned away. None of them stops the rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Frames that would have raised the epoch by more than [`EPOCH_STEP_MAX`] (R3).
    pub steps_too_far: u64,
    /// Messages that do not belong here.
    pub stray_messages: u64,
    /// Cuts to epochs that were taken already.
    pub late_cuts: u64,
}

/// ```text
///              Cut at a point ahead (Counted), or CutRequired
///        +----------------------------------------------------+
///        |                                                    v
///     Running <------------------------------------------- Waiting
///      |  ^ ^     point passed, time over, Abandon: raise     |
///      |  | |                                                 | point reached or Finalizing,
///  Cut |  | +------ Captured, CaptureFailed, Abandon          | and nothing unreceived
///      |  |                        |                          v
///      |  +------------------- Writing <----------------------+
///      +--------------------------^  |
///          (Instant)                 +--> Waiting, Writing: a higher cut cancels the image
/// ```
///
/// No rank waits for another rank's cut. Messages sent before a rank's point still reach the peers that have not cut
/// (R4), except a message that has no number yet or whose payload the peer has still to ask for: with such a message
/// ([`Input::Unreceived`]) the rank stands at its point until it has been received, for [`STAND_MAX`] at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Running,
    /// Ordered to cut, but not at a point where the rank can be saved.
    Waiting {
        epoch: Epoch,
        point: Option<u64>,
        until: Instant,
        by_traffic: bool,
        /// The program stands where it can be saved: a message of it has to be received first.
        stands: bool,
    },
    /// The cut is taken, its image is being written.
    Writing {
        epoch: Epoch,
        by_traffic: bool,
    },
}

/// One rank's part.
#[derive(Clone, Debug)]
pub struct Participant {
    rank: Rank,
    mode: CutMode,
    sabotage: Sabotage,
    epoch: Epoch,
    state: State,
    count: u64,
    /// When the first point of this life was passed, and its count: the mean interval until a question comes from them.
    first_point: Option<(Instant, u64)>,
    finalizing: bool,
    unsavable: Option<u32>,
    unreceived: Option<Rank>,
    counters: Counters,
    outputs: Queue<Output>,
}

impl Participant {
    /// The participant of a rank that begins its life in `epoch` with `count` points passed (0, or the count
    /// in its image).
    #[must_use]
    pub fn new(rank: Rank, mode: CutMode, epoch: Epoch, count: u64, sabotage: Sabotage) -> Participant {
        Participant {
            rank,
            mode,
            sabotage,
            epoch,
            state: State::Running,
            count,
            first_point: None,
            finalizing: false,
            unsavable: None,
            unreceived: None,
            counters: Counters::default(),
            outputs: Queue::default(),
        }
    }

    /// The rank's epoch, as it is once all outputs are carried out.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The counts of rejected messages.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Whether this rank is to cut when it has passed `count` points.
    #[must_use]
    pub fn cuts_at(&self, count: u64) -> bool {
        matches!(self.state, State::Waiting { point: Some(point), .. } if point == count)
    }

    /// Whether the program stands at a point and must not go on: a message of it has to be received first.
    #[must_use]
    pub fn is_standing(&self) -> bool {
        matches!(self.state, State::Waiting { stands: true, .. })
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Message(message) => self.on_message(now, message),
            Input::CutRequired { epoch } => self.on_cut_required(now, epoch),
            Input::PointReached { count } => self.on_point(now, count),
            Input::Finalizing => {
                self.finalizing = true;
                self.outputs.push(Output::Send(Message::Finalize { ranks: 1 }));
                self.stand(now);
            }
            Input::Unreceived { by } => {
                self.unreceived = by;
                if self.is_standing() {
                    self.stand(now);
                }
            }
            Input::Unsavable { what } => self.unsavable = what,
            Input::Captured { epoch, digest, bytes, statistics } => {
                if let Some(by_traffic) = self.finish_writing(epoch) {
                    let content = if by_traffic { ImageContent::ByTraffic } else { ImageContent::Commanded };
                    let report = ImageReport { rank: self.rank, digest, bytes, content, statistics };
                    self.outputs.push(Output::Send(Message::ImageDone { epoch, report }));
                }
            }
            Input::CaptureFailed { epoch, reason } => {
                if self.finish_writing(epoch).is_some() {
                    self.report_none(epoch, reason);
                }
            }
        }
    }

    /// Handles timeouts that are due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let State::Waiting { epoch, point, until, stands, .. } = self.state
            && now >= until
        {
            let count = self.count;
            let reason = match self.unreceived.filter(|_| stands) {
                Some(by) => NoImageReason::Unreceived { count, by },
                None => NoImageReason::PointMissed { point, count },
            };
            self.raise(epoch, reason);
        }
    }

    /// When [`Participant::handle_timeout`] has something to do; changes with every input.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Waiting { until, .. } => Some(until),
            State::Running | State::Writing { .. } => None,
        }
    }

    /// The next thing to do; call until there is none.
    #[must_use]
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop()
    }

    fn on_message(&mut self, now: Instant, message: Message) {
        match message {
            Message::PointQuery { query } => {
                let summary = self.summary(now);
                self.outputs.push(Output::Send(Message::PointReport { query, summary }));
            }
            Message::Cut { epoch, at, time_left_ns } => self.on_cut(now, epoch, at, time_left_ns),
            Message::Abandon { epoch } => self.on_abandon(epoch),
            Message::Committed { epoch } if epoch <= self.epoch => {
                self.outputs.push(Output::Committed { epoch });
            }
            _ => self.counters.stray_messages += 1,
        }
    }

    fn on_cut(&mut self, now: Instant, epoch: Epoch, at: CutAt, time_left_ns: u64) {
        // R1: a number that has been used once is never a new cut's.
        let again = epoch == self.epoch && self.sabotage.is_out(Rule::EpochReuse);
        if epoch <= self.epoch && !again {
            self.counters.late_cuts += 1;
            return;
        }
        let by_traffic = match self.state {
            State::Waiting { epoch: awaited, point: Some(_), .. } if awaited == epoch && at != CutAt::Now => {
                self.counters.late_cuts += 1;
                return;
            }
            // A frame of the epoch came before its command.
            State::Waiting { epoch: awaited, by_traffic, .. } if awaited == epoch => by_traffic,
            _ => false,
        };
        self.leave_older(epoch);
        let until = now + Duration::from_nanos(time_left_ns);
        match at {
            CutAt::Now if self.can_cut_now() => {
                self.state = State::Waiting { epoch, point: None, until, by_traffic, stands: false };
                self.stand(now);
            }
            CutAt::Now => {
                // A counted rank in a job that cuts at once: there is no point that it could wait for.
                self.raise(epoch, NoImageReason::PointMissed { point: None, count: self.count });
            }
            CutAt::Point { count } if self.count >= count && !self.can_cut_now() => {
                self.raise(epoch, NoImageReason::PointPassed { point: count, count: self.count });
            }
            CutAt::Point { count } => {
                self.state = State::Waiting { epoch, point: Some(count), until, by_traffic, stands: false };
                if self.can_cut_now() {
                    self.stand(now);
                }
            }
        }
    }

    /// The rank is where it can be saved: it cuts, or stands until it may.
    fn stand(&mut self, now: Instant) {
        let State::Waiting { epoch, point, until, by_traffic, .. } = self.state else { return };
        if self.unreceived.is_none() {
            self.cut(epoch, by_traffic);
            return;
        }
        let until = until.min(now + STAND_MAX);
        self.state = State::Waiting { epoch, point, until, by_traffic, stands: true };
    }

    fn on_cut_required(&mut self, now: Instant, epoch: Epoch) {
        if epoch <= self.epoch {
            return;
        }
        // R3
        if epoch.0 - self.epoch.0 > EPOCH_STEP_MAX {
            self.counters.steps_too_far += 1;
            return;
        }
        if let State::Waiting { epoch: awaited, .. } = self.state
            && awaited >= epoch
        {
            return;
        }
        self.leave_older(epoch);
        let until = now + COMMAND_GRACE;
        self.state = State::Waiting { epoch, point: None, until, by_traffic: true, stands: false };
        if self.can_cut_now() {
            self.stand(now);
        }
        self.outputs.push(Output::Send(Message::CutSeen { epoch }));
    }

    fn on_point(&mut self, now: Instant, count: u64) {
        self.count = count;
        self.first_point.get_or_insert((now, count));
        match self.state {
            State::Waiting { point: Some(point), .. } if point == count => self.stand(now),
            // Counts go up one by one, so this is a program that skips; it must not wait for the deadline.
            State::Waiting { epoch, point: Some(point), .. } if point < count => {
                self.raise(epoch, NoImageReason::PointPassed { point, count });
            }
            _ => {}
        }
    }

    fn on_abandon(&mut self, epoch: Epoch) {
        match self.state {
            State::Writing { epoch: written, .. } if written <= epoch => {
                self.outputs.push(Output::CancelImage { epoch: written });
                self.state = State::Running;
            }
            State::Waiting { epoch: awaited, .. } if awaited > epoch => return,
            _ => {}
        }
        if epoch > self.epoch {
            // The others are there already: a rank left behind could read no frames of the others (R2).
            self.raise(epoch, NoImageReason::Abandoned {});
        }
    }

    /// R3: an older cut that is not finished belongs to a generation that is abandoned by R1.
    fn leave_older(&mut self, epoch: Epoch) {
        if let State::Writing { epoch: older, .. } = self.state {
            self.outputs.push(Output::CancelImage { epoch: older });
            self.state = State::Running;
            self.report_none(older, NoImageReason::Overtaken { by: epoch });
        }
    }

    fn can_cut_now(&self) -> bool {
        self.finalizing || self.mode == CutMode::Instant
    }

    fn cut(&mut self, epoch: Epoch, by_traffic: bool) {
        // R2
        if let Some(what) = self.unsavable {
            self.raise(epoch, NoImageReason::Unsavable { what });
            return;
        }
        self.epoch = epoch;
        self.state = State::Writing { epoch, by_traffic };
        self.outputs.push(Output::TakeCut { epoch });
    }

    /// R2: a cut cannot be refused, only its image.
    fn raise(&mut self, epoch: Epoch, reason: NoImageReason) {
        self.state = State::Running;
        if self.sabotage.is_out(Rule::CutRefused) {
            return;
        }
        self.epoch = epoch;
        self.outputs.push(Output::RaiseEpoch { epoch });
        self.report_none(epoch, reason);
    }

    fn report_none(&mut self, epoch: Epoch, reason: NoImageReason) {
        self.outputs.push(Output::Send(Message::NoImage { epoch, rank: self.rank, reason }));
    }

    /// Whether the image of `epoch` was still wanted, and whether traffic caused the cut.
    fn finish_writing(&mut self, epoch: Epoch) -> Option<bool> {
        match self.state {
            State::Writing { epoch: written, by_traffic } if written == epoch => {
                self.state = State::Running;
                Some(by_traffic)
            }
            // Cancelled while the answer was on its way.
            _ => None,
        }
    }

    fn summary(&self, now: Instant) -> PointSummary {
        if self.can_cut_now() {
            return PointSummary::FINALIZING;
        }
        let interval_ns = self.first_point.and_then(|(first, count)| {
            let passed = self.count.checked_sub(count).filter(|passed| *passed > 0)?;
            let nanos = u64::try_from(now.since(first).as_nanos()).unwrap_or(u64::MAX);
            Some(nanos / passed)
        });
        PointSummary::of(Point { count: self.count, rank: self.rank }, interval_ns)
    }
}

#[cfg(test)]
mod tests;
