//! Sizes and times as people read them.

use std::time::Duration;

/// A number of bytes in the unit that fits: `1.5 KiB`.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut tenths, mut unit) = (bytes.saturating_mul(10) / 1024, 0);
    while tenths >= 10240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

/// Nanoseconds in the unit that fits: `2.5 ms`.
#[must_use]
pub fn nanos(nanos: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let number = nanos as f64;
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.1} us", number / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", number / 1e6),
        _ => format!("{:.2} s", number / 1e9),
    }
}

/// A time to wait, in whole seconds, minutes or hours: `42 s`, `6 min 10 s`, `1 h 20 min`.
#[must_use]
pub fn seconds(time: Duration) -> String {
    match time.as_secs() {
        all @ 0..60 => format!("{all} s"),
        all @ 60..3600 if all % 60 == 0 => format!("{} min", all / 60),
        all @ 60..3600 => format!("{} min {} s", all / 60, all % 60),
        all => format!("{} h {} min", all / 3600, all % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_unit_that_fits() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(5 << 30), "5.0 GiB");
        assert_eq!(bytes(u64::MAX >> 4), "1048575.9 TiB");
        assert_eq!(nanos(999), "999 ns");
        assert_eq!(nanos(1_500), "1.5 us");
        assert_eq!(nanos(2_500_000), "2.5 ms");
        assert_eq!(nanos(12_340_000_000), "12.34 s");
        let words = [0, 59, 60, 370, 4800].map(|all| seconds(Duration::from_secs(all)));
        assert_eq!(words, ["0 s", "59 s", "1 min", "6 min 10 s", "1 h 20 min"]);
    }
}
