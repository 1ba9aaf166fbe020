//! A host that may continue a job whose launcher is lost: when it begins, whether, and when it gives up. Time is an argument.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Silences that pass before the first candidate begins: all leases are over by then, and the launcher's own host, whose watcher has precedence, has begun.
const SILENCES_BEFORE: u32 = 2;

/// First and longest pause between two attempts, in silences; each is twice as long as the one before.
const PAUSE_FIRST: u32 = 1;
const PAUSE_MAX: u32 = 12;

/// What a candidate sees of its own node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sight {
    /// A keeper holds the node's lock: another launcher has the job.
    Taken,
    /// The job has finished, or its directory is gone.
    Over,
    /// Nobody works on the job here.
    Free,
}

/// The outcome of an attempt that did not make the job run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Attempt {
    /// Another launcher works in this directory.
    Taken,
    /// No later attempt can succeed, and why.
    Impossible(String),
    /// A later one may, and why this one did not.
    Failed(String),
}

/// The candidate's next step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Nothing, for so long.
    Wait(Duration),
    /// Look at the node.
    Look,
    /// Start a launcher.
    Begin,
    /// Somebody else has the job, or nobody needs it.
    Leave,
    /// The job is not continued from here, and why.
    GiveUp(String),
}

/// The machine. Instants are times since the candidate began.
#[derive(Debug)]
pub(super) struct Candidate {
    silence: Duration,
    tries_for: Duration,
    due: Duration,
    pause: Duration,
    /// When the first attempt began.
    first: Option<Duration>,
    attempts: u32,
    next: Option<Step>,
}

impl Candidate {
    /// `position`: candidates that begin before. `random`: spreads candidates of one position, and attempts that hindered each other.
    pub(super) fn new(position: u32, silence: Duration, tries_for: Duration, random: u64) -> Candidate {
        let turn = SILENCES_BEFORE.saturating_add(position);
        let due = silence.saturating_mul(turn) + jitter(silence, random);
        let pause = silence * PAUSE_FIRST;
        Candidate { silence, tries_for, due, pause, first: None, attempts: 0, next: None }
    }

    pub(super) fn poll(&mut self, now: Duration) -> Step {
        match self.next.take() {
            Some(step) => step,
            None if now < self.due => Step::Wait(self.due - now),
            None => Step::Look,
        }
    }

    pub(super) fn saw(&mut self, now: Duration, sight: Sight) {
        self.next = Some(match sight {
            Sight::Taken | Sight::Over => Step::Leave,
            Sight::Free => {
                self.first.get_or_insert(now);
                self.attempts += 1;
                Step::Begin
            }
        });
    }

    pub(super) fn tried(&mut self, now: Duration, attempt: Attempt, random: u64) {
        let begun = self.first.unwrap_or(now);
        let why = match attempt {
            Attempt::Taken => return self.next = Some(Step::Leave),
            Attempt::Impossible(why) => return self.next = Some(Step::GiveUp(why)),
            Attempt::Failed(why) => why,
        };
        self.due = now + self.pause + jitter(self.pause, random);
        self.pause = (self.pause * 2).min(self.silence * PAUSE_MAX);
        if self.due >= begun + self.tries_for {
            let (attempts, tried) = (self.attempts, ckpt_glue::write_duration(self.tries_for));
            self.next = Some(Step::GiveUp(format!(
                "{attempts} attempts in {tried} have failed; the last one: {why}"
            )));
        }
    }
}

/// Up to half of the time.
fn jitter(time: Duration, random: u64) -> Duration {
    const STEPS: u64 = 1024;
    let part = u32::try_from(random % STEPS).unwrap_or_default();
    time / 2 * part / u32::try_from(STEPS).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn candidate(position: u32) -> Candidate {
        Candidate::new(position, 5 * SECOND, 600 * SECOND, 0)
    }

    /// An attempt that fails at this time.
    fn fail(candidate: &mut Candidate, now: Duration) {
        assert_eq!(candidate.poll(now), Step::Look);
        candidate.saw(now, Sight::Free);
        assert_eq!(candidate.poll(now), Step::Begin);
        candidate.tried(now, Attempt::Failed("no majority".to_owned()), 0);
    }

    #[test]
    fn candidates_begin_one_after_the_other_and_after_the_watcher() {
        for (position, turn) in [(0, 10), (1, 15), (3, 25)] {
            let mut candidate = candidate(position);
            assert_eq!(candidate.poll(SECOND), Step::Wait((turn - 1) * SECOND));
            assert_eq!(candidate.poll(turn * SECOND), Step::Look);
        }
        let late = Candidate::new(0, 4 * SECOND, SECOND, u64::MAX).due;
        assert!(late > 9 * SECOND && late < 10 * SECOND, "{late:?}: before the next one");
        assert!(Candidate::new(u32::MAX, SECOND, SECOND, 0).due > SECOND, "no overflow");
    }

    #[test]
    fn who_finds_the_job_taken_or_over_leaves() {
        for sight in [Sight::Taken, Sight::Over] {
            let mut candidate = candidate(0);
            assert_eq!(candidate.poll(10 * SECOND), Step::Look);
            candidate.saw(10 * SECOND, sight);
            assert_eq!(candidate.poll(10 * SECOND), Step::Leave);
        }
        // Before a later attempt, too, and in the middle of one.
        let mut later = candidate(0);
        fail(&mut later, 10 * SECOND);
        assert_eq!(later.poll(10 * SECOND), Step::Wait(5 * SECOND));
        assert_eq!(later.poll(15 * SECOND), Step::Look);
        later.saw(15 * SECOND, Sight::Free);
        assert_eq!(later.poll(15 * SECOND), Step::Begin);
        later.tried(16 * SECOND, Attempt::Taken, 0);
        assert_eq!(later.poll(16 * SECOND), Step::Leave);
    }

    #[test]
    fn pauses_grow_until_the_limit_and_the_reason_is_kept() {
        let mut candidate = candidate(0);
        let mut now = 10 * SECOND;
        let mut pauses = Vec::new();
        let why = loop {
            fail(&mut candidate, now);
            match candidate.poll(now) {
                Step::Wait(pause) => {
                    pauses.push(pause.as_secs());
                    now += pause;
                }
                Step::GiveUp(why) => break why,
                step => panic!("{step:?}"),
            }
        };
        assert_eq!(pauses[..6], [5, 10, 20, 40, 60, 60]);
        assert!(now <= 610 * SECOND, "{now:?}: since the first attempt");
        assert!(why.contains("13 attempts in 10m") && why.contains("no majority"), "{why}");
    }

    #[test]
    fn what_can_never_succeed_is_tried_once() {
        let mut candidate = candidate(0);
        assert_eq!(candidate.poll(10 * SECOND), Step::Look);
        candidate.saw(10 * SECOND, Sight::Free);
        assert_eq!(candidate.poll(10 * SECOND), Step::Begin);
        candidate.tried(11 * SECOND, Attempt::Impossible("the key is missing".to_owned()), 0);
        assert_eq!(candidate.poll(11 * SECOND), Step::GiveUp("the key is missing".to_owned()));
    }
}
