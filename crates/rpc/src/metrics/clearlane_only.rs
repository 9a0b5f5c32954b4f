//! Metrics that etcd does not have: the era, reads of records that were not in memory, lost parts
//! of the log, late raft ticks, parts of the member that are stalled, and the time that threads
//! waited for each lock or held it.
//!
//! The locks' own histograms have 16 buckets for each power of two. The metrics page shows fewer
//! buckets: their bounds double from 1 µs to 8 s.

use std::sync::atomic::Ordering;
use std::time::Duration;

use clearlane_contention::{HistogramSnapshot, LockReport, ModeReport};
use clearlane_replica::Part;

use super::MetricSources;
use super::page::{MetricsPage, PrometheusHistogram, doubling};

/// The smallest bound of the locks' histograms on the metrics page, in seconds.
const FIRST_SECONDS: f64 = 1e-6;
const BOUNDS: i32 = 24;

pub(super) fn write(page: &mut MetricsPage, sources: &MetricSources<'_>) {
    let era = sources.server.threads().store().era().name();
    let help = "The read path of this server. 1 for 'era' label with current era.";
    page.family("clearlane_era", "gauge", help).sample(&[("era", era)], 1);
    let help = "Reads that a network thread passed to another thread because they need the disk.";
    let cold = sources.server.threads().metrics().uncached_reads.load(Ordering::Relaxed);
    page.family("clearlane_cold_reads_total", "counter", help).sample(&[], cold);
    let help = "Bytes by which the log's last segment was too short when the member started.";
    let figures = sources.server.threads().metrics();
    let missing = figures.log_missing.load(Ordering::Relaxed);
    page.family("clearlane_wal_missing_bytes", "gauge", help).sample(&[], missing);
    let help = "Appends that members rejected although they had acknowledged these entries.";
    let lost = figures.lost_log_reports.load(Ordering::Relaxed);
    page.family("clearlane_raft_lost_log_reports_total", "counter", help).sample(&[], lost);
    let help = "Lateness of raft ticks.";
    let late = PrometheusHistogram::merge([&figures.tick_lateness]);
    page.family("clearlane_raft_tick_lateness_seconds", "histogram", help).histogram(&[], &late);
    let help = "Maximum lateness of a raft tick since the start.";
    let most =
        Duration::from_nanos(figures.tick_lateness_max.load(Ordering::Relaxed)).as_secs_f64();
    page.gauge("clearlane_raft_tick_lateness_max_seconds", help, most);
    write_stalls(page, sources);
    let report = sources.server.threads().locks().report();
    let waits = "Time until a lock was acquired, 0 without a wait.";
    write_locks(page, &report, "clearlane_lock_wait_seconds", waits, |mode| &mode.waits);
    let holds = "Time that a lock was held.";
    write_locks(page, &report, "clearlane_lock_hold_seconds", holds, |mode| &mode.holds);
    let help =
        "Time that one kind of work delayed another. stance: held the lock, or waited itself.";
    let mut family = page.family("clearlane_lock_blame_seconds_total", "counter", help);
    for lock in &report {
        for blame in &lock.blame {
            let labels = [
                ("lock", lock.name),
                ("waiter", blame.waiter.name()),
                ("waiter_mode", &format!("{:?}", blame.mode).to_lowercase()),
                ("holder", blame.blocker.name()),
                ("holder_mode", &format!("{:?}", blame.blocker_mode).to_lowercase()),
                ("stance", &format!("{:?}", blame.blocker_state).to_lowercase()),
            ];
            family.sample(&labels, seconds(blame.total_ns));
        }
    }
}

fn write_stalls(page: &mut MetricsPage, sources: &MetricSources<'_>) {
    let node = sources.server.threads();
    let (stalls, now) = (node.stalls(), node.now());
    let help = "Time that a part of this member has made no progress. 0 if it is not stalled.";
    let mut family = page.family("clearlane_stalled_seconds", "gauge", help);
    for part in Part::ALL {
        let stalled = stalls.stalled_for(part, now).unwrap_or_default();
        family.sample(&[("part", part.name())], stalled.as_secs_f64());
    }
    let help = "Number of times that a part made no progress for an election timeout.";
    let mut family = page.family("clearlane_stalls_total", "counter", help);
    for part in Part::ALL {
        family.sample(&[("part", part.name())], stalls.count(part));
    }
    let help = "Number of times that this leader gave up leadership because a part was stalled.";
    let given_up = stalls.leaderships_given_up();
    page.counter("clearlane_stall_leader_transfers_total", help, given_up);
}

fn write_locks(
    page: &mut MetricsPage,
    report: &[LockReport],
    name: &str,
    help: &str,
    times: impl Fn(&ModeReport) -> &HistogramSnapshot,
) {
    let mut family = page.family(name, "histogram", help);
    for lock in report {
        for (mode, of_mode) in [("read", &lock.read), ("write", &lock.write)] {
            let times = times(of_mode);
            let values = times.buckets().map(|(ns, count)| (seconds(ns), count));
            let bounds = doubling(FIRST_SECONDS, BOUNDS);
            let sums = PrometheusHistogram::rounded_up(bounds, values, seconds(times.sum));
            family.histogram(&[("lock", lock.name), ("mode", mode)], &sums);
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
