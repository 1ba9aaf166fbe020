//! Numbers on a command line.

use std::ops::RangeInclusive;

/// Reads a whole number of `range`; whatever else is given is told the range.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_held_and_named() {
        let read = number::<u8>(1..=300);
        assert_eq!((read("1"), read("255")), (Ok(1), Ok(255)));
        for text in ["0", "256", "301", "-1", "", "x", "1.5", "18446744073709551616"] {
            assert_eq!(read(text), Err("expected a whole number from 1 to 300".to_owned()), "{text}");
        }
    }
}
