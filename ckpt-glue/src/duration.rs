//! Durations as people write them in job files and on command lines: `250ms`, `1.5s`, `5m`.

use alloc::format;
use alloc::string::{String, ToString as _};
use core::time::Duration;

use crate::error::DurationError;
use crate::limits::DURATION_MAX;

/// Units with their nanoseconds, longest name first where one ends with another.
const UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// Digits behind the point that mean anything: a nanosecond of a second.
const FRACTION_DIGITS_MAX: usize = 9;

/// Reads a number with a unit. Fractions are exact to the nanosecond.
///
/// # Errors
/// If there is no unit, no number, or more than [`DURATION_MAX`].
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let wrong = || DurationError { found: text.chars().take(40).collect() };
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
    let (number, unit) = text.split_at(split);
    let (_, unit_ns) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if fraction.is_empty() || fraction.len() > FRACTION_DIGITS_MAX || fraction.contains('.') {
        return Err(wrong());
    }
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let parts: u64 = fraction.parse().map_err(|_| wrong())?;
    let scale = 10u64.pow(u32::try_from(fraction.len()).unwrap_or(0));
    let nanos = u128::from(whole) * u128::from(*unit_ns)
        + u128::from(parts) * u128::from(*unit_ns) / u128::from(scale);
    let nanos = u64::try_from(nanos).map_err(|_| wrong())?;
    let duration = Duration::from_nanos(nanos);
    if duration > DURATION_MAX { Err(wrong()) } else { Ok(duration) }
}

/// Writes a duration so that [`parse_duration`] reads the same one: the largest unit without a fraction.
#[must_use]
pub fn write_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".to_string();
    }
    let (name, unit_ns) =
        UNITS.iter().rev().find(|(_, unit)| nanos.is_multiple_of(u128::from(*unit))).unwrap_or(&UNITS[0]);
    format!("{}{name}", nanos / u128::from(*unit_ns))
}

/// `serde(with = ...)` for a duration.
pub(crate) mod text {
    use super::{Duration, String, parse_duration, write_duration};
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&write_duration(*duration))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        parse_duration(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// `serde(with = ...)` for a duration that may be missing.
pub(crate) mod optional_text {
    use super::{Duration, String, parse_duration, write_duration};
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(crate) fn serialize<S: Serializer>(duration: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => to.serialize_some(&write_duration(*duration)),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| parse_duration(&text).map_err(D::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_s_durations_are_read() {
        for (text, nanos) in [
            ("5m", 300_000_000_000),
            ("1.5s", 1_500_000_000),
            ("250ms", 250_000_000),
            ("0s", 0),
            ("0.5us", 500),
            ("2h", 7_200_000_000_000),
            ("1d", 86_400_000_000_000),
            ("7ns", 7),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
        for text in [
            "",
            "5",
            "m",
            "5 m",
            "-1s",
            "1.s",
            ".5s",
            "1.2.3s",
            "367d",
            "99999999999999999999s",
            "1e3s",
            "5min",
        ] {
            assert!(parse_duration(text).is_err(), "{text} must be refused");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_is_written_is_read(nanos in 0u64..31_000_000_000_000_000) {
            let duration = Duration::from_nanos(nanos);
            assert_eq!(parse_duration(&write_duration(duration)), Ok(duration));
        }
    }
}
