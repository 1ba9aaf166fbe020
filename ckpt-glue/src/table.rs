//! Transition tables as text: every input in every state.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;

/// One line for each pair: `state + input -> state: outputs`.
pub(crate) fn table<M, I>(
    states: &[(&str, &dyn Fn() -> M)],
    inputs: &[(&str, I)],
    mut step: impl FnMut(&mut M, &I) -> Vec<String>,
    mut name: impl FnMut(&M) -> String,
) -> String {
    let mut out = String::new();
    for (state, make) in states {
        for (input, value) in inputs {
            let mut machine = make();
            let before = name(&machine);
            let outputs = step(&mut machine, value);
            let after = name(&machine);
            if before == after && outputs.is_empty() {
                continue;
            }
            writeln!(out, "{state} + {input} -> {after}: {}", outputs.join(", ")).expect("a string takes it");
        }
    }
    out
}
