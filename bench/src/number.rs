//! Numbers on a command line.

use std::ops::RangeInclusive;

/// Reads a whole number of `range`; any other input gets an error with the range.
///
/// Ranges lie within those of `T`: a number that `T` cannot hold is refused like one outside.
pub fn number<T: TryFrom<u64> + 'static>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| format!("expected a whole number from {} to {}", range.start(), range.end()))
    }
}

/// Reads a number above 0 and at most `most`; any other input, such as NaN, gets an error.
pub fn positive(most: f64) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && *number <= most);
        number.ok_or_else(|| format!("expected a number above 0 and at most {most}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_above_zero_are_positive() {
        let read = positive(100.0);
        assert_eq!((read("0.25"), read("100"), read("1e-3")), (Ok(0.25), Ok(100.0), Ok(0.001)));
        for text in ["0", "-0", "-1", "NaN", "nan", "inf", "-inf", "100.1", "", "x", "1,5"] {
            assert_eq!(read(text), Err("expected a number above 0 and at most 100".to_owned()), "{text}");
        }
    }

    #[test]
    fn a_range_is_held_and_named() {
        let read = number::<u8>(1..=300);
        assert_eq!((read("1"), read("255")), (Ok(1), Ok(255)));
        for text in ["0", "256", "301", "-1", "", "x", "1.5", "18446744073709551616"] {
            assert_eq!(read(text), Err("expected a whole number from 1 to 300".to_owned()), "{text}");
        }
    }
}
