//! Rules that can be taken out, to show that the judges would notice.

use transport::{FrozenPort, Port};

use crate::plan::draw;

/// Which rule is out, for each crate that has switches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Switches {
    transport: transport::sabotage::Sabotage,
    glue: ckpt_glue::Sabotage,
    store: store::sabotage::Sabotage,
    /// R11 out: a NIC writes into the memory of ranks that stand still.
    bypass: bool,
    /// R11 out: a program uses a buffer again from which others still pull.
    loose_buffers: bool,
    /// R8 out: images are named by their epoch alone.
    keyless: bool,
    /// R30 out: no guard ends ranks whose lease is over.
    guardless: bool,
}

impl Switches {
    pub(crate) fn glue(self) -> ckpt_glue::Sabotage {
        self.glue
    }

    pub(crate) fn store(self) -> store::sabotage::Sabotage {
        self.store
    }

    pub(crate) fn bypass(self) -> bool {
        self.bypass
    }

    pub(crate) fn loose_buffers(self) -> bool {
        self.loose_buffers
    }

    pub(crate) fn keyless(self) -> bool {
        self.keyless
    }

    pub(crate) fn guardless(self) -> bool {
        self.guardless
    }

    pub(crate) fn apply(self, port: &mut Port) {
        port.sabotage(self.transport);
    }

    pub(crate) fn apply_frozen(self, port: &mut FrozenPort) {
        port.sabotage(self.transport);
    }
}

/// A rule that can be taken out, by the name under which reports know it.
#[derive(Clone, Copy, Debug)]
pub struct Switch {
    /// The name.
    pub name: &'static str,
    switches: Switches,
}

impl Switch {
    /// The switch of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Switch> {
        switches().into_iter().find(|switch| switch.name == name)
    }

    /// The switches, as a world takes them.
    #[must_use]
    pub fn switches(&self) -> Switches {
        self.switches
    }
}

/// All switches there are.
#[must_use]
pub fn switches() -> Vec<Switch> {
    use transport::sabotage::Rule;
    let of_transport = [
        ("3-higher-epoch-data", Rule::HigherEpochData),
        ("3-higher-epoch-ack", Rule::HigherEpochAck),
        ("5-counted-not-acked", Rule::CountedNotAcked),
        ("5-cumulative-only", Rule::CumulativeOnly),
        ("duplicate-filter", Rule::DuplicateFilter),
        ("7-life-equality", Rule::LifeEquality),
        ("13-life-of-a-link", Rule::LifeOfLink),
        ("window-bounds", Rule::WindowBounds),
        ("rendezvous-offsets", Rule::RendezvousOffsets),
        ("stopped-expiry", Rule::StoppedExpiry),
        ("10-stale-resync", Rule::StaleResync),
        ("11-write-into-others", Rule::Bypass),
        ("11-pulled-in-part", Rule::PulledWhole),
        ("29-frame-that-only-the-old-rail-takes", Rule::LongestFrame),
    ];
    let mut all: Vec<Switch> = of_transport
        .map(|(name, rule)| {
            let transport = transport::sabotage::Sabotage::without(rule);
            let bypass = rule == Rule::Bypass;
            Switch { name, switches: Switches { transport, bypass, ..Switches::default() } }
        })
        .into();
    let loose = Switches { loose_buffers: true, ..Switches::default() };
    all.push(Switch { name: "11-buffer-not-fixed", switches: loose });
    let guardless = Switches { guardless: true, ..Switches::default() };
    all.push(Switch { name: "30-no-guard", switches: guardless });
    let rules = ckpt_glue::Rule::ALL.into_iter().filter(|rule| !is_elsewhere(*rule));
    all.extend(rules.map(|rule| {
        // A rule is out only when it is out everywhere: the store upholds the coordinator's rules once more.
        let store = match rule {
            ckpt_glue::Rule::EpochReuse => Some(store::sabotage::Rule::EpochReuse),
            ckpt_glue::Rule::KeyWithoutLife => Some(store::sabotage::Rule::KeyWithoutLife),
            ckpt_glue::Rule::CommitFirst => Some(store::sabotage::Rule::CommitFirst),
            ckpt_glue::Rule::NoFence => Some(store::sabotage::Rule::NoFence),
            ckpt_glue::Rule::CutRefused
            | ckpt_glue::Rule::BeginsAnew
            | ckpt_glue::Rule::LifeReuse
            | ckpt_glue::Rule::PmiAhead
            | ckpt_glue::Rule::RailsUndecided
            | ckpt_glue::Rule::Unprotected
            | ckpt_glue::Rule::SealRefused
            | ckpt_glue::Rule::Unmet
            | ckpt_glue::Rule::LossIgnored
            | ckpt_glue::Rule::NeverRebuilt
            | ckpt_glue::Rule::NoLock
            | ckpt_glue::Rule::LeaseFromArrival
            | ckpt_glue::Rule::SuspicionEnds
            | ckpt_glue::Rule::NeverSuspected
            | ckpt_glue::Rule::PlaceTooEarly
            | ckpt_glue::Rule::SeatByHalf
            | ckpt_glue::Rule::SeatUnknown
            | ckpt_glue::Rule::SeatStale
            | ckpt_glue::Rule::MovedWhileRunning
            | ckpt_glue::Rule::LossUntold => None,
        };
        let switches = Switches {
            glue: ckpt_glue::Sabotage::out(rule),
            store: store.map_or(store::sabotage::Sabotage::none(), store::sabotage::Sabotage::out),
            keyless: rule == ckpt_glue::Rule::KeyWithoutLife,
            ..Switches::default()
        };
        Switch { name: rule.name(), switches }
    }));
    all
}

/// Rules that no history of a world meets.
fn is_elsewhere(rule: ckpt_glue::Rule) -> bool {
    match rule {
        // No rank of a world speaks PMI: the crate that has that rule has the histories for it.
        ckpt_glue::Rule::PmiAhead => true,
        // A world has one launcher at a time: see [`crate::seats`].
        ckpt_glue::Rule::SeatByHalf | ckpt_glue::Rule::SeatUnknown | ckpt_glue::Rule::SeatStale => true,
        _ => false,
    }
}

/// The outcome of the hunt for one rule.
#[derive(Clone, Debug, serde::Serialize)]
pub struct HuntReport {
    /// The rule that was out.
    pub rule: &'static str,
    /// A judge noticed.
    pub found: bool,
    /// Histories run until then, or in all.
    pub after_histories: u64,
    /// The seed of the history in which it was noticed.
    pub seed: Option<u64>,
    /// The judges' findings.
    pub violations: Vec<crate::judge::Violation>,
}

/// Takes a rule out and runs histories until a judge notices or the budget is used.
#[must_use]
pub fn hunt(switch: &Switch, histories_max: u64) -> HuntReport {
    let mut report = HuntReport {
        rule: switch.name,
        found: false,
        after_histories: 0,
        seed: None,
        violations: Vec::new(),
    };
    for seed in 0..histories_max {
        report.after_histories = seed + 1;
        let mut world = crate::world::World::new(draw(seed, None), false);
        world.take_out(switch.switches);
        world.run();
        if !world.violations().is_empty() {
            return HuntReport {
                found: true,
                seed: Some(seed),
                violations: world.violations().to_vec(),
                ..report
            };
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::SABOTAGE_HISTORIES;

    /// A rule whose loss is not noticed means a missing judge or a missing fault.
    #[test]
    fn the_loss_of_every_rule_is_noticed() {
        let all = switches();
        assert_eq!(
            all.len(),
            36,
            "13 rules of the cut (11 has three parts), one of resync, no new beginning, windows, offsets, hints, two of rails, five of nodes, three of lives, two of leases, two of suspicions, one of nodes that leave, one of ranks that are lost"
        );
        for switch in &all {
            let report = hunt(switch, SABOTAGE_HISTORIES);
            assert!(report.found, "{} was out for {SABOTAGE_HISTORIES} histories", switch.name);
        }
    }
}
