//! What a machine is like just now, compared with when its costs were measured.
//!
//! A virtual machine changes from one minute to the next: how long threads take to wake, records to
//! be read, and the disk to sync. So all three are measured anew beside each run, with loads so
//! small that no request in them waits for another:
//!
//! ```text
//!   small reads, seldom          threads that wake
//!   puts, seldom                 the disk, and threads that wake for it
//!   one long read at a time      records; only where the scenario has long reads
//! ```
//!
//! Each is compared with the same load in the model, and the model of that run is given the ratios.
//! What requests do to each other is not in them: that is for the model to predict.

use std::time::Duration;

use clearlane_loadgen::arrivals::Spacing;
use clearlane_loadgen::workload::{Class, Operation, Workload};
use clearlane_simulator::costs::Costs;
use clearlane_simulator::run::run;
use clearlane_simulator::scenario::Scenario;
use clearlane_simulator::server::Build;

use crate::real::Server;

/// Per second, so seldom that a machine has time to fall asleep in between; and of puts.
const READS: f64 = 80.0;
/// See [`READS`].
const PUTS: f64 = 40.0;
/// Enough of them for a median.
const SECONDS: u64 = 3;
/// As seldom as they come in a calibration; the first of them take longer.
const LONG_READS: f64 = 1.0;
/// See [`LONG_READS`].
const LONG_SECONDS: u64 = 3;
/// In the model they take so many times as long: there it is for nothing, and a median of three is
/// anything.
const IN_THE_MODEL: u64 = 20;
/// What has more records shows what records cost.
const LONG: u64 = 1_000;

/// How many times as long as the costs say it takes now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pace {
    /// Until threads are awake.
    pub(crate) woken_in: f64,
    /// For writes to wait, beyond that.
    pub(crate) written_in: f64,
    /// To read records and to send them, if that is known.
    pub(crate) read_in: Option<f64>,
}

/// Whatever the loads have shown, they were disturbed if it is more than that, or less.
const BOUNDS: (f64, f64) = (0.25, 4.0);

impl Pace {
    /// The machine is as it was.
    pub(crate) const SAME: Pace = Pace { woken_in: 1.0, written_in: 1.0, read_in: None };

    /// Part by part the middle of several.
    pub(crate) fn middle(paces: &[Pace]) -> Pace {
        let of = |by: fn(&Pace) -> f64| middle(paces.iter().map(by).collect()).unwrap_or(1.0);
        Pace {
            woken_in: of(|pace| pace.woken_in),
            written_in: of(|pace| pace.written_in),
            read_in: middle(paces.iter().filter_map(|pace| pace.read_in).collect()),
        }
    }

    /// What things cost at this pace.
    pub(crate) fn costs(self, costs: &Costs) -> Costs {
        costs
            .woken_in(self.woken_in)
            .written_in(self.written_in)
            .read_in(self.read_in.unwrap_or(1.0))
    }
}

/// Of an even number the mean of the two in the middle.
fn middle(mut all: Vec<f64>) -> Option<f64> {
    all.sort_by(f64::total_cmp);
    let (low, high) = (all.get(all.len().saturating_sub(1) / 2)?, all.get(all.len() / 2)?);
    Some(f64::midpoint(*low, *high))
}

/// Medians of the small reads and of the puts, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Small {
    pub(crate) read_ms: f64,
    put_ms: f64,
}

impl Small {
    /// Between the two.
    pub(crate) fn between(self, other: Small) -> Small {
        let half = |one: f64, other: f64| f64::midpoint(one, other);
        Small {
            read_ms: half(self.read_ms, other.read_ms),
            put_ms: half(self.put_ms, other.put_ms),
        }
    }
}

/// The loads that show the pace, and a server of an era in the model.
pub(crate) struct Control {
    build: Build,
    small: Scenario,
    long: Option<Scenario>,
}

impl Control {
    /// With the keys of this scenario.
    pub(crate) fn new(build: Build, scenario: &Scenario) -> Control {
        let with = |classes: Vec<Class>, seconds| {
            let workload = Workload { classes, seconds, ..scenario.workload.clone() };
            Scenario { workload, ..scenario.clone() }
        };
        let class = |place, operation, rate, spacing| {
            let name = format!("control-{place}");
            Class { name, index: place, operation, rate, spacing, connections: 1 }
        };
        let one = Operation::Range { keys: 1, limit: None, serializable: true };
        let put = Operation::Put { value: scenario.workload.space.value };
        let small =
            vec![class(0, one, READS, Spacing::Poisson), class(1, put, PUTS, Spacing::Poisson)];
        let ranges = scenario.workload.classes.iter().filter_map(|class| match class.operation {
            Operation::Range { keys, limit: None, .. } if keys >= LONG => Some(keys),
            _ => None,
        });
        // Not the very reads that are compared: half of them shows what one record takes as well.
        let long = ranges.max().map(|keys| {
            let keys = keys / 2;
            let operation = Operation::Range { keys, limit: None, serializable: true };
            with(vec![class(0, operation, LONG_READS, Spacing::Constant)], LONG_SECONDS)
        });
        Control { build, small: with(small, SECONDS), long }
    }

    /// Small reads and puts, on the real server.
    pub(crate) fn small(&self, server: &Server, seed: u64) -> Result<Small, String> {
        let report = server.load(&self.small.workload, seed, Duration::ZERO)?;
        let median =
            |class: usize| report.classes[class].metrics.latency_ms(0.5).ok_or("no answer came");
        Ok(Small { read_ms: median(0)?, put_ms: median(1)? })
    }

    /// And long reads, if there are any.
    pub(crate) fn long(&self, server: &Server, seed: u64) -> Result<Option<f64>, String> {
        let Some(long) = &self.long else { return Ok(None) };
        let report = server.load(&long.workload, seed, Duration::ZERO)?;
        Ok(Some(report.classes[0].metrics.latency_ms(0.5).ok_or("no long answer came")?))
    }

    /// What the pace is if these are the medians.
    pub(crate) fn pace(&self, small: Small, long_ms: Option<f64>) -> Result<Pace, String> {
        let mut pace = Pace::SAME;
        pace.woken_in = times(small.read_ms, |woken_in| {
            self.in_the_model(&self.small, Pace { woken_in, ..pace }, 0)
        })?;
        pace.written_in = times(small.put_ms, |written_in| {
            self.in_the_model(&self.small, Pace { written_in, ..pace }, 1)
        })?;
        if let Some((scenario, long_ms)) = self.long.as_ref().zip(long_ms) {
            let in_the_model = |read_in| Pace { read_in: Some(read_in), ..pace };
            let read_in =
                times(long_ms, |times| self.in_the_model(scenario, in_the_model(times), 0))?;
            pace.read_in = Some(read_in);
        }
        Ok(pace)
    }

    fn in_the_model(&self, scenario: &Scenario, pace: Pace, class: usize) -> Result<f64, String> {
        let build = Build::new(self.build.era, pace.costs(&self.build.costs));
        let seconds = IN_THE_MODEL * scenario.workload.seconds;
        let workload = Workload { seconds, ..scenario.workload.clone() };
        let scenario = Scenario { workload, ..scenario.clone() };
        let results = run(&scenario, &build).map_err(|error| error.to_string())?;
        results.classes[class].latency_ms(0.5).ok_or_else(|| "no answer in the model".to_owned())
    }
}

/// How many times as long as the costs say something takes that is part of these latencies, if they
/// have this median: the rest of it is what is left if it takes no time.
fn times(median_ms: f64, in_the_model: impl Fn(f64) -> Result<f64, String>) -> Result<f64, String> {
    let (rest_ms, by_the_costs_ms) = (in_the_model(0.0)?, in_the_model(1.0)?);
    Ok(match by_the_costs_ms > rest_ms {
        true => {
            let times = (median_ms - rest_ms) / (by_the_costs_ms - rest_ms);
            times.clamp(BOUNDS.0, BOUNDS.1)
        }
        // By hand, it takes no time.
        false => 1.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    use clearlane_simulator::calibration::Calibration;
    use clearlane_simulator::era::Era;

    const LISTS: &str = "seconds = 1\n[keys]\ncount = 20000\nsize = 64\nvalue = 1024\n[[class]]\n\
        name = \"list\"\noperation = \"range\"\nkeys = 20000\nrate = 1\n";

    #[test]
    fn what_a_small_read_takes_beyond_the_rest_is_waking() {
        let of = |read_ms| times(read_ms, |woken_in| Ok(0.2 + 0.3 * woken_in)).unwrap();
        let rounded = |read_ms| (of(read_ms) * 100.0).round() / 100.0;
        assert_eq!([0.5, 0.8, 0.35, 0.2, 9.0].map(rounded), [1.0, 2.0, 0.5, 0.25, 4.0]);
        assert_eq!(times(0.4, |_| Ok(0.2)), Ok(1.0));
    }

    #[test]
    fn a_pace_is_found_again() {
        let costs = Calibration::shipped().costs(Era::V3_2);
        let control = Control::new(Build::new(Era::V3_2, costs), &Scenario::parse(LISTS).unwrap());
        let long = control.long.as_ref().expect("20,000 keys are long");
        let same = Pace { read_in: Some(1.0), ..Pace::SAME };
        for pace in [same, Pace { woken_in: 1.5, written_in: 0.8, read_in: Some(1.3) }] {
            let of = |scenario, class| control.in_the_model(scenario, pace, class).unwrap();
            let small = Small { read_ms: of(&control.small, 0), put_ms: of(&control.small, 1) };
            let found = control.pace(small, Some(of(long, 0))).unwrap();
            for (found, put_in) in [
                (found.woken_in, pace.woken_in),
                (found.written_in, pace.written_in),
                (found.read_in.unwrap(), pace.read_in.unwrap()),
            ] {
                // Medians of what is spread do not just add up.
                assert!((found / put_in - 1.0).abs() < 0.05, "{found} for {put_in}");
            }
        }
    }

    #[test]
    fn one_era_that_was_disturbed_does_not_set_the_pace() {
        let pace = |woken_in, read_in| Pace { woken_in, read_in: Some(read_in), ..Pace::SAME };
        let paces = [pace(1.5, 1.5), pace(9.0, 1.0), pace(1.0, 1.25)];
        assert_eq!(Pace::middle(&paces), pace(1.5, 1.25));
        assert_eq!(Pace::middle(&paces[1..]), pace(5.0, 1.125));
        assert_eq!(Pace::middle(&[]), Pace::SAME);
    }

    #[test]
    fn who_reads_little_is_not_asked_for_long_reads() {
        let text = LISTS.replace("keys = 20000\nrate", "keys = 10\nrate");
        let build = Build::new(Era::V3_2, Costs::BY_HAND);
        assert!(Control::new(build, &Scenario::parse(&text).unwrap()).long.is_none());
    }
}
