//! An hour of a large cluster, in all eras: how long it takes, and how much memory.
//!
//! ```text
//! cargo test --release -p clearlane-simulator --test hour -- --ignored --nocapture
//! ```

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::time::{Duration, Instant};

use clearlane_simulator::cost_file::CostFile;
use clearlane_simulator::era::Era;
use clearlane_simulator::parallel_runs::run_all;
use clearlane_simulator::results::Results;
use clearlane_simulator::run::run;
use clearlane_simulator::scenario::Scenario;
use clearlane_simulator::server::Build;

const FILE: &str = include_str!("../scenarios/kubernetes-5000-nodes.toml");

fn builds() -> Vec<Build> {
    Era::ALL.map(|era| Build::new(era, CostFile::shipped().costs(era))).to_vec()
}

#[test]
fn eras_side_by_side_are_eras_one_after_the_other() {
    let mut scenario = Scenario::parse(FILE).unwrap();
    scenario.set("seconds", "3").unwrap();
    let tables = |results: Vec<Results>| results.iter().map(Results::table).collect::<Vec<_>>();
    let builds = builds();
    let one_after_the_other = builds.iter().map(|build| run(&scenario, build).unwrap()).collect();
    let side_by_side = run_all(&scenario, &builds).into_iter().map(Result::unwrap).collect();
    assert_eq!(tables(side_by_side), tables(one_after_the_other));
}

/// The most memory that this process ever had, where Linux says so.
fn peak_mb() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? / 1024)
}

#[test]
#[ignore = "takes minutes, and an optimized build"]
fn an_hour_of_5000_nodes() {
    let scenario = Scenario::parse(FILE).unwrap();
    let begin = Instant::now();
    let results = run_all(&scenario, &builds());
    let took = begin.elapsed();
    let mut steps = 0;
    for results in results {
        let results = results.unwrap();
        println!("{}", results.table());
        steps += results.steps;
    }
    println!("{steps} events in {took:?}, {:?} MB at the peak", peak_mb());
    assert!(took < Duration::from_secs(120), "{took:?}");
    assert!(peak_mb().is_none_or(|mb| mb < 1024));
}
