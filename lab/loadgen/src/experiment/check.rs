//! Checks whether a measurement goes in the published direction.
//!
//! A check has a generous bound, which a correct server passes easily, even in a short run on two
//! cores. A *bar* is a goal of this project. A report shows whether it is reached, but nothing
//! fails if it is not.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::number::number;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The claim in words, with the bound.
    pub claim: String,
    pub measured: String,
    pub verdict: Verdict,
}

/// A verdict. In files it has the name that a report shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    #[serde(rename = "holds")]
    Holds,
    #[serde(rename = "FAILS")]
    Fails,
    /// The check compares a server that was not measured or has no responses.
    #[serde(rename = "not measured")]
    NotMeasured,
    #[serde(rename = "our bar: reached")]
    BarReached,
    #[serde(rename = "our bar: missed")]
    BarMissed,
}

impl Check {
    pub(super) fn at_least(claim: &str, value: Option<f64>, bound: f64) -> Check {
        Check::new(format!("{claim}: at least {}", number(bound)), value, |value| value >= bound)
    }

    pub(super) fn at_most(claim: &str, value: Option<f64>, bound: f64) -> Check {
        Check::new(format!("{claim}: at most {}", number(bound)), value, |value| value <= bound)
    }

    /// Turns the check into a bar, a goal of this project.
    pub(super) fn into_bar(self) -> Check {
        let verdict = match self.verdict {
            Verdict::Holds => Verdict::BarReached,
            Verdict::Fails => Verdict::BarMissed,
            other => other,
        };
        Check { verdict, ..self }
    }

    fn new(claim: String, value: Option<f64>, holds: impl Fn(f64) -> bool) -> Check {
        let verdict = match value {
            Some(value) if holds(value) => Verdict::Holds,
            Some(_) => Verdict::Fails,
            None => Verdict::NotMeasured,
        };
        let measured = value.map_or_else(|| "not measured".to_owned(), number);
        Check { claim, measured, verdict }
    }

    pub fn line(&self) -> String {
        let Check { claim, measured, verdict } = self;
        format!("{}: {claim}; measured: {measured}", verdict.name())
    }
}

impl Verdict {
    pub fn name(self) -> String {
        json!(self).as_str().unwrap_or_default().to_owned()
    }

    /// Returns the verdict of several checks. It is `Fails` if a check fails, otherwise `Holds` if
    /// a check holds, and otherwise `NotMeasured`. Bars are ignored.
    pub fn of(checks: &[Check]) -> Verdict {
        let any = |verdict| checks.iter().any(|check| check.verdict == verdict);
        match (any(Verdict::Fails), any(Verdict::Holds)) {
            (true, _) => Verdict::Fails,
            (false, true) => Verdict::Holds,
            (false, false) => Verdict::NotMeasured,
        }
    }

    pub fn sentence(self) -> &'static str {
        match self {
            Verdict::Holds => "In the published direction.",
            Verdict::Fails => "NOT IN THE PUBLISHED DIRECTION.",
            Verdict::NotMeasured | Verdict::BarReached | Verdict::BarMissed => {
                "The servers of the published direction were not measured."
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_met_or_not_or_was_not_measured() {
        let verdict = |check: Check| check.verdict;
        assert_eq!(verdict(Check::at_least("a", Some(3.0), 3.0)), Verdict::Holds);
        assert_eq!(verdict(Check::at_least("a", Some(2.9), 3.0)), Verdict::Fails);
        assert_eq!(verdict(Check::at_most("a", Some(3.0), 3.0)), Verdict::Holds);
        assert_eq!(verdict(Check::at_most("a", Some(3.1), 3.0)), Verdict::Fails);
        assert_eq!(verdict(Check::at_most("a", None, 3.0)), Verdict::NotMeasured);
        // NaN is neither above nor below a bound.
        assert_eq!(verdict(Check::at_most("a", Some(f64::NAN), 3.0)), Verdict::Fails);
        let line = Check::at_least("times in 3.2", Some(14.23), 3.0).line();
        assert_eq!(line, "holds: times in 3.2: at least 3; measured: 14.2");
    }

    #[test]
    fn one_that_fails_decides() {
        let check = |value| Check::at_least("a", value, 1.0);
        let (holds, fails, missing) = (check(Some(2.0)), check(Some(0.0)), check(None));
        assert_eq!(Verdict::of(&[holds.clone(), missing.clone()]), Verdict::Holds);
        assert_eq!(Verdict::of(&[holds, fails, missing.clone()]), Verdict::Fails);
        assert_eq!(Verdict::of(&[missing]), Verdict::NotMeasured);
        let bar = check(Some(0.0)).into_bar();
        assert_eq!(
            (bar.verdict, Verdict::of(std::slice::from_ref(&bar))),
            (Verdict::BarMissed, Verdict::NotMeasured)
        );
        assert_eq!(Verdict::of(&[]), Verdict::NotMeasured);
    }
}
