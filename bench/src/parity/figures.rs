//! The figures from end to end that are kept: the subject of each, by name. `bench/protection` takes them, and more, by commands.

use store::protect::Scheme;

use super::{Dirty, GroupOptions, ProgramOptions};

/// The name of a figure, and its measurement.
type Figure<O> = (&'static str, O);

/// Time against nodes, against the length of an image, and against the changed share. `quick`: one small run of each.
#[must_use]
pub fn group_figures(quick: bool) -> [Figure<GroupOptions>; 3] {
    let defaults = GroupOptions { runs: if quick { 1 } else { 3 }, ..GroupOptions::default() };
    let of = |whole: GroupOptions, bytes: usize| {
        if quick { GroupOptions { bytes: vec![bytes], ..whole } } else { whole }
    };
    let nodes =
        GroupOptions { nodes: if quick { vec![2, 4] } else { (2..=8).collect() }, ..defaults.clone() };
    let lengths = [16 << 20, 32 << 20, 64 << 20, 128 << 20, 256 << 20].to_vec();
    let deltas = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0].map(Dirty::Percent);
    let dirty = deltas.into_iter().chain([Dirty::Whole]).collect();
    [
        ("parity-nodes", of(nodes, 1 << 20)),
        ("parity-lengths", of(GroupOptions { bytes: lengths, ..defaults.clone() }, 1 << 20)),
        ("parity-dirty", of(GroupOptions { dirty, ..defaults }, 1 << 20)),
    ]
}

/// Programs, protected by one parity and by two.
#[must_use]
pub fn program_figures(quick: bool) -> [Figure<ProgramOptions>; 2] {
    let mut defaults = ProgramOptions::default();
    if quick {
        defaults.group.bytes = vec![1 << 20];
        defaults.checkpoints = 2;
    }
    let mut two = defaults.clone();
    two.group.scheme = Scheme::Rs { data: 2, parity: 2 };
    [("parity-programs", defaults), ("parity-programs-rs", two)]
}
