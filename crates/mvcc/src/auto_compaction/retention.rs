//! Parses the retention: a number, or a duration in the format of etcd's flags.
//!
//! ```text
//!   periodic   72        hours
//!              30m       a number and a unit, or several of them
//!              1h30m
//!              1.5h
//!   revision   1000      revisions
//!   either     0         no compaction
//! ```

use std::time::Duration;

use crate::error::{Error, Result};

/// The units of a duration, in nanoseconds.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),  // The micro sign.
    ("\u{3bc}s", 1_000), // The Greek letter mu.
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("h", HOUR),
];
const HOUR: u64 = 3_600 * 1_000_000_000;

/// The longest duration in Go, in nanoseconds: 292 years.
const NANOS_MAX: u64 = i64::MAX as u64;

pub(super) fn time(text: &str) -> Result<Duration> {
    let nanos = match text.parse::<u64>() {
        Ok(hours) => hours.checked_mul(HOUR),
        Err(_) => nanoseconds(text),
    };
    match nanos.filter(|nanos| *nanos <= NANOS_MAX) {
        Some(nanos) => Ok(Duration::from_nanos(nanos)),
        None => Err(Error::CompactionRetention {
            retention: text.to_owned(),
            allowed: "hours as in 72, durations as in 30m or 1h30m, up to 292 years, or 0 to \
                      disable compaction",
        }),
    }
}

pub(super) fn revisions(text: &str) -> Result<i64> {
    match text.parse() {
        Ok(keep @ 0..) => Ok(keep),
        _ => Err(Error::CompactionRetention {
            retention: text.to_owned(),
            allowed: "numbers of revisions as in 1000, or 0 to disable compaction",
        }),
    }
}

/// Parses a duration in Go's format, with units and without a sign: `1h30m`. Returns `None` for any
/// other text, and for a duration of 2^64 nanoseconds or more.
pub fn nanoseconds(text: &str) -> Option<u64> {
    let of_number = |c: char| c.is_ascii_digit() || c == '.';
    let (mut rest, mut sum) = (text, 0_u64);
    loop {
        let (number, behind) = rest.split_at(rest.find(|c| !of_number(c))?);
        let (unit, next) = behind.split_at(behind.find(of_number).unwrap_or(behind.len()));
        let (_, nanos) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
        sum = sum.checked_add(times(number, nanos)?)?;
        if next.is_empty() {
            return Some(sum);
        }
        rest = next;
    }
}

/// Multiplies a decimal number by a unit, and rounds the product down. Returns `None` if `number`
/// is not a decimal number, or if the product is too large.
fn times(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    // Further digits are worth much less than a nanosecond.
    let digits = &fraction[..fraction.len().min(18)];
    let numerator: u64 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    let part = u128::from(numerator) * u128::from(unit) / 10_u128.pow(digits.len() as u32);
    whole.checked_mul(unit)?.checked_add(u64::try_from(part).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_and_durations_are_read() {
        let (second, minute, hour) =
            (Duration::from_secs(1), Duration::from_mins(1), Duration::from_hours(1));
        for (text, expected) in [
            ("0", Duration::ZERO),
            ("0s", Duration::ZERO),
            ("1", hour),
            ("72", 72 * hour),
            ("+5", 5 * hour),
            ("72h", 72 * hour),
            ("30m", 30 * minute),
            ("1h30m", 90 * minute),
            ("1.5h", 90 * minute),
            (".5m1.s", 31 * second),
            ("300ms", Duration::from_millis(300)),
            ("5us", Duration::from_micros(5)),
            ("5\u{b5}s5\u{3bc}s", Duration::from_micros(10)),
            ("7ns", Duration::from_nanos(7)),
            ("0.0000000000009h", Duration::from_nanos(3)),
            ("1.99999999999999999999ns", Duration::from_nanos(1)),
            ("2562047h", 2_562_047 * hour),
        ] {
            assert_eq!(time(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn other_retentions_are_refused() {
        let nines = "9".repeat(20);
        let short = [
            "", " ", "-1", "-1h", "1x", "h", ".h", ".", "1.5", "1..5h", "1.5.h", "1h30", "1 h",
            "1H", "1h-30m", "2562048h", "2562048", "1hm",
        ];
        for text in short.into_iter().chain([&nines[..], &format!("{nines}h")]) {
            let error = time(text).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
            assert!(error.contains("30m"), "names what is allowed: {error}");
        }
    }

    #[test]
    fn revisions_are_plain_numbers() {
        assert_eq!(revisions("1000").unwrap(), 1000);
        assert_eq!(revisions("0").unwrap(), 0);
        assert_eq!(revisions("9223372036854775807").unwrap(), i64::MAX);
        for text in ["", "-1", "30m", "1.5", "9223372036854775808"] {
            assert_eq!(
                revisions(text).unwrap_err().to_string(),
                format!(
                    "unknown auto compaction retention {text:?}: allowed are numbers of revisions \
                     as in 1000, or 0 to disable compaction"
                )
            );
        }
    }
}
