//! Durations and chances as people write them. Each value has one spelling that is written; it is read back exactly.

use crate::engine::queue::Nanos;
use crate::engine::random::CHANCE_ONE;

/// Units of durations, largest first: nanoseconds in one, and decimals that still are whole nanoseconds.
const UNITS: [(&str, Nanos, usize); 4] =
    [("s", 1_000_000_000, 9), ("ms", 1_000_000, 6), ("us", 1_000, 3), ("ns", 1, 0)];

/// Decimals of a percentage. One part of [`CHANCE_ONE`] is 0.0015 %, so four distinguish all chances.
const PERCENT_DECIMALS: usize = 4;

/// Digits of a number that are read at most: more do not fit 64 bits with any unit.
const DIGITS_MAX: usize = 19;

fn power_of_ten(exponent: usize) -> u64 {
    10u64.pow(u32::try_from(exponent).unwrap_or(0))
}

/// `value` with `decimals` of its digits behind the point, without zeros at the end.
fn decimal(value: u64, decimals: usize) -> String {
    let one = power_of_ten(decimals);
    let (whole, part) = (value / one, value % one);
    if part == 0 {
        return whole.to_string();
    }
    let part = format!("{part:0decimals$}");
    format!("{whole}.{}", part.trim_end_matches('0'))
}

/// Digits, perhaps with a point and up to `decimals` digits behind it: the number times ten to the power of `decimals`.
fn parse_decimal(text: &str, decimals: usize) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let point_is_last = text.ends_with('.');
    if whole.is_empty() || point_is_last || !digits(whole) || !digits(part) || part.len() > decimals {
        return None;
    }
    if whole.len() + decimals > DIGITS_MAX {
        return None;
    }
    format!("{whole}{part:0<decimals$}").parse().ok()
}

/// A duration in the largest unit of which it is at least one.
pub(crate) fn duration(nanos: Nanos) -> String {
    let largest = UNITS.iter().find(|(_, size, _)| nanos >= *size);
    let (unit, _, decimals) = *largest.unwrap_or(&UNITS[UNITS.len() - 1]);
    format!("{}{unit}", decimal(nanos, decimals))
}

/// Reads a duration.
pub(crate) fn parse_duration(text: &str) -> Option<Nanos> {
    let number = text.trim_end_matches(|symbol: char| symbol.is_ascii_alphabetic());
    let (_, _, decimals) = UNITS.iter().find(|(unit, _, _)| *unit == &text[number.len()..])?;
    parse_decimal(number, *decimals)
}

/// A duration with its sign.
pub(crate) fn signed_duration(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    format!("{sign}{}", duration(nanos.unsigned_abs()))
}

/// Reads a duration that may be negative.
pub(crate) fn parse_signed_duration(text: &str) -> Option<i64> {
    match text.strip_prefix('-') {
        // There is one spelling of nothing.
        Some(size) => {
            i64::try_from(parse_duration(size)?).ok().filter(|nanos| *nanos > 0).map(|nanos| -nanos)
        }
        None => i64::try_from(parse_duration(text)?).ok(),
    }
}

/// A chance in per cent, with enough decimals to distinguish it from its neighbours.
pub(crate) fn percent(chance: u16) -> String {
    let one = u64::from(CHANCE_ONE);
    let spellings = (0..=PERCENT_DECIMALS).map(|decimals| {
        let value = (u64::from(chance) * 100 * power_of_ten(decimals) + one / 2) / one;
        format!("{}%", decimal(value, decimals))
    });
    let mut exact = spellings.filter(|text| parse_percent(text) == Some(chance));
    exact.next().expect("four decimals tell all chances apart")
}

/// Reads a chance in per cent.
pub(crate) fn parse_percent(text: &str) -> Option<u16> {
    let value = parse_decimal(text.strip_suffix('%')?, PERCENT_DECIMALS)?;
    let hundred = 100 * power_of_ten(PERCENT_DECIMALS);
    let parts = (u128::from(value) * u128::from(CHANCE_ONE) + u128::from(hundred / 2)) / u128::from(hundred);
    u16::try_from(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chance_is_read_back() {
        for chance in 0..=u16::MAX {
            assert_eq!(parse_percent(&percent(chance)), Some(chance));
        }
        assert_eq!(
            (percent(0), percent(CHANCE_ONE), percent(655)),
            ("0%".into(), "100%".into(), "1%".into())
        );
    }

    #[test]
    fn durations_are_read_back_and_short() {
        for (nanos, text) in [
            (0, "0ns"),
            (999, "999ns"),
            (12_000, "12us"),
            (12_345, "12.345us"),
            (1_500_000, "1.5ms"),
            (1_000_000_001, "1.000000001s"),
            (60_000_000_000, "60s"),
        ] {
            assert_eq!((duration(nanos).as_str(), parse_duration(text)), (text, Some(nanos)));
        }
        assert_eq!(parse_signed_duration(&signed_duration(-1_500)), Some(-1_500));
    }

    #[test]
    fn what_is_no_duration_or_chance_is_refused() {
        for text in [
            "",
            "ns",
            "12",
            "1.5ns",
            "1.us",
            ".5us",
            "1.2345us",
            "-1us",
            "1 us",
            "99999999999999999999s",
            "1m",
            "+1us",
        ] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
        for text in ["", "%", "1", "101%", "1.00001%", "-1%", "99999999999999999999%"] {
            assert_eq!(parse_percent(text), None, "{text}");
        }
        assert_eq!(parse_signed_duration("-0ns"), None);
    }
}
