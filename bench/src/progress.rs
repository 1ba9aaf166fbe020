//! Prints the progress of a long measurement on standard error.

use std::fmt;

/// A measurement of so many steps.
pub(crate) struct Steps {
    bench: &'static str,
    total: usize,
    done: usize,
}

impl Steps {
    pub(crate) fn new(bench: &'static str, total: usize) -> Steps {
        Steps { bench, total, done: 0 }
    }

    /// The next step begins.
    pub(crate) fn step(&mut self, what: fmt::Arguments<'_>) {
        self.done += 1;
        eprintln!("{}: {} of {}: {what}", self.bench, self.done, self.total);
    }
}
