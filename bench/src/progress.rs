//! Prints the progress of a long measurement on standard error.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use console::Progress;

/// Which of the benches of `all` runs, and how many there are.
static OF_ALL: Mutex<Option<(usize, usize)>> = Mutex::new(None);

/// The next lines of progress are those of this one of so many benches.
pub(crate) fn set_of_all(place: Option<(usize, usize)>) {
    *OF_ALL.lock().unwrap_or_else(PoisonError::into_inner) = place;
}

/// A measurement in steps.
#[derive(Debug)]
pub(crate) struct Steps(Progress);

impl Steps {
    /// Of steps that take about as long as each other.
    pub(crate) fn new(bench: &str, total: usize) -> Steps {
        Steps::weighted(bench, std::iter::repeat_n(1.0, total))
    }

    /// Of steps that take times in these proportions.
    pub(crate) fn weighted(bench: &str, weights: impl IntoIterator<Item = f64>) -> Steps {
        let name = match *OF_ALL.lock().unwrap_or_else(PoisonError::into_inner) {
            Some((place, all)) => format!("{bench} ({place} of {all} benches)"),
            None => bench.to_owned(),
        };
        Steps(Progress::weighted(&name, weights))
    }

    /// The next step begins.
    pub(crate) fn step(&self, what: fmt::Arguments<'_>) {
        self.0.step(what);
    }

    /// The next steps will not be taken.
    pub(crate) fn skip(&self, steps: usize) {
        self.0.skip(steps);
    }

    /// Prints a line of its own on standard error.
    pub(crate) fn note(&self, line: fmt::Arguments<'_>) {
        self.0.note(line);
    }
}
