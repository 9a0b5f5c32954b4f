//! The outcome of a run, in a sentence for each class.

use crate::compare::{SAME, wait_words};
use crate::results::{ClassResults, Results};

/// Returns a sentence for each class. All results are from one scenario, each in a different era.
pub fn sentences(all: &[Results]) -> Vec<String> {
    let classes = all.first().map_or(&[][..], |results| &results.classes);
    classes.iter().map(|class| sentence(all, &class.name)).collect()
}

/// A class in an era, and its p99 in milliseconds.
type Measured<'r> = (&'r Results, &'r ClassResults, f64);

fn sentence(all: &[Results], name: &str) -> String {
    let measured = all.iter().filter_map(|results| {
        let class = results.classes.iter().find(|class| class.name == name)?;
        Some((results, class, class.latency_ms(0.99)?))
    });
    let measured: Vec<Measured<'_>> = measured.collect();
    let by_time = |one: &&Measured<'_>, other: &&Measured<'_>| one.2.total_cmp(&other.2);
    let fastest = measured.iter().min_by(by_time);
    let Some((fastest, slowest)) = fastest.zip(measured.iter().max_by(by_time)) else {
        return format!("{name}: no requests were answered");
    };
    let (low, high) = (fastest.2, slowest.2);
    let why = why(slowest);
    match measured.len() {
        1 => format!("{name}: p99 is {high:.2} ms in {}; {why}.", slowest.0.era),
        _ if high < low * SAME => {
            format!("{name}: p99 is the same in all eras, {high:.2} ms; {why}.")
        }
        _ => format!(
            "{name}: p99 is lowest in {}, {low:.2} ms, and highest in {}, {high:.2} ms; there {why}.",
            fastest.0.era, slowest.0.era
        ),
    }
}

fn why((results, class, _): &Measured<'_>) -> String {
    let shares = results.shares(class);
    let Some(most) = shares.first() else {
        return "the causes of its latency are unknown".to_owned();
    };
    let holder = most.blocked_by.map(|holder| format!(", which {holder} holds"));
    format!(
        "{:.0} % of the time of its slowest 1 % is {}{}",
        100.0 * most.share,
        wait_words(most.name),
        holder.unwrap_or_default()
    )
}
