//! Where the time of each class went, as a table in Markdown.
//!
//! ```text
//! | class | lanes | mean | where its time went |
//! |---|---|---|---|
//! | put | 60 | 69.70 ms | 77.0 % readTx, held by long range; 12.4 % disk; 10.6 % running |
//! ```

use std::fmt::Write as _;

use clearlane_contention::blame::{self, Cause, ClassBlame};

use crate::timeline::Timeline;

const NS_PER_MS: f64 = 1e6;
/// Minimum share in the table, in per cent. Smaller shares would be shown as 0.0 %.
pub(super) const LEAST_PERCENT: f64 = 0.05;

pub fn table(timeline: &Timeline) -> String {
    let mut table =
        "| class | lanes | mean | where its time went |\n|---|---|---|---|\n".to_owned();
    for blame in blame::blame_by_class(timeline) {
        let shares: Vec<String> = shares(&blame, LEAST_PERCENT)
            .map(|(cause, percent)| format!("{percent:.1} % {}", cause_words(cause)))
            .collect();
        let mean_ms = blame.total_ns as f64 / blame.lane_count.max(1) as f64 / NS_PER_MS;
        let _ = writeln!(
            table,
            "| {} | {} | {mean_ms:.2} ms | {} |",
            blame.class,
            blame.lane_count,
            shares.join("; ")
        );
    }
    table
}

/// Returns the causes that take at least `least` per cent of the time of a class.
pub(super) fn shares(blame: &ClassBlame, least: f64) -> impl Iterator<Item = (&Cause, f64)> {
    let percent = move |ns: u64| 100.0 * ns as f64 / blame.total_ns.max(1) as f64;
    let all = blame.causes.iter().map(move |(cause, ns)| (cause, percent(*ns)));
    all.filter(move |(_, percent)| *percent >= least)
}

pub(super) fn cause_words(cause: &Cause) -> String {
    match cause {
        Cause::Run => "running".to_owned(),
        Cause::Core => "waiting for a core".to_owned(),
        Cause::Disk => "disk".to_owned(),
        Cause::Network => "network".to_owned(),
        // If the wait is for a worker, the resource already contains the worker's name.
        Cause::Wait { resource, blamed_class: Some(by) } if !resource.ends_with(by.as_str()) => {
            format!("{resource}, held by {by}")
        }
        Cause::Wait { resource, .. } => resource.clone(),
    }
}
