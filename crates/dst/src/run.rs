//! Runs one seed and reports the result.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::checkers::{Rule, Violation};
use crate::cluster::{Cluster, RunMetrics, SeedOptions};

#[derive(Clone, Debug)]
pub struct Report {
    pub options: SeedOptions,
    /// The first violation.
    pub violation: Option<Violation>,
    pub trace_hash: u64,
    pub effect_hash: u64,
    /// Empty unless the options ask for them.
    pub trace_lines: Vec<String>,
    pub metrics: RunMetrics,
}

/// Runs a seed. A panic in a member is a violation.
pub fn run(order: SeedOptions) -> Report {
    let mut cluster = Cluster::new(&order);
    // After a panic only the cluster's trace is read.
    let played = catch_unwind(AssertUnwindSafe(|| cluster.run()));
    let violation = match played {
        Ok(verdict) => verdict.err(),
        Err(panic) => {
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words.or(panic.downcast_ref::<&str>().copied());
            Some(Violation::new(Rule::Running, words.unwrap_or("a panic without words")))
        }
    };
    if let Some(violation) = &violation {
        cluster.trace_line(format_args!("violation: {violation}"));
    }
    let (hash, lines) = (cluster.trace.hash(), cluster.trace.lines().to_vec());
    let effects = cluster.effect_hash.finish();
    Report {
        options: order,
        violation,
        trace_hash: hash,
        effect_hash: effects,
        trace_lines: lines,
        metrics: cluster.collect_metrics(),
    }
}
