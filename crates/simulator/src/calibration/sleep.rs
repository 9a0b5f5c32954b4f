//! How deep a machine sleeps, and after how long.
//!
//! What a request takes beyond what is computed for it is the time to wake threads, and that grows
//! with the time that the machine had nothing to do, so it depends on the rate of requests:
//!
//! ```text
//!   beyond    │ *
//!             │        *      *                        *        awake
//!             └─rarely──seldom───────────────────────often───▶ requests a second
//! ```
//!
//! Three rates fix one curve: a part that is always there, one of a machine that sleeps, and how
//! long it takes to fall asleep. The median request finds the machine as asleep as after the median
//! gap (`ln 2` of the mean); for the slowest hundredth no such formula exists, so gaps are drawn.

use super::derive::{EraMeasurements, LoadMeasurement, OFTEN, RARELY, SELDOM, middle};
use super::queue::Took;
use crate::Rng;
use crate::spread::{Spread, Times};

/// Requests that are drawn.
const REQUESTS: usize = 10_000;
/// Each halves what is left of the doubt.
const STEPS: usize = 16;
/// Each comes nearer to a spread whose median, added up, is what was seen.
const ROUNDS: usize = 6;
/// Always the same requests.
const SEED: u64 = 2;
/// No machine falls asleep sooner, or later.
const DOZE_NS: (f64, f64) = (300e3, 50e6);
/// The slowest hundredth takes so many times as long as most.
const TAIL: (f64, f64) = (1.01, 20.0);

/// What threads take to hand a request to each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WakeupCosts {
    /// On a machine that is awake.
    pub awake: Spread,
    /// What it takes beyond that on one that sleeps.
    pub wakeups_ns: f64,
    /// How long one that has nothing to do takes to get most of the way there.
    pub doze_ns: f64,
}

impl WakeupCosts {
    /// The same machine in all eras, so it is that in the middle of them.
    pub fn of(all: &[&EraMeasurements]) -> WakeupCosts {
        let beyond = |of: fn(&EraMeasurements) -> &LoadMeasurement,
                      by: fn(&LoadMeasurement) -> f64| {
            let computed = |seen: &EraMeasurements| seen.point.server_ns + seen.point.client_ns;
            middle(all.iter().map(|seen| by(of(seen)) - computed(seen)).collect()).max(1.0)
        };
        let median: fn(&LoadMeasurement) -> f64 = |window| window.median_ns;
        let medians = [
            beyond(|seen| &seen.rarely, median),
            beyond(|seen| &seen.seldom, median),
            beyond(|seen| &seen.point, median),
        ];
        let p99: fn(&LoadMeasurement) -> f64 = |window| window.p99_ns;
        let p99s = beyond(|seen| &seen.seldom, p99) + beyond(|seen| &seen.point, p99);
        WakeupCosts::through(medians, p99s - medians[1] - medians[2])
    }

    /// Requests that come rarely, seldom and often have such medians; and by how much the slowest
    /// hundredths of the last two are later than most of them, that is so much in all.
    fn through(medians: [f64; 3], tails_ns: f64) -> WakeupCosts {
        let mut curve = WakeupCosts::curve(medians);
        let mut found = curve;
        for _ in 0..ROUNDS {
            let median_ns = curve.awake.median_ns();
            let with = |tail: f64| WakeupCosts {
                awake: Spread::around(median_ns, tail * median_ns),
                ..curve
            };
            let tail = bisect(TAIL, |tail| with(tail).tails_ns() < tails_ns);
            found = with(tail);
            // Medians of two things that are spread do not just add up.
            let more = |rate: f64| found.drawn(rate).median_ns - curve.median_ns(rate);
            let more = [RARELY, SELDOM, OFTEN].map(more);
            curve = WakeupCosts::curve([0, 1, 2].map(|place| medians[place] - more[place]));
        }
        found
    }

    /// If what it takes on a machine that is awake were always the same.
    fn curve([rarely, seldom, often]: [f64; 3]) -> WakeupCosts {
        let falls = (rarely - often).max(0.0);
        let part = if falls > 0.0 { ((seldom - often) / falls).clamp(0.0, 1.0) } else { 1.0 };
        let found_by = |doze_ns: f64| {
            let sleep = WakeupCosts { doze_ns, ..AWAKE };
            [RARELY, SELDOM, OFTEN].map(|rate| sleep.found_by(rate))
        };
        let doze_ns = bisect(DOZE_NS, |doze_ns| {
            let [rarely, seldom, often] = found_by(doze_ns);
            (seldom - often) / (rarely - often) > part
        });
        let [deep, _, shallow] = found_by(doze_ns);
        // What is no such curve would have it without end.
        let wakeups_ns = (falls / (deep - shallow)).min(rarely / deep).max(0.0);
        let awake_ns = (often - wakeups_ns * shallow).max(0.0);
        WakeupCosts { awake: Spread { mean_ns: awake_ns, p99_ns: None }, wakeups_ns, doze_ns }
    }

    /// How deep it sleeps, as a share, if it has had nothing to do for so long.
    pub(super) fn depth(&self, idle_ns: f64) -> f64 {
        match self.doze_ns > 0.0 {
            true => 1.0 - (-idle_ns / self.doze_ns).exp(),
            false => 1.0,
        }
    }

    /// How deep those find it that come so often, in the median.
    pub(super) fn found_by(&self, rate: f64) -> f64 {
        self.depth(1e9 / rate * 2.0_f64.ln())
    }

    /// What it takes most of those that come so often, if it is not spread.
    fn median_ns(&self, rate: f64) -> f64 {
        self.awake.median_ns() + self.wakeups_ns * self.found_by(rate)
    }

    /// Of one of them alone it would be too much for the other, or too little.
    fn tails_ns(&self) -> f64 {
        self.drawn(SELDOM).tail_ns + self.drawn(OFTEN).tail_ns
    }

    /// What it takes those that come so often, and by chance.
    fn drawn(&self, rate: f64) -> Took {
        let (mut gaps, mut awake) = (Rng::new(SEED, 0), Times::new(self.awake, Rng::new(SEED, 1)));
        let mut one = |_| {
            let depth = self.depth(gaps.exponential(1e9 / rate));
            awake.next_ns() as f64 + self.wakeups_ns * depth
        };
        let mut all: Vec<f64> = (0..REQUESTS).map(&mut one).collect();
        all.sort_by(f64::total_cmp);
        let median_ns = all[REQUESTS / 2];
        Took { median_ns, tail_ns: all[REQUESTS * 99 / 100] - median_ns }
    }
}

const AWAKE: WakeupCosts =
    WakeupCosts { awake: Spread::constant(0), wakeups_ns: 0.0, doze_ns: 0.0 };

/// Where it ceases to be too little, in equal proportions from the least to the most.
fn bisect((mut least, mut most): (f64, f64), is_too_little: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..STEPS {
        let half = (least * most).sqrt();
        match is_too_little(half) {
            true => least = half,
            false => most = half,
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::Costs;
    use crate::era::Era;
    use crate::run::run;
    use crate::scenario::Scenario;
    use crate::server::Build;

    #[test]
    fn what_was_put_in_comes_out() {
        for (doze_ns, tail) in [(1e6, 1.5), (12e6, 3.0), (30e6, 5.0)] {
            let put_in =
                WakeupCosts { awake: Spread::around(8e4, tail * 8e4), wakeups_ns: 4e5, doze_ns };
            let medians = [RARELY, SELDOM, OFTEN].map(|rate| put_in.drawn(rate).median_ns);
            let found = WakeupCosts::through(medians, put_in.tails_ns());
            let ratios = [
                found.awake.median_ns() / put_in.awake.median_ns(),
                found.awake.p99_ns.unwrap() / put_in.awake.p99_ns.unwrap(),
                found.wakeups_ns / put_in.wakeups_ns,
                found.doze_ns / put_in.doze_ns,
            ];
            assert!(ratios.iter().all(|ratio| (ratio - 1.0).abs() < 0.1), "{ratios:?}");
            for (rate, median) in [RARELY, SELDOM, OFTEN].into_iter().zip(medians) {
                assert!((found.drawn(rate).median_ns / median - 1.0).abs() < 0.02, "{rate}");
            }
        }
    }

    /// The middle of what eras show; and a machine that never sleeps, or one that shows nonsense,
    /// has no wakeups.
    #[test]
    fn one_era_that_was_disturbed_counts_for_nothing() {
        let (server_ns, client_ns) = (5e4, 7e4);
        let beyond = |ns: f64| {
            let (median_ns, p99_ns) =
                (server_ns + client_ns + ns, server_ns + client_ns + 2.0 * ns);
            LoadMeasurement { median_ns, p99_ns, ..LoadMeasurement::default() }
        };
        let seen = |rarely, seldom, often| EraMeasurements {
            rarely: beyond(rarely),
            seldom: beyond(seldom),
            point: LoadMeasurement { server_ns, client_ns, ..beyond(often) },
            ..EraMeasurements::default()
        };
        let (calm, same) = (seen(5e5, 3e5, 2e5), seen(5e5, 3e5, 2e5));
        let disturbed = seen(9e9, 9e9, 9e9);
        assert_eq!(WakeupCosts::of(&[&calm, &disturbed, &same]), WakeupCosts::of(&[&calm]));
        for (rarely, seldom, often) in [(2e5, 2e5, 2e5), (1e5, 3e5, 2e5), (0.0, 0.0, 0.0)] {
            let found = WakeupCosts::of(&[&seen(rarely, seldom, often)]);
            assert_eq!(found.wakeups_ns, 0.0);
            let median_ns = found.drawn(OFTEN).median_ns;
            assert!((median_ns / often.max(1.0) - 1.0).abs() < 0.02, "{found:?}");
        }
        let (least, most) =
            (WakeupCosts::of(&[&seen(5e5, 5e5, 1e5)]), WakeupCosts::of(&[&seen(5e5, 0.0, 1e5)]));
        assert!(least.doze_ns < 1.1 * DOZE_NS.0 && most.doze_ns > 0.9 * DOZE_NS.1);
        for sleep in [least, most] {
            assert!(sleep.awake.is_possible());
            let drawn = [RARELY, SELDOM, OFTEN].map(|rate| sleep.drawn(rate).median_ns);
            assert!(drawn.iter().all(|ns| *ns < 5.1e5), "{drawn:?}");
        }
    }

    /// Requests are drawn one by one. In the model there is a server around them.
    #[test]
    fn reads_take_in_the_model_what_the_curve_says() {
        let sleep = WakeupCosts { awake: Spread::around(8e4, 3e5), wakeups_ns: 4e5, doze_ns: 12e6 };
        let costs = Costs {
            awake: sleep.awake,
            wakeups_ns: sleep.wakeups_ns as u64,
            doze_ns: sleep.doze_ns as u64,
            ..Costs::BY_HAND
        };
        let computed = costs.client_ns + costs.request_ns + costs.index_seek_ns + costs.record_ns;
        for rate in [RARELY, SELDOM, OFTEN] {
            let text = format!(
                "seconds = 60\n[keys]\ncount = 1000\nsize = 64\nvalue = 64\n[[class]]\nname = \"read\"\n\
                 operation = \"range\"\nkeys = 1\narrivals = \"poisson\"\nrate = {rate}\n"
            );
            let scenario = Scenario::parse(&text).unwrap();
            let results = run(&scenario, &Build::new(Era::Clearlane, costs.clone())).unwrap();
            let ns = |quantile| results.classes[0].latency_ms(quantile).unwrap() * 1e6;
            let Took { median_ns, tail_ns } = sleep.drawn(rate);
            let (median, tail) = (ns(0.5), ns(0.99) - ns(0.5));
            let drawn = median_ns + computed as f64;
            assert!((median / drawn - 1.0).abs() < 0.1, "{rate}: {median} in the model, {drawn}");
            assert!((tail / tail_ns - 1.0).abs() < 0.2, "{rate}: {tail} in the model, {tail_ns}");
        }
    }
}
