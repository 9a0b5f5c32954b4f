//! Head-of-line blocking: how much one expensive read delays a cheap read and a put.
//!
//! ```text
//! cargo bench --bench head_of_line
//! ```
//!
//! The store of each era has records of 1 KiB, and a commit every 100 ms. In each window of time,
//! one `Load` runs on the store of one era. While it runs, the clients of each `Class` send
//! operations at random times, independent of earlier operations.
//!
//! **Timed** is the time from an operation's due time to its end. An operation that is still queued
//! at the end of a window is recorded with its wait so far, and as not served. **Not timed:**
//! filling the store, and the expensive read, which has as many records as take 30 ms in an idle
//! store.
//!
//! The windows of all eras and loads are shuffled and repeated. Up to the 99th percentile, the
//! summary contains the median over the repetitions. Higher percentiles are computed from all
//! repetitions together. The results are printed, and the picture is in `target/head_of_line/`. Any
//! option of criterion, such as `-- --save-baseline NAME`, also makes its report. `BenchConfig`
//! lists the settings. Figures are in `docs/backend.md`.

#![allow(clippy::print_stderr, reason = "a bench reports its progress to the terminal")]

mod load;
mod bench_config;
mod bench_store;
mod summary;
mod plot;
mod verdict;

use std::time::Duration;

use bench_config::BenchConfig;
use bench_store::BenchStore;
use clearlane_benches::store::fail;
use criterion::{Criterion, SamplingMode};
use load::{Class, Load};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use summary::{Cell, Summary};

/// Maximum number of events in a timeline. It is higher than the number of events in a window.
const TRACE_EVENTS_MAX: usize = 1_000_000;
/// Minimum time for criterion. If it has less time, criterion warns that it cannot complete its
/// samples.
const REPLAY_TIME: Duration = Duration::from_millis(100);

fn main() {
    let settings = BenchConfig::read().unwrap_or_else(|error| fail(&error));
    // Criterion ends the bench here if an option is unknown.
    let criterion = settings.for_criterion.then(|| configured_criterion(&settings));
    if !settings.is_selected() {
        return;
    }
    let summary = measure(&settings);
    if let Some(mut criterion) = criterion {
        report_to_criterion(&mut criterion, &summary);
        criterion.final_summary();
    }
    // The most important results are printed last.
    let picture = summary.write(&settings);
    let verdict = verdict::verdict(&summary, &settings.eras, settings.quick);
    eprintln!("\n{verdict}\npicture: {}", picture.display());
}

fn configured_criterion(settings: &BenchConfig) -> Criterion {
    let criterion = Criterion::default();
    // Plots would take longer than a test run.
    let criterion = if settings.quick { criterion.without_plots() } else { criterion };
    criterion.configure_from_args()
}

/// Runs all windows. In each repetition, each era runs each load, in a different order.
fn measure(settings: &BenchConfig) -> Summary {
    let stages: Vec<BenchStore> =
        settings.eras.iter().map(|era| BenchStore::open(*era, settings)).collect();
    let mut summary = Summary::default();
    let windows = settings.repetitions * stages.len() * Load::ALL.len();
    for repetition in 0..settings.repetitions {
        let mut turns: Vec<(&BenchStore, Load)> =
            stages.iter().flat_map(|stage| Load::ALL.map(|load| (stage, load))).collect();
        turns.shuffle(&mut SmallRng::seed_from_u64(repetition as u64));
        for (stage, load) in turns {
            let is_recorded = settings.timelines && repetition == 0 && load == Load::Expensive;
            if is_recorded {
                stage.recorder.start(TRACE_EVENTS_MAX);
            }
            let window = stage.run(load, settings, repetition as u64);
            if let Some(recorded) = stage.recorder.stop() {
                summary::write_timeline(settings, stage.era, &recorded.timeline);
            }
            progress(&summary, windows, stage, load, &window);
            summary.add(stage.era, load, window);
        }
    }
    summary
}

fn progress(
    summary: &Summary,
    windows: usize,
    stage: &BenchStore,
    load: Load,
    window: &bench_store::Window,
) {
    let p99 = |class| window.class(class).latency.value_at_quantile(0.99) as f64 / 1e6;
    eprintln!(
        "[{:3}/{windows}] {:9} {:9} cheap read p99 {:8.3} ms   put p99 {:8.3} ms   {} expensive",
        summary.windows() + 1,
        stage.era.name(),
        load.name(),
        p99(Class::CheapRead),
        p99(Class::Put),
        window.expensive_reads,
    );
}

/// Passes the recorded latencies to criterion, one per sample, so that its report shows their
/// distribution.
fn report_to_criterion(criterion: &mut Criterion, summary: &Summary) {
    for class in Class::ALL {
        for load in Load::ALL {
            let mut group = criterion.benchmark_group(group_name(class, load));
            group.sampling_mode(SamplingMode::Flat).sample_size(200).nresamples(10_000);
            for cell in summary.cells().filter(|cell| cell.load == load && cell.class == class) {
                report_cell(&mut group, cell);
            }
            group.finish();
        }
    }
}

/// Returns the name of a group in criterion's report. A filter on the command line is also compared
/// with this name.
fn group_name(class: Class, load: Load) -> String {
    format!("head_of_line/{}_{}", class.name(), load.name())
}

type Group<'c> = criterion::BenchmarkGroup<'c, criterion::measurement::WallTime>;

fn report_cell(group: &mut Group<'_>, cell: &Cell) {
    // The latencies are shuffled, so that consecutive ones represent the whole run.
    let mut recorded = cell.latencies_ns.clone();
    recorded.shuffle(&mut SmallRng::seed_from_u64(7));
    let mut recorded = recorded.iter().cycle();
    // Replaying takes almost no time.
    group.measurement_time(REPLAY_TIME).warm_up_time(Duration::from_nanos(1));
    group.bench_function(cell.era.name(), |bencher| {
        // Criterion divides by the number of iterations. So a sample is one latency, for any number
        // of iterations.
        bencher.iter_custom(|iterations| {
            let latency_ns = recorded.next().copied().unwrap_or_default();
            Duration::from_nanos(latency_ns.saturating_mul(iterations))
        });
    });
}
