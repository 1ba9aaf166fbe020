//! The result of a run.

use std::fmt;

use super::BurstConfig;

/// The result of a run, the same on every rank.
#[derive(Clone, Debug, serde::Serialize)]
pub struct BurstReport {
    /// Always "burst".
    pub benchmark: &'static str,
    /// Ranks of the job.
    pub ranks: u32,
    /// Messages to each peer in each burst.
    pub messages: u32,
    /// Bytes of each message.
    pub bytes: usize,
    /// Bursts of each rank.
    pub rounds: u64,
    /// Times that the program went on from a saved state.
    pub restarts: u64,
    /// Messages received, all ranks together, each of them checked.
    pub received: u64,
    /// Messages that had to be received.
    pub expected: u64,
    /// Time of the slowest rank, in all lives together.
    pub seconds: f64,
    /// Million messages in a second, all ranks together.
    pub mmessages_per_s: f64,
    /// Every message came exactly once, in order, and undamaged.
    pub verified: bool,
}

impl BurstReport {
    pub(super) fn new(config: &BurstConfig, ranks: u32, received: u64, worst: [u64; 2]) -> BurstReport {
        let [elapsed_ns, restarts] = worst;
        let links = u64::from(ranks) * u64::from(ranks - 1);
        let expected = links * u64::from(config.messages) * config.rounds;
        let seconds = std::time::Duration::from_nanos(elapsed_ns).as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 53 bits")]
        let mmessages_per_s = received as f64 / seconds.max(1e-9) / 1e6;
        BurstReport {
            benchmark: "burst",
            ranks,
            messages: config.messages,
            bytes: config.bytes,
            rounds: config.rounds,
            restarts,
            received,
            expected,
            seconds,
            mmessages_per_s,
            verified: received == expected,
        }
    }
}

impl fmt::Display for BurstReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "bursts of {} messages of {} B, {} ranks", self.messages, self.bytes, self.ranks)?;
        writeln!(f, "  bursts        {} to each peer", self.rounds)?;
        writeln!(f, "  restarts      {}", self.restarts)?;
        writeln!(f, "  messages      {} of {}", self.received, self.expected)?;
        writeln!(f, "  time          {:.3} s", self.seconds)?;
        writeln!(f, "  rate          {:.3} million messages/s", self.mmessages_per_s)?;
        write!(f, "  verification  {}", if self.verified { "successful" } else { "FAILED" })
    }
}
