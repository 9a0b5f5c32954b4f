//! Did the machine have time for what was measured on it?
//!
//! A virtual machine has no cores but is lent them. When its host has others to serve, a thread that computes for a
//! millisecond takes two, and one that wakes comes late; and what was measured then is true of that minute only. Two
//! signs tell: the host's own word for what it has [withheld](Lent), and how late the driver of a load sent what was
//! due, if it had nothing else to do.

use std::fmt;
use std::fs;
use std::ops::AddAssign;

/// Beyond it, a p99 says more of the host than of the program: a share of the time that was wanted.
const STOLEN_MAX: f64 = 0.03;
/// A machine with time to spare sends 99 of 100 requests of a small load sooner.
const LATE_MAX_MS: f64 = 1.5;

/// What the host has lent to this machine since it started, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Lent {
    worked: u64,
    stolen: u64,
}

impl Lent {
    /// Up to now.
    pub(crate) fn look() -> Result<Lent, String> {
        let text =
            fs::read_to_string("/proc/stat").map_err(|error| format!("/proc/stat: {error}"))?;
        Lent::parse(&text).ok_or_else(|| "/proc/stat is not as on Linux".to_owned())
    }

    /// The first line: user, nice, system, idle, waiting for disks, interrupts of two kinds, stolen.
    fn parse(text: &str) -> Option<Lent> {
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> =
            line.split_whitespace().map_while(|field| field.parse().ok()).collect();
        let [user, nice, system, _, _, hard, soft, stolen, ..] = ticks[..] else { return None };
        Some(Lent { worked: user + nice + system + hard + soft, stolen })
    }

    /// Which share of the time that was wanted since then was withheld.
    pub(crate) fn stolen_since(self, before: Lent) -> f64 {
        let of = |now: u64, then: u64| now.saturating_sub(then) as f64;
        let (worked, stolen) = (of(self.worked, before.worked), of(self.stolen, before.stolen));
        // A tick says only that there was something.
        let stolen = stolen - 1.0;
        if stolen > 0.0 { stolen / (worked + stolen) } else { 0.0 }
    }
}

/// What disturbed a measurement, or the worst of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub(crate) struct Noise {
    /// The share of the time that was wanted and not given.
    pub(crate) stolen: f64,
    /// How late the driver was at most for 99 of 100 requests; 0 if its own work would have kept it.
    pub(crate) late_ms: f64,
}

impl Noise {
    /// Whether what was measured is worth keeping.
    pub(crate) fn is_little(self) -> bool {
        self.loudness() <= 1.0
    }

    /// How far it is beyond what is bearable, by the worse of the two signs.
    pub(crate) fn loudness(self) -> f64 {
        (self.stolen / STOLEN_MAX).max(self.late_ms / LATE_MAX_MS)
    }
}

impl AddAssign for Noise {
    fn add_assign(&mut self, other: Noise) {
        let Noise { stolen, late_ms } = other;
        *self = Noise { stolen: self.stolen.max(stolen), late_ms: self.late_ms.max(late_ms) };
    }
}

impl fmt::Display for Noise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Noise { stolen, late_ms } = self;
        write!(f, "the host withheld up to {:.1} % of the time that was wanted", 100.0 * stolen)?;
        match *late_ms > 0.0 {
            true => write!(f, ", and small loads were sent up to {late_ms:.1} ms late (p99)"),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_withheld_is_a_share_of_what_was_wanted() {
        let at = |text: &str| Lent::parse(text);
        let before = at("cpu  100 10 20 5000 30 1 2 40 0 0\ncpu0 1 2 3\n").unwrap();
        assert_eq!(before, Lent { worked: 133, stolen: 40 });
        let later = at("cpu  150 10 60 9000 30 1 2 51 0 0\n").unwrap();
        assert!((later.stolen_since(before) - 0.1).abs() < 1e-9);
        assert_eq!(before.stolen_since(before), 0.0);
        assert_eq!((at(""), at("cpu 1 2 3"), at("intr 1 2 3 4 5 6 7 8")), (None, None, None));
    }

    #[test]
    fn one_sign_of_two_is_enough() {
        let (quiet, late) =
            (Noise { stolen: 0.01, late_ms: 0.2 }, Noise { stolen: 0.0, late_ms: 2.0 });
        let stolen = Noise { stolen: 0.06, late_ms: 0.0 };
        assert!(quiet.is_little() && !late.is_little() && !stolen.is_little());
        let mut worst = late;
        worst += stolen;
        assert_eq!(worst, Noise { stolen: 0.06, late_ms: 2.0 });
        assert!(worst.to_string().contains("up to 6.0 %") && worst.to_string().contains("2.0 ms"));
    }
}
