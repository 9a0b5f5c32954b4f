//! The syntax of values, which is Go's syntax, as users of etcd know it.
//!
//! | kind | examples |
//! |---|---|
//! | switch | `true`, `1`, `t`, `FALSE` |
//! | number, count | `42`, `0x2a`, `1_000`; a count is not below zero |
//! | duration | `1h30m`, `100ms`, `1.5s`, `-1s`, `0` |
//! | gates | `InitialCorruptCheck=true,AllBeta=false` |
//! | addresses | `http://127.0.0.1:2379,unix:///run/clearlane.sock` |
//!
//! A value is checked where it is read, so that the error can name its source.

use std::time::Duration;

use clearlane_mvcc::auto_compaction;

use super::address::Url;
use super::feature_gates::FeatureGates;
use super::suggestion::did_you_mean;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    Text,
    /// True or false. On a command line, the flag's name without a value means true.
    Switch,
    Number,
    /// A whole number that is not below zero.
    Count,
    /// A duration in Go's syntax.
    Duration,
    /// URLs separated by commas.
    Urls,
    Gates,
    OneOf(&'static [&'static str]),
}

impl ValueKind {
    /// Returns the name that the help uses for a value.
    pub fn noun(self) -> &'static str {
        match self {
            ValueKind::Text => "text",
            ValueKind::Switch => "true|false",
            ValueKind::Number | ValueKind::Count => "number",
            ValueKind::Duration => "duration",
            ValueKind::Urls => "urls",
            ValueKind::Gates => "gates",
            ValueKind::OneOf(_) => "word",
        }
    }

    /// Checks a value. The error lists the allowed values.
    pub fn check(self, text: &str) -> Result<(), String> {
        match self {
            ValueKind::Text => Ok(()),
            ValueKind::Switch => require(switch(text).is_some(), "true or false"),
            ValueKind::Number => require(number(text).is_some(), "a whole number"),
            ValueKind::Count => require(count(text).is_some(), "a whole number, 0 or more"),
            ValueKind::Duration => {
                require(duration(text).is_some(), "a duration such as 100ms or 1h30m")
            }
            ValueKind::Urls => urls(text).map(drop),
            ValueKind::Gates => FeatureGates::parse(text).map(drop),
            ValueKind::OneOf(words) => {
                let tip = did_you_mean(text, words.iter().copied(), str::to_owned);
                // The error starts with etcd's words, which scripts look for.
                require(words.contains(&text), &(listed(words) + &tip))
                    .map_err(|error| format!("invalid value {text:?}; {error}"))
            }
        }
    }
}

fn require(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("it must be {what}")) }
}

fn listed(words: &[&str]) -> String {
    let words: Vec<_> = words.iter().filter(|word| !word.is_empty()).copied().collect();
    match words[..] {
        [only] => only.to_owned(),
        _ => format!("one of {}", words.join(", ")),
    }
}

/// Returns whether two texts have the same meaning: `1h` equals `60m`.
pub(super) fn are_equal(kind: ValueKind, a: &str, b: &str) -> bool {
    match kind {
        ValueKind::Switch => switch(a) == switch(b),
        ValueKind::Number | ValueKind::Count => number(a) == number(b),
        ValueKind::Duration => duration(a) == duration(b),
        ValueKind::Gates => FeatureGates::parse(a) == FeatureGates::parse(b),
        ValueKind::Text | ValueKind::Urls | ValueKind::OneOf(_) => a == b,
    }
}

/// Parses a switch. Returns `None` if the text means neither true nor false.
pub(crate) fn switch(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Parses a whole number. As in Go, an underscore may separate two digits. Returns `None` for any
/// other text.
pub(super) fn number(text: &str) -> Option<i64> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let size = i128::from(count(digits)?);
    i64::try_from(if is_negative { -size } else { size }).ok()
}

/// Parses a whole number that is not below zero. Returns `None` for any other text.
pub(crate) fn count(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let (radix, digits) = match lower.get(..2) {
        Some("0x") => (16, &lower[2..]),
        Some("0o") => (8, &lower[2..]),
        Some("0b") => (2, &lower[2..]),
        _ if lower.len() > 1 && lower.starts_with('0') => (8, &lower[1..]),
        _ => (10, &lower[..]),
    };
    // The first underscore may directly follow a prefix. Two underscores in a row are never
    // allowed.
    let digits = if digits.len() < lower.len() {
        digits.strip_prefix('_').unwrap_or(digits)
    } else {
        digits
    };
    let groups: Vec<&str> = digits.split('_').collect();
    let are_digits = |group: &&str| !group.is_empty() && group.chars().all(|c| c.is_digit(radix));
    if !groups.iter().all(are_digits) {
        return None;
    }
    u64::from_str_radix(&groups.concat(), radix).ok()
}

/// Parses a duration in Go's syntax, which may be below zero. Returns nanoseconds, or `None` for
/// any other text.
pub(super) fn duration(text: &str) -> Option<i64> {
    let (is_negative, size) = match text.strip_prefix('-') {
        Some(size) => (true, size),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if size == "0" {
        return Some(0);
    }
    let size = i64::try_from(auto_compaction::nanoseconds(size)?).ok()?;
    Some(if is_negative { -size } else { size })
}

/// Parses a duration that is not below zero. Returns `None` for any other text.
pub(crate) fn time(text: &str) -> Option<Duration> {
    u64::try_from(duration(text)?).ok().map(Duration::from_nanos)
}

/// Parses URLs separated by commas. Returns an empty list for empty text.
pub(super) fn urls(text: &str) -> Result<Vec<Url>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    text.split(',').map(Url::parse).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_gos() {
        for (text, ns) in [
            ("0", 0),
            ("100ms", 100_000_000),
            ("1h30m", 5_400_000_000_000),
            ("1.5s", 1_500_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("-1us", -1_000),
            ("+3ns", 3),
            ("2h0m0s", 7_200_000_000_000),
            ("0.9999999999999999999999s", 999_999_999),
        ] {
            assert_eq!(duration(text), Some(ns), "{text}");
        }
        for text in ["", "-", "1", "s", ".s", "1.2.3s", "1 s", "3d", "99999999999h", "0x1s"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn numbers_are_gos() {
        for (text, wanted) in [
            ("0", 0),
            ("-5", -5),
            ("+5", 5),
            ("0x10", 16),
            ("0X_1f", 31),
            ("010", 8),
            ("0b11", 3),
            ("1_000", 1000),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(number(text), Some(wanted), "{text}");
        }
        for text in ["", "-", "1.0", "1e3", "_1", "1__0", "1_", "09", "9223372036854775808", "+-1"]
        {
            assert_eq!(number(text), None, "{text}");
        }
        assert_eq!(count("18446744073709551615"), Some(u64::MAX));
        assert_eq!(count("-1"), None);
    }

    proptest! {
        #[test]
        fn nothing_that_is_written_panics(
            text in prop_oneof![".{0,40}", "[-+0-9.hmsnuµ_x]{0,40}"]
        ) {
            for kind in [ValueKind::Switch, ValueKind::Number, ValueKind::Count, ValueKind::Duration, ValueKind::Urls] {
                let _ = kind.check(&text);
            }
        }

        #[test]
        fn a_duration_is_the_sum_of_its_parts(h in 0..1000_i64, m in 0..1000_i64, ms in 0..1000_i64) {
            let text = format!("{h}h{m}m{ms}ms");
            prop_assert_eq!(duration(&text), Some(((h * 60 + m) * 60_000 + ms) * 1_000_000));
        }
    }
}
