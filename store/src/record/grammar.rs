//! Lines, numbers and escapes that all records share.

use core::fmt::{Display, Write};
use core::ops::RangeInclusive;
use core::str::FromStr;

use ckpt_glue::{GenerationId, ImageDigest};
use transport::{Epoch, JobId, Life};

use crate::checksum::checksum;
use crate::error::RecordError;

const FIRST_WORD: &str = "stillwire ";
const CHECKSUM_KEY: &str = "checksum ";
/// `checksum `, 16 digits, a line end.
const CHECKSUM_LINE_BYTES: usize = CHECKSUM_KEY.len() + 16 + 1;

/// A kind of record: its name and its versions.
pub(super) struct Form {
    pub(super) what: &'static str,
    pub(super) version: u16,
}

impl Form {
    fn readable(&self) -> RangeInclusive<u16> {
        1..=self.version
    }
}

/// Emits one record.
pub(super) struct RecordWriter {
    text: String,
}

impl RecordWriter {
    pub(super) fn new(form: &Form) -> RecordWriter {
        RecordWriter { text: format!("{FIRST_WORD}{} {}\n", form.what, form.version) }
    }

    pub(super) fn line(&mut self, key: &str, value: impl Display) {
        // Writing into a `String` cannot fail.
        let _ = writeln!(self.text, "{key} {value}");
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        let sum = checksum(self.text.as_bytes());
        self.text.push_str(CHECKSUM_KEY);
        let _ = writeln!(self.text, "{sum:016x}");
        self.text.into_bytes()
    }
}

/// Reads one record line by line.
pub(super) struct LineReader<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> LineReader<'a> {
    /// Checks name, version and checksum; the lines between are left to be read.
    pub(super) fn open(form: &Form, bytes: &'a [u8]) -> Result<LineReader<'a>, RecordError> {
        let wrong = RecordError::NotThisRecord { expected: form.what };
        // The first line is looked at before the checksum: a file of another kind or version may end differently.
        let Some(end) = bytes.iter().take(FIRST_LINE_BYTES_MAX).position(|byte| *byte == b'\n') else {
            return Err(wrong);
        };
        let first = str::from_utf8(&bytes[..end]).map_err(|_| wrong.clone())?;
        let version = first.strip_prefix(FIRST_WORD).and_then(|rest| rest.strip_prefix(form.what));
        let version =
            version.and_then(|rest| rest.strip_prefix(' ')).and_then(decimal::<u16>).ok_or(wrong)?;
        let cut_off = || RecordError::CutOff { what: form.what };
        let (lines, sum_line) = match bytes.len().checked_sub(CHECKSUM_LINE_BYTES).filter(|at| *at > end) {
            Some(at) => bytes.split_at(at),
            None => return Err(cut_off()),
        };
        let sum = str::from_utf8(sum_line).ok().and_then(|line| line.strip_prefix(CHECKSUM_KEY));
        let sum = sum.and_then(|line| line.strip_suffix('\n')).and_then(hexadecimal::<16>);
        let expected = sum.and_then(|sum| u64::try_from(sum).ok()).ok_or_else(cut_off)?;
        let found = checksum(lines);
        if expected != found {
            return Err(RecordError::Damaged { what: form.what, expected, found });
        }
        if !form.readable().contains(&version) {
            let (what, readable) = (form.what, form.readable());
            return Err(RecordError::UnsupportedVersion { what, found: version, readable });
        }
        let rest = &lines[end + 1..];
        let rest =
            str::from_utf8(rest).map_err(|_| RecordError::Line { line: 2, expected: "text in ASCII" })?;
        Ok(LineReader { rest, line: 2 })
    }

    /// The value of the next line if its key is `key`.
    pub(super) fn optional(&mut self, key: &'static str) -> Option<&'a str> {
        let (line, rest) = self.rest.split_once('\n')?;
        let value = line.strip_prefix(key)?.strip_prefix(' ')?;
        self.rest = rest;
        self.line += 1;
        Some(value)
    }

    /// The next line as `form` (such as `life LIFE`) describes it; `parse` reads its value.
    pub(super) fn line<T>(
        &mut self,
        key: &'static str,
        form: &'static str,
        parse: impl FnOnce(&'a str) -> Option<T>,
    ) -> Result<T, RecordError> {
        let line = self.line;
        let value = self.optional(key).and_then(parse);
        value.ok_or(RecordError::Line { line, expected: form })
    }

    /// Every next line with this key, at most `count_max` of them.
    pub(super) fn lines<T>(
        &mut self,
        key: &'static str,
        form: &'static str,
        count_max: usize,
        mut parse: impl FnMut(&'a str) -> Option<T>,
    ) -> Result<Vec<T>, RecordError> {
        let mut values = Vec::new();
        loop {
            let line = self.line;
            let Some(value) = self.optional(key) else { return Ok(values) };
            if values.len() == count_max {
                return Err(RecordError::TooMany { what: key, count: count_max + 1, count_max });
            }
            values.push(parse(value).ok_or(RecordError::Line { line, expected: form })?);
        }
    }

    /// The error that the line just read is not as `form` describes it.
    pub(super) fn line_before(&self, form: &'static str) -> RecordError {
        RecordError::Line { line: self.line - 1, expected: form }
    }

    /// `Ok` if every line was read.
    pub(super) fn end(&self) -> Result<(), RecordError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(RecordError::Line { line: self.line, expected: "checksum CHECKSUM" })
    }
}

/// The longest first line: any name and version fit.
const FIRST_LINE_BYTES_MAX: usize = 64;

/// A decimal number in its one spelling: no sign, no leading zero.
pub(super) fn decimal<T: FromStr + ToString>(text: &str) -> Option<T> {
    let number: T = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// Exactly `DIGITS` lower-case hexadecimal digits.
pub(super) fn hexadecimal<const DIGITS: usize>(text: &str) -> Option<u128> {
    let spelled = text.len() == DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if spelled { u128::from_str_radix(text, 16).ok() } else { None }
}

pub(super) fn job(text: &str) -> Option<JobId> {
    hexadecimal::<32>(text).map(JobId)
}

pub(super) fn life(text: &str) -> Option<Life> {
    let (counter, nonce) = text.split_once('.')?;
    Some(Life { counter: decimal(counter)?, nonce: u64::try_from(hexadecimal::<16>(nonce)?).ok()? })
}

pub(super) fn digest(text: &str) -> Option<ImageDigest> {
    sum(text).map(ImageDigest)
}

pub(super) fn sum(text: &str) -> Option<u64> {
    hexadecimal::<16>(text).and_then(|value| u64::try_from(value).ok())
}

/// `LIFE EPOCH`
pub(super) fn generation(text: &str) -> Option<GenerationId> {
    let (of_life, epoch) = text.split_once(' ')?;
    Some(GenerationId { life: life(of_life)?, epoch: Epoch(decimal(epoch)?) })
}

/// The counterpart of [`generation`].
pub(super) struct GenerationText(pub(super) GenerationId);

impl Display for GenerationText {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} {}", self.0.life, self.0.epoch)
    }
}

/// Any bytes as one word: bytes other than visible ASCII, and `%`, become `%` and two digits.
pub(super) struct Escaped<'a>(pub(super) &'a [u8]);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for byte in self.0 {
            match byte {
                b'%' => f.write_str("%25")?,
                b'!'..=b'~' => f.write_char(char::from(*byte))?,
                _ => write!(f, "%{byte:02x}")?,
            }
        }
        Ok(())
    }
}

/// The bytes of an escaped word, in its one spelling.
pub(super) fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = match first {
            b'%' => {
                let (digits, after) = after.split_at_checked(2)?;
                let value = hexadecimal::<2>(str::from_utf8(digits).ok()?)?;
                bytes.push(u8::try_from(value).ok()?);
                after
            }
            b'!'..=b'~' => {
                bytes.push(*first);
                after
            }
            _ => return None,
        };
    }
    (Escaped(&bytes).to_string() == text).then_some(bytes)
}

/// An escaped word that is text.
pub(super) fn unescaped_text(text: &str) -> Option<String> {
    String::from_utf8(unescaped(text)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_one_spelling() {
        assert_eq!(decimal::<u32>("17"), Some(17));
        assert_eq!(decimal::<u32>("0"), Some(0));
        for other in ["017", "+17", "", " 17", "17 ", "4294967296", "-1"] {
            assert_eq!(decimal::<u32>(other), None, "{other}");
        }
        assert_eq!(hexadecimal::<4>("00ff"), Some(255));
        for other in ["00FF", "ff", "+0ff", "000ff", "00fg"] {
            assert_eq!(hexadecimal::<4>(other), None, "{other}");
        }
    }

    #[test]
    fn escapes_have_one_spelling() {
        let all: Vec<u8> = (0..=255).collect();
        let text = Escaped(&all).to_string();
        assert!(text.bytes().all(|byte| byte.is_ascii_graphic()));
        assert_eq!(unescaped(&text), Some(all));
        assert_eq!(unescaped("a%20b%0a"), Some(b"a b\n".to_vec()));
        for other in ["%41", "%0A", "%", "%0", "a b", "%é"] {
            assert_eq!(unescaped(other), None, "{other}");
        }
    }
}
