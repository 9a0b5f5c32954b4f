//! Formats numbers so that they are short enough for a plot.

const LARGE: [(f64, &str); 3] = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
/// Numbers below this one show all digits before the decimal point. Larger numbers are abbreviated
/// with `k`, `M` or `G`.
const ABBREVIATED_MIN: f64 = 1e4;
/// Numbers other than zero are written with an exponent if their absolute value is below
/// `PLAIN_MIN`, or not below `PLAIN_MAX`.
const PLAIN_MIN: f64 = 1e-6;
const PLAIN_MAX: f64 = 1e15;

/// Returns a number with three significant digits, or with four from 1000 to 9999: `0.00123`,
/// `1234`, `12.3k`. A value that is not finite is `-`.
pub fn short(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    let three_digits = format!("{value:.2e}");
    let rounded: f64 = three_digits.parse().unwrap_or(value);
    let size = rounded.abs();
    if !(PLAIN_MIN..PLAIN_MAX).contains(&size) {
        return format!("{rounded:e}");
    }
    if (1000.0..ABBREVIATED_MIN).contains(&size) {
        return format!("{value:.0}");
    }
    match LARGE.into_iter().find(|(unit, _)| size >= *unit) {
        Some((unit, suffix)) => format!("{}{suffix}", rounded / unit),
        None => rounded.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        for (value, expected) in [
            (0.0, "0"),
            (-0.0, "0"),
            (0.001_234, "0.00123"),
            (0.1 + 0.2, "0.3"),
            (12.345, "12.3"),
            (99.99, "100"),
            (999.9, "1000"),
            (1234.4, "1234"),
            (9996.0, "10k"),
            (12_345.0, "12.3k"),
            (999_999.0, "1M"),
            (2.5e9, "2.5G"),
            (3e16, "3e16"),
            (1e-7, "1e-7"),
            (-0.5, "-0.5"),
            (f64::NAN, "-"),
            (f64::INFINITY, "-"),
        ] {
            assert_eq!(short(value), expected, "{value}");
        }
    }
}
