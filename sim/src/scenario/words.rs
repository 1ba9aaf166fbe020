//! One line of a scenario as words, and the error of an unexpected word.

use core::ops::RangeInclusive;

use super::units::{parse_duration, parse_percent, parse_signed_duration};
use crate::engine::queue::Nanos;

/// Letters of a wrong word that an error repeats.
const FOUND_LETTERS_MAX: usize = 40;

/// The faults of a scenario.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: expected {expected}, found {found}")]
pub struct ScenarioError {
    /// Line, from 1.
    pub line: usize,
    /// Words that would have been right there.
    pub expected: String,
    /// The words that stand there.
    pub found: String,
}

/// The words of a line that are not read yet. Commas and colons are words.
#[derive(Clone, Debug)]
pub(super) struct Words<'a> {
    line: usize,
    rest: &'a str,
}

impl<'a> Words<'a> {
    pub(super) fn new(line: usize, text: &'a str) -> Words<'a> {
        Words { line, rest: text.trim() }
    }

    pub(super) fn peek(&self) -> Option<&'a str> {
        self.clone().next()
    }

    pub(super) fn next(&mut self) -> Option<&'a str> {
        let first = self.rest.chars().next()?;
        let is_mark = |symbol: char| symbol == ',' || symbol == ':';
        let end = if is_mark(first) {
            first.len_utf8()
        } else {
            self.rest
                .find(|symbol: char| symbol.is_whitespace() || is_mark(symbol))
                .unwrap_or(self.rest.len())
        };
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        Some(word)
    }

    /// The error for the unexpected `found`.
    pub(super) fn wrong(&self, expected: impl Into<String>, found: Option<&str>) -> ScenarioError {
        let found = match found {
            None => "the end of the line".to_owned(),
            Some(word) => {
                let short: String = word.chars().take(FOUND_LETTERS_MAX).collect();
                format!("'{}'", short.escape_debug())
            }
        };
        ScenarioError { line: self.line, expected: expected.into(), found }
    }

    /// These words, in this order.
    pub(super) fn all(&mut self, words: &str) -> Result<(), ScenarioError> {
        for expected in words.split(' ') {
            let found = self.next();
            if found != Some(expected) {
                return Err(self.wrong(format!("'{expected}'"), found));
            }
        }
        Ok(())
    }

    /// One of these words; the value that belongs to it.
    pub(super) fn one_of<T: Copy>(&mut self, choices: &[(&str, T)]) -> Result<T, ScenarioError> {
        let found = self.next();
        let choice = choices.iter().find(|(word, _)| Some(*word) == found);
        choice.map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<String> = choices.iter().map(|(word, _)| format!("'{word}'")).collect();
            self.wrong(words.join(" or "), found)
        })
    }

    /// Whether the next word is this one; then it is read.
    pub(super) fn has(&mut self, word: &str) -> bool {
        let here = self.peek() == Some(word);
        if here {
            self.next();
        }
        here
    }

    fn value<T>(
        &mut self,
        expected: impl FnOnce() -> String,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, ScenarioError> {
        let found = self.next();
        found.and_then(parse).ok_or_else(|| self.wrong(expected(), found))
    }

    pub(super) fn number(&mut self, what: &str, range: RangeInclusive<u64>) -> Result<u64, ScenarioError> {
        let expected = || format!("{what} from {} to {}", range.start(), range.end());
        self.value(expected, |word| parse_number(word).filter(|number| range.contains(number)))
    }

    pub(super) fn small_number(
        &mut self,
        what: &str,
        range: RangeInclusive<u32>,
    ) -> Result<u32, ScenarioError> {
        let number = self.number(what, u64::from(*range.start())..=u64::from(*range.end()))?;
        // It lies in a range of 32-bit numbers.
        Ok(u32::try_from(number).unwrap_or(u32::MAX))
    }

    pub(super) fn signed_number(&mut self, what: &str, most: i64) -> Result<i64, ScenarioError> {
        let parse = |word: &str| {
            let size = i64::try_from(parse_number(word.trim_start_matches('-'))?).ok()?;
            let number = if word.starts_with('-') { -size } else { size };
            // `trim_start_matches` takes any number of signs, and minus nothing is nothing.
            (number.to_string() == word && size <= most).then_some(number)
        };
        self.value(|| format!("{what} from -{most} to {most}"), parse)
    }

    /// `#` and a number.
    pub(super) fn ordinal(&mut self, most: u32) -> Result<u32, ScenarioError> {
        let parse = |word: &str| {
            let number = u32::try_from(parse_number(word.strip_prefix('#')?)?).ok()?;
            (number <= most).then_some(number)
        };
        self.value(|| format!("the number of the moment, #0 to #{most}"), parse)
    }

    pub(super) fn duration(&mut self, most: Nanos) -> Result<Nanos, ScenarioError> {
        let expected = || format!("a time such as 12us or 1.5ms, at most {}", super::units::duration(most));
        self.value(expected, |word| parse_duration(word).filter(|nanos| *nanos <= most))
    }

    pub(super) fn signed_duration(&mut self, most: Nanos) -> Result<i64, ScenarioError> {
        let expected = || format!("a time such as 12us or -1.5ms, at most {}", super::units::duration(most));
        self.value(expected, |word| parse_signed_duration(word).filter(|by| by.unsigned_abs() <= most))
    }

    pub(super) fn percent(&mut self) -> Result<u16, ScenarioError> {
        self.value(|| "a chance such as 2.5%, with at most four decimals".to_owned(), parse_percent)
    }

    /// A word of small letters, digits, `-` and `_`.
    pub(super) fn name(&mut self, what: &str) -> Result<&'a str, ScenarioError> {
        let fits =
            |symbol: char| symbol.is_ascii_lowercase() || symbol.is_ascii_digit() || "-_".contains(symbol);
        let found = self.next();
        found.filter(|word| word.chars().all(fits)).ok_or_else(|| self.wrong(what, found))
    }

    /// Nothing is left.
    pub(super) fn end(&mut self) -> Result<(), ScenarioError> {
        match self.next() {
            None => Ok(()),
            found => Err(self.wrong("the end of the line", found)),
        }
    }
}

/// Digits only: `parse` alone would take a plus sign.
fn parse_number(word: &str) -> Option<u64> {
    word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok()).flatten()
}
