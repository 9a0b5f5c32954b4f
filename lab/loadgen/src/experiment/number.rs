//! Formats figures as text. A whole number has no decimal point, and any other number below 99.95
//! has one or two digits after the point. Larger numbers are rounded to whole numbers and have
//! commas. A number that is not finite is shown as `-`.

pub(super) fn number(value: f64) -> String {
    let magnitude = value.abs();
    if !value.is_finite() {
        "-".to_owned()
    } else if magnitude < 99.95 && value.fract() == 0.0 {
        whole(value)
    } else if magnitude < 9.995 {
        format!("{value:.2}")
    } else if magnitude < 99.95 {
        format!("{value:.1}")
    } else {
        let digits = format!("{magnitude:.0}");
        let sign = if value < 0.0 { "-" } else { "" };
        format!("{sign}{}", with_commas(&digits))
    }
}

/// Rounds a value to a whole number, and formats it with commas.
pub(super) fn whole(value: f64) -> String {
    with_commas(&format!("{value:.0}"))
}

fn with_commas(digits: &str) -> String {
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_commas() {
        let shown =
            [0.0, 1.234, 9.996, 12.34, 99.96, 999.6, 1234.5, 1_234_567.0, -2500.0, f64::NAN];
        let expected =
            ["0", "1.23", "10.0", "12.3", "100", "1,000", "1,234", "1,234,567", "-2,500", "-"];
        assert_eq!(shown.map(number), expected);
        assert_eq!([4.0, 1000.0].map(whole), ["4", "1,000"]);
    }
}
