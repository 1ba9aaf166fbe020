//! R19, when a frame counts as lost: RACK-TLP (RFC 8985) over transmission numbers, and the round-trip estimate (RFC 6298).
//!
//! Acknowledgements echo the transmission number of the newest frame that arrived, so it is known which copy of a resent
//! frame did (Karn's problem does not arise).

use crate::config::{
    ACK_DELAY, PTO_INITIAL, PTO_MAX, PTO_MIN, REORDER_STEPS_MAX, REORDER_WINDOW_MIN, SACK_FRAMES,
};
use crate::link::queues::{Queues, Sent};
use crate::link::timer::NEVER;

/// Back-off stops doubling here; [`PTO_MAX`] caps the time anyway.
const BACK_OFF_MAX: u8 = 16;

/// State of loss detection of one link. Times in nanoseconds, saturating at 4.2 s.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Recovery {
    /// Smoothed round-trip time; 0 before the first sample.
    pub(crate) smoothed_ns: u32,
    /// Its mean deviation, in which the scheduler's jitter shows up.
    pub(crate) deviation_ns: u32,
    /// Least sample.
    pub(crate) least_ns: u32,
    /// Newest sample.
    pub(crate) newest_ns: u32,
    /// Transmission number and send time of the most recently sent frame that is known to have arrived.
    pub(crate) rack_transmission: u64,
    /// Probes since the last sign of life.
    pub(crate) back_off: u8,
    /// Steps by which needless resends have widened the reorder window.
    pub(crate) reorder_steps: u8,
    /// Recoveries left until the window is narrowed by a step.
    pub(crate) reorder_keep: u8,
}

impl Default for Recovery {
    fn default() -> Recovery {
        Recovery {
            smoothed_ns: 0,
            deviation_ns: 0,
            least_ns: u32::MAX,
            newest_ns: 0,
            rack_transmission: 0,
            back_off: 0,
            reorder_steps: 1,
            reorder_keep: 0,
        }
    }
}

/// The measurement of an acknowledged frame.
pub(crate) enum Sample {
    /// A round trip was measured.
    RoundTrip,
    /// The first copy of a frame that we had sent again arrived after all.
    Spurious,
    /// Nothing.
    None,
}

fn nanos(duration: core::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Recovery {
    /// Takes one newly acknowledged frame into account; `echo` is the transmission that caused the acknowledgement.
    pub(crate) fn on_acknowledged(&mut self, sent: &Sent, echo: u64, now: u64) -> Sample {
        if sent.resent && echo < sent.transmission {
            // Nothing of our last transmission or later has arrived yet: an earlier copy did.
            return Sample::Spurious;
        }
        self.rack_transmission = self.rack_transmission.max(sent.transmission);
        if echo != sent.transmission {
            return Sample::None;
        }
        let sample = u32::try_from(now.saturating_sub(sent.sent_at)).unwrap_or(u32::MAX).max(1);
        self.newest_ns = sample;
        self.least_ns = self.least_ns.min(sample);
        if self.smoothed_ns == 0 {
            self.smoothed_ns = sample;
            self.deviation_ns = sample / 2;
        } else {
            let error = self.smoothed_ns.abs_diff(sample);
            self.deviation_ns = self.deviation_ns - self.deviation_ns / 4 + error / 4;
            self.smoothed_ns = self.smoothed_ns - self.smoothed_ns / 8 + sample / 8;
        }
        Sample::RoundTrip
    }

    /// A resend was needless: frames may overtake each other by more than we thought.
    pub(crate) fn on_spurious(&mut self) {
        self.reorder_steps = (self.reorder_steps + 1).min(REORDER_STEPS_MAX);
        self.reorder_keep = REORDER_STEPS_MAX;
    }

    /// A recovery ended without a needless resend.
    pub(crate) fn on_recovered(&mut self) {
        self.reorder_keep = self.reorder_keep.saturating_sub(1);
        if self.reorder_keep == 0 {
            self.reorder_steps = 1;
        }
    }

    fn reorder_window_ns(&self) -> u64 {
        let quarter = u64::from(if self.least_ns == u32::MAX { 0 } else { self.least_ns }) / 4;
        let widened = quarter.max(nanos(REORDER_WINDOW_MIN)) * u64::from(self.reorder_steps);
        widened.min(u64::from(self.smoothed_ns).max(nanos(REORDER_WINDOW_MIN)))
    }

    /// Time after the last transmission at which a silent peer is probed.
    pub(crate) fn probe_timeout_ns(&self) -> u64 {
        let base = if self.smoothed_ns == 0 {
            nanos(PTO_INITIAL)
        } else {
            let spread = (4 * u64::from(self.deviation_ns)).max(nanos(PTO_MIN));
            u64::from(self.smoothed_ns) + spread + nanos(ACK_DELAY)
        };
        (base << self.back_off.min(BACK_OFF_MAX)).min(nanos(PTO_MAX))
    }

    /// Marks frames as lost that have been overtaken for long enough; returns when to look again.
    pub(crate) fn detect(
        &self,
        queues: &mut Queues,
        acked: u64,
        now: u64,
        mut on_lost: impl FnMut(&Sent),
    ) -> u64 {
        let overtaken =
            |sent: &Sent| !sent.selected && !sent.lost && sent.transmission < self.rack_transmission;
        let allowed = u64::from(self.newest_ns) + self.reorder_window_ns();
        let mut again = NEVER;
        // Beyond the reach of the bitmap nothing is known: such a frame is not overtaken, only unreported.
        for (i, sent) in queues.sent.iter_mut().take(1 + SACK_FRAMES).enumerate() {
            if !overtaken(sent) {
                continue;
            }
            let lost_at = sent.sent_at.saturating_add(allowed);
            if lost_at <= now {
                sent.lost = true;
                queues.lost.push_back(acked + i as u64);
                on_lost(sent);
            } else {
                again = again.min(lost_at);
            }
        }
        again
    }

    /// One more probe without an answer.
    pub(crate) fn on_probe_timeout(&mut self) {
        self.back_off = (self.back_off + 1).min(BACK_OFF_MAX);
    }
}
