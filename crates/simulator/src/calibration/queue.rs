//! What becomes of puts that come by chance: a trial of the log.
//!
//! A put that comes while the log syncs waits for that sync, and for the next one. So a sync that
//! takes long keeps many waiting, and the slowest hundredth of puts is not the slowest hundredth of
//! syncs: at a thousand puts a second one sync of 10 ms is felt by eleven of them. And a put that
//! comes after a while without puts finds threads that sleep. Neither has a formula that is short;
//! but a log is a small queue, and can be tried.

use super::sleep::WakeupCosts;
use crate::Rng;
use crate::spread::{P99_MAX, Spread, Times};

/// Puts that are tried: two hundred are the slowest hundredth.
const PUTS: usize = 20_000;
/// Each halves what is left of the doubt.
const STEPS: usize = 12;
/// Always the same puts.
const SEED: u64 = 1;

/// Puts, and what they find.
#[derive(Clone, Copy, Debug)]
pub(super) struct Puts {
    /// So many a second.
    pub(super) rate: f64,
    /// Threads, awake and asleep.
    pub(super) sleep: WakeupCosts,
    /// And those that a write has beside them.
    pub(super) write_awake_ns: f64,
    pub(super) write_wakeups_ns: f64,
    /// What the log computes for each.
    pub(super) entry_ns: f64,
}

/// So long, and of the slowest: a put from when it comes until it is in the log, or a request
/// without what is computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Took {
    pub(super) median_ns: f64,
    /// By how much the slowest hundredth is later than that.
    pub(super) tail_ns: f64,
}

impl Puts {
    /// With such syncs.
    pub(super) fn with(&self, sync: Spread) -> Took {
        let (mut gaps, mut syncs) = (Rng::new(SEED, 0), Times::new(sync, Rng::new(SEED, 1)));
        let mut awake = Times::new(self.sleep.awake, Rng::new(SEED, 2));
        let wakeups_ns = self.sleep.wakeups_ns + self.write_wakeups_ns;
        let mut comes_ns = 0.0;
        // When each comes, and when it is at the log.
        let mut puts: Vec<(f64, f64)> = Vec::with_capacity(PUTS);
        for _ in 0..PUTS {
            let gap_ns = gaps.exponential(1e9 / self.rate);
            comes_ns += gap_ns;
            let awake_ns = awake.next_ns() as f64 + self.write_awake_ns;
            let woken_ns = awake_ns + wakeups_ns * self.sleep.depth(gap_ns);
            puts.push((comes_ns, comes_ns + woken_ns));
        }
        puts.sort_by(|(_, one), (_, other)| one.total_cmp(other));
        let (mut took, mut free_ns) = (Vec::with_capacity(PUTS), 0.0_f64);
        while let Some((_, first_ns)) = puts.get(took.len()) {
            // All puts that came meanwhile go together.
            let begins_ns = first_ns.max(free_ns);
            let waiting = &puts[took.len()..];
            let together = waiting.partition_point(|(_, there_ns)| *there_ns <= begins_ns);
            free_ns = begins_ns + self.entry_ns * together as f64 + syncs.next_ns() as f64;
            took.extend(waiting[..together].iter().map(|(comes_ns, _)| free_ns - comes_ns));
        }
        took.sort_by(f64::total_cmp);
        let median_ns = took[PUTS / 2];
        Took { median_ns, tail_ns: took[PUTS * 99 / 100] - median_ns }
    }

    /// Syncs with this mean, so spread that the slowest hundredth of puts is so much later than
    /// most.
    pub(super) fn syncs(&self, mean_ns: f64, tail_ns: f64) -> Spread {
        // In files they are whole nanoseconds.
        let mean_ns = mean_ns.max(1_000.0);
        let with = |p99_ns: f64| Spread { mean_ns, p99_ns: Some(p99_ns) };
        let (mut least, mut most) = (mean_ns + 1.0, 0.99 * P99_MAX * mean_ns);
        for _ in 0..STEPS {
            let p99_ns = f64::midpoint(least, most);
            match self.with(with(p99_ns)).tail_ns < tail_ns {
                true => least = p99_ns,
                false => most = p99_ns,
            }
        }
        with(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AWAKE: Puts = Puts {
        rate: 1_000.0,
        sleep: WakeupCosts { awake: Spread::constant(0), wakeups_ns: 0.0, doze_ns: 0.0 },
        write_awake_ns: 0.0,
        write_wakeups_ns: 0.0,
        entry_ns: 50_000.0,
    };

    #[test]
    fn the_spread_is_found_that_makes_such_a_tail() {
        let awake = Spread { mean_ns: 100e3, p99_ns: Some(300e3) };
        let sleep = WakeupCosts { awake, wakeups_ns: 200e3, doze_ns: 5e5 };
        for puts in [AWAKE, Puts { sleep, ..AWAKE }] {
            for p99_ns in [400e3, 600e3, 900e3] {
                let put_in = Spread { mean_ns: 100e3, p99_ns: Some(p99_ns) };
                let found = puts.syncs(100e3, puts.with(put_in).tail_ns).p99_ns.unwrap();
                assert!((found / p99_ns - 1.0).abs() < 0.04, "{found} for {p99_ns}");
            }
        }
        for tail_ns in [0.0, 1e12] {
            assert!(AWAKE.syncs(100e3, tail_ns).is_possible());
        }
    }

    #[test]
    fn many_feel_a_slow_sync() {
        let took = AWAKE.with(Spread { mean_ns: 100e3, p99_ns: Some(1e6) });
        assert!(took.tail_ns > 1.3e6, "{took:?}");
        // By hand: syncs follow each other without a gap, and a put during one waits for half of it
        // and for the next.
        let took = Puts { entry_ns: 0.0, ..AWAKE }.with(Spread::constant(10_000_000));
        assert!((14.8e6..15.2e6).contains(&took.median_ns), "{took:?}");
        assert!((4.7e6..5.0e6).contains(&took.tail_ns), "{took:?}");
    }

    #[test]
    fn who_comes_late_finds_threads_that_sleep() {
        // By hand: 1 / (1 + rate * doze) is a half on average, and the median of 1 - 2^-(gap / mean
        // gap) is a half, too.
        let sleep = WakeupCosts { doze_ns: 1e6, ..AWAKE.sleep };
        let puts = Puts { write_wakeups_ns: 1e6, sleep, entry_ns: 0.0, ..AWAKE };
        let took = puts.with(Spread::constant(0));
        assert!((0.48e6..0.52e6).contains(&took.median_ns), "{took:?}");
        assert!((0.48e6..0.50e6).contains(&took.tail_ns), "{took:?}");
    }
}
