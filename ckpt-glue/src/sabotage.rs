//! Switches that take one rule out, so that the simulator can show that it would notice.
//!
//! Without the cargo feature `sabotage` every question is answered `false` at compile time, and [`Sabotage`] has no size.

/// A rule of this crate that can be taken out. The numbers are those of the rules of the cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum Rule {
    /// R1 out: the number of an abandoned epoch is used again.
    EpochReuse,
    /// R2 out: a rank that cannot save ignores the cut instead of raising its epoch.
    CutRefused,
    /// R7 out: a further attempt to recover runs in the life of the attempt before it.
    LifeReuse,
    /// R8 out: images are named by their epoch alone, and images of any life are counted. The counting is here; naming files
    /// is the store's, whose shell asks [`Sabotage::is_out`].
    KeyWithoutLife,
    /// R8 out: the commit record is written as soon as the first image is durable, and names only that one.
    CommitFirst,
    /// R9 out: a commit of the old life is still accepted after the decision to roll back.
    /// [`crate::job::Output::FenceStore`] informs the store.
    NoFence,
    /// R9 out: a job that has committed begins anew by itself when nothing can be restored.
    BeginsAnew,
    /// R25 out: a program is given an answer over PMI that depends on other ranks' requests after a cut that its own
    /// rank has not taken.
    PmiAhead,
    /// R29 out: a change of NIC is decided when the first rank reports that it could close the old one.
    RailsUndecided,
    /// R27 out: a generation is committed as soon as it is local.
    Unprotected,
    /// R27 out: a generation is committed although a member has refused to seal what it keeps for the others.
    SealRefused,
    /// R27 out: nodes are asked to protect a generation although their protectors have not met.
    Unmet,
    /// R28 out: every node counts as one that has lost nothing.
    LossIgnored,
    /// R28 out: a generation that could be rebuilt is passed over.
    NeverRebuilt,
    /// R30 out: a keeper answers a fence and begins a life without the lock of its node.
    NoLock,
    /// R31 out: a lease runs from the arrival of the answer.
    LeaseFromArrival,
    /// R33 out: a suspicion ends the life.
    SuspicionEnds,
    /// R33 out: no silence is a suspicion.
    NeverSuspected,
    /// R32 out: the place of a node is given to another host although its ranks may still run.
    PlaceTooEarly,
    /// R36 out: another host takes the place of a node that answers before its ranks have ended.
    MovedWhileRunning,
    /// R37 out: no rank learns that the job goes on without another one.
    LossUntold,
    /// R34 out: half of the nodes are enough for every launcher.
    SeatByHalf,
    /// R34 out: a life begins although too few directories know its seat.
    SeatUnknown,
    /// R34 out: a directory that does not know the newest seat has a vote.
    SeatStale,
}

impl Rule {
    /// All of them, for a loop over the switches.
    pub const ALL: [Rule; 24] = [
        Rule::EpochReuse,
        Rule::CutRefused,
        Rule::LifeReuse,
        Rule::KeyWithoutLife,
        Rule::CommitFirst,
        Rule::NoFence,
        Rule::BeginsAnew,
        Rule::PmiAhead,
        Rule::RailsUndecided,
        Rule::Unprotected,
        Rule::SealRefused,
        Rule::Unmet,
        Rule::LossIgnored,
        Rule::NeverRebuilt,
        Rule::NoLock,
        Rule::LeaseFromArrival,
        Rule::PlaceTooEarly,
        Rule::SuspicionEnds,
        Rule::NeverSuspected,
        Rule::SeatByHalf,
        Rule::SeatUnknown,
        Rule::SeatStale,
        Rule::MovedWhileRunning,
        Rule::LossUntold,
    ];

    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Rule::EpochReuse => "1-epoch-reuse",
            Rule::CutRefused => "2-cut-refused",
            Rule::LifeReuse => "7-life-reuse",
            Rule::KeyWithoutLife => "8-key-without-life",
            Rule::CommitFirst => "8-commit-first",
            Rule::NoFence => "9-no-fence",
            Rule::BeginsAnew => "9-begins-anew",
            Rule::PmiAhead => "25-pmi-ahead",
            Rule::RailsUndecided => "29-rails-undecided",
            Rule::Unprotected => "27-unprotected",
            Rule::SealRefused => "27-seal-refused",
            Rule::Unmet => "27-unmet",
            Rule::LossIgnored => "28-loss-ignored",
            Rule::NeverRebuilt => "28-never-rebuilt",
            Rule::NoLock => "30-no-lock",
            Rule::PlaceTooEarly => "32-place-too-early",
            Rule::LeaseFromArrival => "31-lease-from-arrival",
            Rule::SuspicionEnds => "33-suspicion-ends",
            Rule::NeverSuspected => "33-never-suspected",
            Rule::SeatByHalf => "34-seat-by-half",
            Rule::SeatUnknown => "34-seat-unknown",
            Rule::SeatStale => "34-seat-stale",
            Rule::MovedWhileRunning => "36-moved-while-running",
            Rule::LossUntold => "37-loss-untold",
        }
    }
}

/// Which rule is out. Without the simulator: none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sabotage(#[cfg(feature = "sabotage")] Option<Rule>);

impl Sabotage {
    /// Every rule holds.
    #[must_use]
    pub const fn none() -> Sabotage {
        Sabotage(
            #[cfg(feature = "sabotage")]
            None,
        )
    }

    /// `rule` is out.
    #[cfg(feature = "sabotage")]
    #[must_use]
    pub const fn out(rule: Rule) -> Sabotage {
        Sabotage(Some(rule))
    }

    /// Whether `rule` is out.
    #[cfg(feature = "sabotage")]
    #[must_use]
    pub fn is_out(self, rule: Rule) -> bool {
        self.0 == Some(rule)
    }

    /// Whether `rule` is out: never, in this build.
    #[cfg(not(feature = "sabotage"))]
    #[must_use]
    pub const fn is_out(self, _rule: Rule) -> bool {
        false
    }
}

#[cfg(all(test, not(feature = "sabotage")))]
mod tests {
    use super::*;

    #[test]
    fn a_real_build_has_no_switch() {
        assert_eq!(size_of::<Sabotage>(), 0);
        assert!(Rule::ALL.iter().all(|rule| !Sabotage::none().is_out(*rule)));
    }
}
