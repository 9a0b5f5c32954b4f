//! One seed, from its first event to its verdict.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::checkers::{Rule, Violation};
use crate::cluster::{Cluster, RunMetrics, SeedOptions};

/// What became of a seed.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was asked for.
    pub options: SeedOptions,
    /// The first rule that did not hold, if there is one.
    pub violation: Option<Violation>,
    /// The hash of the trace.
    pub trace_hash: u64,
    /// The [hash of all effects](crate::effect_hash).
    pub effect_hash: u64,
    /// The lines of the trace, if they were to be kept.
    pub trace_lines: Vec<String>,
    /// How much happened.
    pub metrics: RunMetrics,
}

/// Runs a seed. An assertion that fails in a member is a violation like others.
pub fn run(order: SeedOptions) -> Report {
    let mut cluster = Cluster::new(&order);
    // What a panic leaves behind is only looked at for its trace.
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
