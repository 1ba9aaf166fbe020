//! Intervals and percentages as people write them: `5m`, `auto`, `1%`.

use alloc::string::{String, ToString as _};
use core::fmt;
use core::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Every, Percentage};
use crate::duration::{parse_duration, write_duration};
use crate::error::{EveryError, PercentageError};
use crate::limits::CHECKPOINT_EVERY_MIN;

const AUTO: &str = "auto";
const ON_REQUEST: &str = "off";

/// Millionths in a hundredth.
const PER_CENT: u32 = 10_000;

/// Digits behind the point of a percentage.
const FRACTION_DIGITS_MAX: usize = 4;

impl FromStr for Every {
    type Err = EveryError;

    fn from_str(text: &str) -> Result<Every, EveryError> {
        match text {
            AUTO => Ok(Every::Auto),
            ON_REQUEST => Ok(Every::OnRequest),
            _ => {
                let every = parse_duration(text).ok().filter(|every| *every >= CHECKPOINT_EVERY_MIN);
                every.map(Every::Fixed).ok_or_else(|| EveryError { found: short(text) })
            }
        }
    }
}

impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Every::OnRequest => f.write_str(ON_REQUEST),
            Every::Fixed(every) => f.write_str(&write_duration(*every)),
            Every::Auto => f.write_str(AUTO),
        }
    }
}

impl Serialize for Every {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Every::OnRequest => to.serialize_none(),
            Every::Fixed(_) | Every::Auto => to.serialize_str(&self.to_string()),
        }
    }
}

impl<'de> Deserialize<'de> for Every {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Every, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map_or(Ok(Every::OnRequest), |text| text.parse()).map_err(D::Error::custom)
    }
}

impl FromStr for Percentage {
    type Err = PercentageError;

    fn from_str(text: &str) -> Result<Percentage, PercentageError> {
        let wrong = || PercentageError { found: short(text) };
        let number = text.strip_suffix('%').ok_or_else(wrong)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || fraction.len() > FRACTION_DIGITS_MAX {
            return Err(wrong());
        }
        let scale = PER_CENT / 10u32.pow(u32::try_from(fraction.len()).unwrap_or(0));
        let whole =
            whole.parse::<u32>().ok().and_then(|whole| whole.checked_mul(PER_CENT)).ok_or_else(wrong)?;
        let parts = fraction.parse::<u32>().map_err(|_| wrong())?.checked_mul(scale).ok_or_else(wrong)?;
        let share = whole.checked_add(parts).map(Percentage).ok_or_else(wrong)?;
        if share.0 == 0 || share > Percentage::ALL { Err(wrong()) } else { Ok(share) }
    }
}

impl fmt::Display for Percentage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, parts) = (self.0 / PER_CENT, self.0 % PER_CENT);
        if parts == 0 {
            return write!(f, "{whole}%");
        }
        let digits = alloc::format!("{parts:04}");
        write!(f, "{whole}.{}%", digits.trim_end_matches('0'))
    }
}

impl Serialize for Percentage {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.to_string())
    }
}

impl<'de> Deserialize<'de> for Percentage {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Percentage, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

fn short(text: &str) -> String {
    text.chars().take(40).collect()
}
