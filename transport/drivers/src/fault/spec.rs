//! Which faults happen how often: [`Faults`], and its text form `loss=1%,dup=0.5%,delay=2%:5ms`.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use thiserror::Error;

/// How often something happens: in a million.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Rate(u32);

impl Rate {
    /// Never.
    pub const ZERO: Rate = Rate(0);

    /// `parts` in a million; more than a million is always.
    #[must_use]
    pub const fn per_million(parts: u32) -> Rate {
        Rate(if parts > 1_000_000 { 1_000_000 } else { parts })
    }

    /// `percent` in a hundred.
    #[must_use]
    pub const fn percent(percent: u32) -> Rate {
        Rate::per_million(percent.saturating_mul(10_000))
    }

    /// The rate in a million.
    #[must_use]
    pub const fn as_per_million(self) -> u32 {
        self.0
    }

    /// Reads `1%`, `0.25%` (at most four decimals) or `300ppm`.
    fn parse(text: &str) -> Option<Rate> {
        if let Some(parts) = text.strip_suffix("ppm") {
            return parts.parse().ok().filter(|parts| *parts <= 1_000_000).map(Rate);
        }
        let (whole, decimals) = match text.strip_suffix('%')?.split_once('.') {
            Some((whole, decimals)) if (1..=4).contains(&decimals.len()) => (whole, decimals),
            Some(_) => return None,
            None => (text.strip_suffix('%')?, ""),
        };
        if !decimals.bytes().chain(whole.bytes()).all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        let parts: u32 = format!("{whole}{decimals:0<4}").parse().ok()?;
        (parts <= 1_000_000).then_some(Rate(parts))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:04}", self.0 / 10_000, self.0 % 10_000);
        write!(f, "{}%", text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// For how long a delayed frame is held back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delay {
    /// Until so many later frames have passed it.
    Frames(u32),
    /// For so long, by the driver's clock.
    Time(Duration),
}

/// Which way the frames go that are tampered with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Side {
    /// Those that we send.
    #[default]
    Send,
    /// Those that we receive.
    Receive,
    /// All.
    Both,
}

/// Faults and their rates. At most one of loss, dup, reorder, delay, corrupt, truncate and late befalls a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Faults {
    /// Frames that vanish.
    pub loss: Rate,
    /// Frames that come twice.
    pub dup: Rate,
    /// Frames that a few later ones overtake.
    pub reorder: Rate,
    /// Frames that are held back by `delay_by`.
    pub delay: Rate,
    /// For how long.
    pub delay_by: Delay,
    /// Frames in which some bits are flipped.
    pub corrupt: Rate,
    /// Frames that lose their end.
    pub truncate: Rate,
    /// Sent frames that complete late, with the payload read late or the completion reported late.
    pub late: Rate,
    /// Leases that find every buffer in use, for a few calls on end.
    pub starve: Rate,
    /// Frames, sent and received, after which the rail dies.
    pub die: Option<u64>,
    /// Which frames are tampered with.
    pub side: Side,
    /// Of the random sequence: the same seed and the same calls give the same faults.
    pub seed: u64,
}

impl Faults {
    /// No fault ever.
    pub const NONE: Faults = Faults {
        loss: Rate::ZERO,
        dup: Rate::ZERO,
        reorder: Rate::ZERO,
        delay: Rate::ZERO,
        delay_by: Delay::Frames(8),
        corrupt: Rate::ZERO,
        truncate: Rate::ZERO,
        late: Rate::ZERO,
        starve: Rate::ZERO,
        die: None,
        side: Side::Send,
        seed: 0,
    };
}

impl Default for Faults {
    fn default() -> Self {
        Faults::NONE
    }
}

/// Names and forms that a text of faults may have.
const FORMS: &str = "loss=1%, dup=, reorder=, corrupt=, truncate=, late=, starve= (each a rate such as 0.5% or 300ppm), \
                     delay=1%:5ms or delay=1%:3 (frames), die=1000 (frames), side=send|receive|both, seed=7";

/// Why a text names no faults.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FaultsError {
    /// No such fault.
    #[error("unknown fault `{came}`; expected {FORMS}, separated by commas")]
    UnknownName {
        /// The item.
        came: Box<str>,
    },
    /// The value is not of the form that this fault has.
    #[error("`{came}` has no usable value; expected {expected}")]
    BadValue {
        /// The item.
        came: Box<str>,
        /// The form.
        expected: &'static str,
    },
    /// The same fault twice.
    #[error("`{came}` is given twice; keep one")]
    Repeated {
        /// The second item.
        came: Box<str>,
    },
}

const RATE: &str = "a rate from 0% to 100% such as 1%, 0.25% (at most four decimals) or 300ppm";
const DELAY: &str = "a rate, a colon, and a time (us, ms, s) or a number of frames, such as 1%:5ms or 1%:3";

impl FromStr for Faults {
    type Err = FaultsError;

    fn from_str(text: &str) -> Result<Faults, FaultsError> {
        let mut faults = Faults::NONE;
        let mut names: Vec<&str> = Vec::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (name, value) = item.split_once('=').unwrap_or((item, ""));
            faults.set(item, name, value)?;
            if names.contains(&name) {
                return Err(FaultsError::Repeated { came: item.into() });
            }
            names.push(name);
        }
        Ok(faults)
    }
}

impl Faults {
    fn set(&mut self, item: &str, name: &str, value: &str) -> Result<(), FaultsError> {
        let bad = |expected| FaultsError::BadValue { came: item.into(), expected };
        let rate = || Rate::parse(value).ok_or_else(|| bad(RATE));
        let number = || value.parse::<u64>().map_err(|_| bad("a whole number"));
        match name {
            "loss" => self.loss = rate()?,
            "dup" => self.dup = rate()?,
            "reorder" => self.reorder = rate()?,
            "corrupt" => self.corrupt = rate()?,
            "truncate" => self.truncate = rate()?,
            "late" => self.late = rate()?,
            "starve" => self.starve = rate()?,
            "delay" => (self.delay, self.delay_by) = parse_delay(value).ok_or_else(|| bad(DELAY))?,
            "die" => self.die = Some(number()?),
            "seed" => self.seed = number()?,
            "side" => {
                self.side = match value {
                    "send" => Side::Send,
                    "receive" => Side::Receive,
                    "both" => Side::Both,
                    _ => return Err(bad("send, receive or both")),
                }
            }
            _ => return Err(FaultsError::UnknownName { came: item.into() }),
        }
        Ok(())
    }
}

fn parse_delay(text: &str) -> Option<(Rate, Delay)> {
    let (rate, by) = text.split_once(':')?;
    let number = |unit| by.strip_suffix(unit).and_then(|digits: &str| digits.parse::<u64>().ok());
    let time = number("us")
        .map(Duration::from_micros)
        .or_else(|| number("ms").map(Duration::from_millis))
        .or_else(|| number("s").map(Duration::from_secs));
    let by = match time {
        Some(time) => Delay::Time(time),
        None => Delay::Frames(by.parse().ok()?),
    };
    Some((Rate::parse(rate)?, by))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Faults {
        text.parse().expect(text)
    }

    #[test]
    fn rates_are_exact() {
        let faults = parse("loss=1%, dup=0.5%,reorder=2%,corrupt=0.0001%,truncate=300ppm,late=100%");
        let rates = [faults.loss, faults.dup, faults.reorder, faults.corrupt, faults.truncate, faults.late];
        assert_eq!(rates.map(Rate::as_per_million), [10_000, 5_000, 20_000, 1, 300, 1_000_000]);
        assert_eq!(rates.map(|rate| rate.to_string()), ["1%", "0.5%", "2%", "0.0001%", "0.03%", "100%"]);
        assert_eq!(parse(""), Faults::NONE);
    }

    #[test]
    fn the_rest_is_read_too() {
        let faults = parse("delay=1%:5ms,die=1000,side=both,seed=7,starve=10%");
        assert_eq!(faults.delay_by, Delay::Time(Duration::from_millis(5)));
        assert_eq!((faults.die, faults.side, faults.seed), (Some(1000), Side::Both, 7));
        assert_eq!(parse("delay=1%:3").delay_by, Delay::Frames(3));
        assert_eq!(parse("delay=1%:2s").delay_by, Delay::Time(Duration::from_secs(2)));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("lost=1%", "unknown fault `lost=1%`"),
            ("loss", "`loss` has no usable value; expected a rate"),
            ("loss=1", "`loss=1` has no"),
            ("loss=101%", "from 0% to 100%"),
            ("loss=0.00001%", "at most four decimals"),
            ("loss=-1%", "has no usable value"),
            ("loss=.%", "has no usable value"),
            ("loss=+1%", "has no usable value"),
            ("delay=1%", "1%:5ms or 1%:3"),
            ("delay=1%:5m", "1%:5ms or 1%:3"),
            ("side=left", "send, receive or both"),
            ("die=many", "a whole number"),
            ("loss=1%,loss=2%", "`loss=2%` is given twice"),
        ] {
            let message = text.parse::<Faults>().expect_err(text).to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
