//! Parts common to all reports.

use std::fmt;

use serde::Serialize;

/// One of the design's bars.
#[derive(Clone, Serialize, Debug)]
pub struct Bar {
    /// Its subject.
    pub name: &'static str,
    /// The measured value: the worst, if several figures are meant.
    pub value: f64,
    /// The limit of the value.
    pub limit: f64,
    /// Whether it is on the right side.
    pub met: bool,
}

impl Bar {
    pub(crate) fn below(name: &'static str, value: f64, limit: f64) -> Bar {
        Bar { name, value, limit, met: value < limit }
    }

    pub(crate) fn above(name: &'static str, value: f64, limit: f64) -> Bar {
        Bar { name, value, limit, met: value > limit }
    }
}

/// One line each.
pub(crate) fn show(f: &mut fmt::Formatter<'_>, bars: &[Bar]) -> fmt::Result {
    for (i, bar) in bars.iter().enumerate() {
        let met = if bar.met { "met" } else { "MISSED" };
        let end = if i == 0 { "" } else { "\n" };
        write!(f, "{end}{met:>7}  {}: {:.3} (bar {})", bar.name, bar.value, bar.limit)?;
    }
    Ok(())
}
