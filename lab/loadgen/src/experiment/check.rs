//! Checks whether a measurement confirms the direction of the published result.
//!
//! A check has a generous bound, which a correct server passes easily, even in a short run on two
//! cores. A *bar* is a goal of this project. A report shows whether it is reached, but nothing
//! fails if it is not.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::number::number;

/// Minimum number of rounds for a verdict. The median of three rounds ignores one round that
/// something else on the machine has disturbed.
const ROUNDS_MIN: u64 = 3;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The claim in words, with the bound.
    pub claim: String,
    pub measured: String,
    pub verdict: Verdict,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Bound {
    AtLeast(f64),
    AtMost(f64),
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
    /// Compares a figure with a bound. If `is_bar` is true, the bound is a goal of this project.
    pub(super) fn new(claim: &str, value: Option<f64>, bound: Bound, is_bar: bool) -> Check {
        let (words, limit, holds) = match bound {
            Bound::AtLeast(limit) => ("at least", limit, value.map(|value| value >= limit)),
            Bound::AtMost(limit) => ("at most", limit, value.map(|value| value <= limit)),
        };
        let verdict = match (holds, is_bar) {
            (None, _) => Verdict::NotMeasured,
            (Some(true), false) => Verdict::Holds,
            (Some(false), false) => Verdict::Fails,
            (Some(true), true) => Verdict::BarReached,
            (Some(false), true) => Verdict::BarMissed,
        };
        let claim = format!("{claim}: {words} {}", number(limit));
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

    /// Returns the sentence for the top of a report. It names the number of rounds. With fewer than
    /// [`ROUNDS_MIN`] rounds, it gives no verdict.
    pub fn sentence(self, rounds: u64) -> String {
        let rounds_words =
            if rounds == 1 { "1 round".to_owned() } else { format!("{rounds} rounds") };
        let more = format!("`--rounds {ROUNDS_MIN}` or more gives a verdict");
        match (self, rounds < ROUNDS_MIN) {
            (Verdict::NotMeasured | Verdict::BarReached | Verdict::BarMissed, _) => {
                "The servers of the published direction were not measured.".to_owned()
            }
            (Verdict::Holds, false) => {
                format!("In the published direction, by the medians of {rounds_words}.")
            }
            (Verdict::Fails, false) => {
                format!("NOT IN THE PUBLISHED DIRECTION, by the medians of {rounds_words}.")
            }
            (Verdict::Holds, true) => format!(
                "No verdict: the checks hold, but with {rounds_words} chance may decide. {more}."
            ),
            (Verdict::Fails, true) => format!(
                "A CHECK FAILS. This is no verdict about times and rates, because with \
                 {rounds_words} chance may decide. {more}."
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_least(value: Option<f64>, is_bar: bool) -> Check {
        Check::new("times", value, Bound::AtLeast(3.0), is_bar)
    }

    #[test]
    fn a_bound_is_met_or_not_or_was_not_measured() {
        for (bound, value, verdict) in [
            (Bound::AtLeast(3.0), Some(3.0), Verdict::Holds),
            (Bound::AtLeast(3.0), Some(2.9), Verdict::Fails),
            (Bound::AtMost(3.0), Some(3.0), Verdict::Holds),
            (Bound::AtMost(3.0), Some(3.1), Verdict::Fails),
            (Bound::AtMost(3.0), None, Verdict::NotMeasured),
            // NaN is neither above nor below a bound.
            (Bound::AtMost(3.0), Some(f64::NAN), Verdict::Fails),
        ] {
            assert_eq!(
                Check::new("a", value, bound, false).verdict,
                verdict,
                "{bound:?} {value:?}"
            );
        }
        let line = at_least(Some(14.23), false).line();
        assert_eq!(line, "holds: times: at least 3; measured: 14.2");
    }

    #[test]
    fn a_check_that_fails_decides() {
        let [holds, fails, missing] =
            [Some(4.0), Some(0.0), None].map(|value| at_least(value, false));
        let bar = at_least(Some(0.0), true);
        assert_eq!(bar.verdict, Verdict::BarMissed);
        assert_eq!(Verdict::of(&[holds.clone(), missing.clone()]), Verdict::Holds);
        assert_eq!(Verdict::of(&[holds, fails, missing.clone()]), Verdict::Fails);
        for checks in [&[missing][..], &[bar], &[]] {
            assert_eq!(Verdict::of(checks), Verdict::NotMeasured);
        }
    }

    #[test]
    fn a_verdict_needs_three_rounds_and_names_their_number() {
        for rounds in [1, 2] {
            for verdict in [Verdict::Holds, Verdict::Fails] {
                let sentence = verdict.sentence(rounds);
                assert!(!sentence.to_lowercase().contains("published direction"), "{sentence}");
                assert!(sentence.contains(&format!("with {rounds} round")), "{sentence}");
            }
        }
        assert!(Verdict::Fails.sentence(1).starts_with("A CHECK FAILS."));
        for (verdict, start) in
            [(Verdict::Holds, "In the"), (Verdict::Fails, "NOT IN THE PUBLISHED DIRECTION")]
        {
            let sentence = verdict.sentence(3);
            assert!(sentence.starts_with(start) && sentence.ends_with("3 rounds."), "{sentence}");
        }
    }
}
