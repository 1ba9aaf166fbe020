//! Reports of a repeated problem: in full the first time, then how often, from time to time.

use std::collections::BTreeMap;
use std::time::Duration;

/// Least time between two lines about one problem.
pub const AGAIN_EVERY: Duration = Duration::from_secs(60);

/// A problem that has not come for so long is a new one when it comes.
const FORGET_AFTER: Duration = Duration::from_secs(600);

/// Problems that are remembered; of more, the one that has not come for the longest time is forgotten.
const PROBLEMS_MAX: usize = 64;

/// The report that a problem needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Say {
    /// All of it.
    InFull,
    /// That it has come again.
    Again {
        /// How often by now, this time included.
        times: u64,
    },
    /// Nothing, for now.
    Nothing,
}

#[derive(Clone, Copy, Debug)]
struct Problem {
    times: u64,
    /// When it was reported last, and when it came last.
    said: Duration,
    came: Duration,
}

/// Problems by subject (`checkpoint`) and kind.
#[derive(Clone, Debug, Default)]
pub struct Repeats(BTreeMap<(&'static str, String), Problem>);

impl Repeats {
    /// A problem has come. `now`: since any fixed instant. Problems whose words differ in numbers alone (ranks, processes, addresses) are the same.
    pub fn note(&mut self, now: Duration, subject: &'static str, words: &str) -> Say {
        let key = (subject, kind(words));
        let known = self.0.get_mut(&key).filter(|problem| now.saturating_sub(problem.came) < FORGET_AFTER);
        let Some(problem) = known else {
            self.make_room();
            self.0.insert(key, Problem { times: 1, said: now, came: now });
            return Say::InFull;
        };
        problem.times += 1;
        problem.came = now;
        if now.saturating_sub(problem.said) < AGAIN_EVERY {
            return Say::Nothing;
        }
        problem.said = now;
        Say::Again { times: problem.times }
    }

    /// The same for a problem that a user waits for: a line is printed in any case.
    pub fn note_awaited(&mut self, now: Duration, subject: &'static str, words: &str) -> Say {
        match self.note(now, subject, words) {
            Say::Nothing => {
                let problem = self.0.get_mut(&(subject, kind(words)));
                Say::Again { times: problem.map_or(1, |problem| problem.times) }
            }
            say => say,
        }
    }

    /// The problems of this subject have gone away: one that comes back is reported in full.
    pub fn over(&mut self, subject: &'static str) {
        self.0.retain(|(of, _), _| *of != subject);
    }

    fn make_room(&mut self) {
        if self.0.len() < PROBLEMS_MAX {
            return;
        }
        let oldest = self.0.iter().min_by_key(|(_, problem)| problem.came).map(|(key, _)| key.clone());
        oldest.map(|key| self.0.remove(&key));
    }
}

/// Words without their numbers: letters and digits that follow a first digit count as one number, and so does a hexadecimal number.
pub(crate) fn kind(words: &str) -> String {
    let mut kind = String::with_capacity(words.len());
    let mut rest = words;
    while let Some(first) = rest.chars().next() {
        let run = rest.find(|letter: char| !letter.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let run = run.max(first.len_utf8());
        let (word, after) = rest.split_at(run);
        let has_digit = word.bytes().any(|byte| byte.is_ascii_digit());
        let is_hexadecimal =
            has_digit && word.len() >= 6 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        if first.is_ascii_digit() || is_hexadecimal {
            kind.push('#')
        } else {
            kind.push_str(word)
        }
        rest = after;
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUBJECT: &str = "checkpoint";

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_problem_is_said_in_full_once_and_then_counted_once_a_minute() {
        let mut repeats = Repeats::default();
        let said: Vec<Say> =
            (0..30).map(|time| repeats.note(at(5 * time), SUBJECT, "rank 0 holds a pipe")).collect();
        assert_eq!(said[0], Say::InFull);
        let later: Vec<(usize, &Say)> =
            said.iter().enumerate().skip(1).filter(|(_, say)| **say != Say::Nothing).collect();
        assert_eq!(later, [(12, &Say::Again { times: 13 }), (24, &Say::Again { times: 25 })]);
    }

    #[test]
    fn who_waits_for_an_answer_has_one() {
        let mut repeats = Repeats::default();
        let mut note = |seconds| repeats.note_awaited(at(seconds), SUBJECT, "no");
        assert_eq!(
            [note(0), note(1), note(2)],
            [Say::InFull, Say::Again { times: 2 }, Say::Again { times: 3 }]
        );
    }

    #[test]
    fn a_problem_that_has_gone_away_and_comes_back_is_a_new_one() {
        let mut repeats = Repeats::default();
        repeats.note(at(0), SUBJECT, "full");
        repeats.note(at(0), "copy", "full");
        repeats.over(SUBJECT);
        assert_eq!(repeats.note(at(1), SUBJECT, "full"), Say::InFull);
        assert_eq!(
            repeats.note(at(1), "copy", "full"),
            Say::Nothing,
            "that of another subject is still there"
        );
        // `over` has not been called.
        assert_eq!(repeats.note(at(599), SUBJECT, "full"), Say::Again { times: 2 });
        assert_eq!(repeats.note(at(1199), SUBJECT, "full"), Say::InFull);
    }

    #[test]
    fn problems_that_differ_in_numbers_alone_are_one() {
        let mut repeats = Repeats::default();
        for words in [
            "rank 0: process 1234 maps 0x7f8c00aa00 (4 MiB)",
            "rank 3: process 99 maps 0x7e11223344 (16 MiB)",
            "rank 12: process 1 maps 7f00112233ff (1 MiB)",
        ] {
            let say = repeats.note(at(0), SUBJECT, words);
            assert_eq!(say == Say::InFull, words.starts_with("rank 0"), "{words}");
        }
        assert_eq!(repeats.note(at(0), SUBJECT, "rank 0: process 1234 holds a pipe"), Say::InFull);
        assert_eq!(kind("ü 12é deadbeef a1 abc123 libx12.so.4"), "ü #é deadbeef a1 # libx12.so.#");
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let mut repeats = Repeats::default();
        for letter in 0..200u32 {
            let words: String = core::iter::repeat_n('x', letter as usize).collect();
            assert_eq!(repeats.note(at(u64::from(letter)), SUBJECT, &words), Say::InFull);
        }
        assert_eq!(repeats.0.len(), PROBLEMS_MAX);
    }
}
