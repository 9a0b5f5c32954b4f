//! Runs one seed and reports the result.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::checkers::{Rule, Violation};
use crate::cluster::{Cluster, RunMetrics, SeedOptions};

#[derive(Clone, Debug)]
pub struct Report {
    pub options: SeedOptions,
    /// The first violation of a rule.
    pub violation: Option<Violation>,
    pub trace_hash: u64,
    pub effect_hash: u64,
    pub metrics: RunMetrics,
}

/// Runs a seed. A panic in a member is a violation.
pub fn run(options: SeedOptions) -> Report {
    let mut cluster = Cluster::new(&options);
    // A panic may leave the cluster in an invalid state. After a panic, only the cluster's trace,
    // hashes and metrics are used.
    let result = catch_unwind(AssertUnwindSafe(|| cluster.run()));
    let violation = result.map_or_else(
        |panic| {
            let message = panic.downcast_ref::<String>().map(String::as_str);
            let message = message.or(panic.downcast_ref::<&str>().copied());
            Some(Violation::new(Rule::Running, message.unwrap_or("a panic without a message")))
        },
        Result::err,
    );
    if let Some(violation) = &violation {
        cluster.trace_line(format_args!("violation: {violation}"));
    }
    Report {
        options,
        violation,
        trace_hash: cluster.trace.hash(),
        effect_hash: cluster.effect_hash.finish(),
        metrics: cluster.collect_metrics(),
    }
}
