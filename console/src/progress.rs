//! Progress of a long command, on standard error: its current step, the share done, the time so far, the time
//! left.
//!
//! On a terminal one line is rewritten, and erased at the end. Elsewhere, as in a log, a line is printed at most every ten seconds. Commands that end sooner print
//! nothing. A thread prints, so that a step that takes minutes is no silence.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IsTerminal as _, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow};

use crate::size::{bytes, seconds};

/// When lines are printed.
#[derive(Clone, Copy, Debug)]
struct Pace {
    first: Duration,
    every: Duration,
}

const TERMINAL: Pace = Pace { first: Duration::from_secs(1), every: Duration::from_millis(500) };
const LOG: Pace = Pace { first: Duration::from_secs(5), every: Duration::from_secs(10) };

/// Goes to the first column and erases the line.
const ERASE: &str = "\r\x1b[K";
/// A terminal cuts a long line off at its edge, or wraps it again (DECAWM).
const CUT_OFF: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";

/// The unit of progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Steps, one after the other: `3 of 26`.
    Steps,
    /// Bytes: `1.2 GiB of 4.0 GiB`.
    Bytes,
    /// Things with this name: `1200 of 2000 histories`.
    Things(&'static str),
}

/// The progress of one command. Dropping it ends the line.
#[derive(Debug)]
pub struct Progress {
    shared: Arc<Shared>,
    printer: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    is_over: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The progress of some work.
#[derive(Debug)]
struct Work {
    name: String,
    what: String,
    unit: Unit,
    /// Steps that have begun, or things counted.
    done: u64,
    /// 0: nobody knows.
    total: u64,
    /// Of the steps that have not begun; empty where things are counted.
    weights: VecDeque<f64>,
    weight_now: f64,
    weight_done: f64,
    began: Instant,
    /// When something was done last, other than a beginning.
    done_at: Instant,
}

struct State {
    work: Work,
    to: Box<dyn Write + Send>,
    is_terminal: bool,
    /// A line stands on the terminal.
    is_shown: bool,
    over: bool,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("work", &self.work).finish_non_exhaustive()
    }
}

impl Progress {
    /// Of so many steps that take about as long as each other. `name` begins each line.
    #[must_use]
    pub fn steps(name: &str, total: usize) -> Progress {
        Progress::weighted(name, std::iter::repeat_n(1.0, total))
    }

    /// Of steps that take times in these proportions.
    #[must_use]
    pub fn weighted(name: &str, weights: impl IntoIterator<Item = f64>) -> Progress {
        let weights: VecDeque<f64> = weights.into_iter().collect();
        let total = weights.len() as u64;
        Progress::start(Work { weights, ..Work::new(name, Unit::Steps, total) }, true)
    }

    /// Of so many things or bytes; 0: nobody knows how many.
    #[must_use]
    pub fn counted(name: &str, unit: Unit, total: u64) -> Progress {
        Progress::start(Work::new(name, unit, total), true)
    }

    /// Prints nothing: for commands that are to be quiet.
    #[must_use]
    pub fn silent() -> Progress {
        Progress::start(Work::new("", Unit::Bytes, 0), false)
    }

    fn start(work: Work, prints: bool) -> Progress {
        let is_terminal = io::stderr().is_terminal();
        let pace = if is_terminal { TERMINAL } else { LOG };
        Progress::print_to(work, Box::new(io::stderr()), is_terminal, prints.then_some(pace))
    }

    fn print_to(work: Work, to: Box<dyn Write + Send>, is_terminal: bool, pace: Option<Pace>) -> Progress {
        let state = State { work, to, is_terminal, is_shown: false, over: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), is_over: Condvar::new() });
        let printer = pace.and_then(|pace| {
            let shared = Arc::clone(&shared);
            // Signals are for the other threads, some of which wait for them. Without a thread there is no progress to see, and nothing else is missing.
            let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).ok()?;
            let name = "progress".to_owned();
            let printer = std::thread::Builder::new().name(name).spawn(move || print(&shared, pace));
            before.thread_set_mask().ok();
            printer.ok()
        });
        Progress { shared, printer }
    }

    /// The next step begins; the one before is done.
    pub fn step(&self, what: fmt::Arguments<'_>) {
        let mut state = self.shared.lock();
        state.work.step(Instant::now());
        state.work.what = what.to_string();
    }

    /// The next steps will not be taken.
    pub fn skip(&self, steps: usize) {
        self.shared.lock().work.skip(steps);
    }

    /// So many more are done.
    pub fn add(&self, more: u64) {
        let mut state = self.shared.lock();
        let done = state.work.done.saturating_add(more);
        state.work.count(done, Instant::now());
    }

    /// So many are done in all.
    pub fn set(&self, done: u64) {
        self.shared.lock().work.count(done, Instant::now());
    }

    /// Sets the description of the current step.
    pub fn doing(&self, what: fmt::Arguments<'_>) {
        self.shared.lock().work.what = what.to_string();
    }

    /// Prints a line of its own on standard error.
    pub fn note(&self, line: fmt::Arguments<'_>) {
        let mut state = self.shared.lock();
        state.erase();
        // Standard error may be closed; the command goes on.
        let _ = writeln!(state.to, "{line}");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.is_over.notify_all();
        if let Some(printer) = self.printer.take() {
            // It has only printed.
            let _ = printer.join();
        }
    }
}

fn print(shared: &Shared, pace: Pace) {
    let mut state = shared.lock();
    let mut due = state.work.began + pace.first;
    while !state.over {
        let now = Instant::now();
        if now >= due {
            state.draw(now);
            due = now + pace.every;
        }
        let waited = shared.is_over.wait_timeout(state, due.saturating_duration_since(now));
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    state.erase();
}

impl State {
    fn draw(&mut self, now: Instant) {
        let line = self.work.line(now);
        // Standard error may be closed; the command goes on.
        let _ = if self.is_terminal {
            self.is_shown = true;
            write!(self.to, "{ERASE}{CUT_OFF}{line}{WRAP}")
        } else {
            writeln!(self.to, "{line}")
        };
        let _ = self.to.flush();
    }

    fn erase(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            let _ = write!(self.to, "{ERASE}");
            let _ = self.to.flush();
        }
    }
}

impl Work {
    fn new(name: &str, unit: Unit, total: u64) -> Work {
        let (name, now) = (name.to_owned(), Instant::now());
        Work {
            name,
            what: String::new(),
            unit,
            done: 0,
            total,
            weights: VecDeque::new(),
            weight_now: 0.0,
            weight_done: 0.0,
            began: now,
            done_at: now,
        }
    }

    fn step(&mut self, now: Instant) {
        if self.done > 0 {
            self.done_at = now;
        }
        self.done += 1;
        self.weight_done += self.weight_now;
        self.weight_now = self.weights.pop_front().unwrap_or(0.0);
    }

    fn skip(&mut self, steps: usize) {
        let steps = steps.min(self.weights.len());
        self.weights.drain(..steps);
        self.total -= steps as u64;
    }

    fn count(&mut self, done: u64, now: Instant) {
        (self.done, self.done_at) = (done, now);
    }

    /// Time that is left, if the rest goes as fast as the part that is done.
    fn left(&self, now: Instant) -> Option<Duration> {
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let (done, left) = match self.unit {
            Unit::Steps => (self.weight_done, self.weight_now + self.weights.iter().sum::<f64>()),
            _ => (self.done as f64, self.total.saturating_sub(self.done) as f64),
        };
        if done <= 0.0 || self.total == 0 {
            return None;
        }
        let took = self.done_at.duration_since(self.began);
        let left = Duration::try_from_secs_f64(took.as_secs_f64() * left / done).ok()?;
        Some(left.saturating_sub(now.duration_since(self.done_at)))
    }

    fn line(&self, now: Instant) -> String {
        let Work { name, what, done, total, .. } = self;
        let amount = match (self.unit, *total) {
            (Unit::Bytes, 0) => bytes(*done),
            (Unit::Bytes, total) => format!("{} of {}", bytes(*done), bytes(total)),
            (Unit::Things(things), 0) => format!("{done} {things}"),
            (Unit::Things(things), total) => format!("{done} of {total} {things}"),
            (Unit::Steps, total) => format!("{done} of {total}"),
        };
        let what = if what.is_empty() { String::new() } else { format!(", {what}") };
        let left = match self.left(now) {
            None if *total == 0 => String::new(),
            None => ", no estimate yet".to_owned(),
            Some(left) if left < Duration::from_secs(1) => ", nearly done".to_owned(),
            Some(left) => format!(", about {} left", seconds(left)),
        };
        format!("{name}: {amount}{what}; {} so far{left}", seconds(now.duration_since(self.began)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(work: &Work, all: u64) -> Instant {
        work.began + Duration::from_secs(all)
    }

    #[test]
    fn the_estimate_follows_the_weights_of_steps() {
        let weights = VecDeque::from([1.0, 1.0, 4.0]);
        let mut work = Work { weights, ..Work::new("pause", Unit::Steps, 3) };
        work.step(work.began);
        work.what = "64 MiB".to_owned();
        assert_eq!(work.line(after(&work, 7)), "pause: 1 of 3, 64 MiB; 7 s so far, no estimate yet");
        work.step(after(&work, 10));
        assert_eq!(work.line(after(&work, 10)), "pause: 2 of 3, 64 MiB; 10 s so far, about 50 s left");
        assert_eq!(work.line(after(&work, 15)), "pause: 2 of 3, 64 MiB; 15 s so far, about 45 s left");
        work.step(after(&work, 20));
        assert_eq!(work.line(after(&work, 20)), "pause: 3 of 3, 64 MiB; 20 s so far, about 40 s left");
        assert_eq!(work.line(after(&work, 99)), "pause: 3 of 3, 64 MiB; 1 min 39 s so far, nearly done");
    }

    #[test]
    fn steps_that_are_skipped_are_no_work() {
        let mut work = Work { weights: VecDeque::from([1.0; 4]), ..Work::new("pause", Unit::Steps, 4) };
        work.step(work.began);
        work.skip(2);
        work.step(after(&work, 10));
        assert_eq!(work.line(after(&work, 10)), "pause: 2 of 2; 10 s so far, about 10 s left");
        work.skip(9);
        assert_eq!((work.total, work.weights.len()), (2, 0));
    }

    #[test]
    fn things_and_bytes_are_counted() {
        let mut work = Work::new("sim swarm", Unit::Things("histories"), 2000);
        assert_eq!(work.line(after(&work, 5)), "sim swarm: 0 of 2000 histories; 5 s so far, no estimate yet");
        work.count(500, after(&work, 20));
        assert_eq!(
            work.line(after(&work, 20)),
            "sim swarm: 500 of 2000 histories; 20 s so far, about 1 min left"
        );
        let mut work = Work::new("verify", Unit::Bytes, 0);
        work.count(3 << 20, after(&work, 6));
        assert_eq!(work.line(after(&work, 6)), "verify: 3.0 MiB; 6 s so far");
    }

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Written {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().expect("no panic").clone()).expect("text")
        }

        fn wait_for(&self, words: &str) {
            let until = Instant::now() + Duration::from_secs(20);
            while !self.text().contains(words) {
                assert!(Instant::now() < until, "{words:?} is missing: {:?}", self.text());
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    fn printing(is_terminal: bool, first: Duration) -> (Progress, Written) {
        let (work, written) = (Work::new("verify", Unit::Bytes, 4 << 20), Written::default());
        let pace = Pace { first, every: Duration::from_millis(5) };
        let progress = Progress::print_to(work, Box::new(written.clone()), is_terminal, Some(pace));
        (progress, written)
    }

    #[test]
    fn a_terminal_has_one_line_that_goes_at_the_end() {
        let (progress, written) = printing(true, Duration::ZERO);
        progress.add(1 << 20);
        written.wait_for("1.0 MiB of 4.0 MiB");
        progress.note(format_args!("a line that stays"));
        progress.add(1 << 20);
        written.wait_for("2.0 MiB of 4.0 MiB");
        drop(progress);
        let text = written.text();
        assert_eq!(text.matches('\n').count(), 1, "{text:?}");
        assert!(text.contains("\r\x1b[Ka line that stays\n\r\x1b[K"), "{text:?}");
        assert!(text.ends_with("\x1b[?7h\r\x1b[K"), "{text:?}");
    }

    #[test]
    fn a_log_has_lines_and_no_control_characters() {
        let (progress, written) = printing(false, Duration::ZERO);
        progress.set(3 << 20);
        written.wait_for("verify: 3.0 MiB of 4.0 MiB; ");
        drop(progress);
        let text = written.text();
        assert!(text.ends_with('\n') && !text.contains(['\r', '\x1b']), "{text:?}");
    }

    #[test]
    fn what_ends_soon_prints_nothing() {
        let (progress, written) = printing(true, Duration::from_secs(3600));
        progress.add(4 << 20);
        drop(progress);
        assert_eq!(written.text(), "");
    }
}
