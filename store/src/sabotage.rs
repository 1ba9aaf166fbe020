//! Switches that take one rule out, so that the simulator can show that it would notice.
//!
//! Without the cargo feature `sabotage` every question is answered `false` at compile time, and [`Sabotage`] has no size.

/// A rule that the store upholds. The coordinator upholds each of them too, so a simulator takes both out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum Rule {
    /// Rule 1 out: a generation that was given up is written again, over its remains.
    EpochReuse,
    /// Rule 8 out: an image of any life is taken for the one of its epoch, and a name that is taken is taken again.
    KeyWithoutLife,
    /// Rule 8 out: a generation is committed though images are missing or not durable.
    CommitFirst,
    /// Rule 9 out: an older life may still commit, and its commits count.
    NoFence,
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
    pub(crate) fn is_out(self, rule: Rule) -> bool {
        self.0 == Some(rule)
    }

    /// Whether `rule` is out: never, in this build.
    #[cfg(not(feature = "sabotage"))]
    #[expect(clippy::unused_self, reason = "the same call answers otherwise in the simulator's build")]
    pub(crate) const fn is_out(self, _rule: Rule) -> bool {
        false
    }
}

#[cfg(all(test, not(feature = "sabotage")))]
mod tests {
    use super::*;

    #[test]
    fn a_real_build_has_no_switch() {
        assert_eq!(size_of::<Sabotage>(), 0);
        assert!(!Sabotage::none().is_out(Rule::NoFence));
    }
}
