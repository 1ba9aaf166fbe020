//! Switches that take one rule of the protocol out, so that the simulator can show that it would notice.
//!
//! Without the feature `sabotage` every question is answered `false` at compile time.

/// A rule that can be taken out of the transport (docs/reference/protocol.md).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Rule {
    /// R3: data of a higher epoch waits for the cut.
    HigherEpochData,
    /// R3: acknowledgements of a higher epoch wait for the cut.
    HigherEpochAck,
    /// R5: an image holds counted messages, not acknowledged ones.
    CountedNotAcked,
    /// R5: sent frames are kept until the cumulative acknowledgement.
    CumulativeOnly,
    /// Received frames are counted once.
    DuplicateFilter,
    /// R7: only an equal life counts.
    LifeEquality,
    /// R13: a frame from before a move of one of its ends has no effect.
    LifeOfLink,
    /// The receiver's bounds hold against any sender.
    WindowBounds,
    /// After a thaw a rendezvous goes on where it stopped.
    RendezvousOffsets,
    /// A STOPPED hint expires.
    StoppedExpiry,
    /// R10: a number as of a peer's cut may be older than one that it has acknowledged since.
    StaleResync,
    /// R11: payload reaches memory only after its frame has passed every check.
    Bypass,
    /// R11: nothing is granted in place of a payload only when all of it has been pulled.
    PulledWhole,
    /// R29: a rail is closed only when no frame is on its way that it alone takes.
    LongestFrame,
}

/// The rule that is out, if any.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sabotage {
    #[cfg(feature = "sabotage")]
    out: Option<Rule>,
}

impl Sabotage {
    /// All rules in force.
    pub const NONE: Sabotage = Sabotage {
        #[cfg(feature = "sabotage")]
        out: None,
    };

    /// Takes `rule` out.
    #[cfg(feature = "sabotage")]
    #[must_use]
    pub const fn without(rule: Rule) -> Sabotage {
        Sabotage { out: Some(rule) }
    }

    /// Whether `rule` is out.
    #[inline]
    #[must_use]
    pub fn has(self, rule: Rule) -> bool {
        #[cfg(feature = "sabotage")]
        {
            self.out == Some(rule)
        }
        #[cfg(not(feature = "sabotage"))]
        {
            let _ = rule;
            false
        }
    }
}
