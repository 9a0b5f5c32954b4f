//! Simulates a disk that becomes slower: how long do a cheap read and a put take in two eras?
//!
//! ```text
//! cargo run --release --example simulate
//! cargo run --release --example simulate -- my-scenario.toml
//! ```

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;

use clearlane_simulator::cost_file::CostFile;
use clearlane_simulator::era::Era;
use clearlane_simulator::run::run;
use clearlane_simulator::scenario::Scenario;
use clearlane_simulator::server::Build;
use clearlane_simulator::shipped::Shipped;

fn main() -> Result<(), Box<dyn Error>> {
    let mut scenario = match std::env::args().nth(1) {
        Some(file) => Scenario::parse(&std::fs::read_to_string(file)?)?,
        None => Scenario::parse(
            Shipped::find("head-of-line").ok_or("the scenario is not shipped")?.text,
        )?,
    };
    let cost_file = CostFile::shipped();
    for sync_ms in ["0.5", "2", "8", "32"] {
        scenario.set("model.sync_ms", sync_ms)?;
        for era in [Era::V3_2, Era::Clearlane] {
            let results = run(&scenario, &Build::new(era, cost_file.costs(era)))?;
            for class in results.classes.iter().filter(|class| class.answers() > 0) {
                let p99 = class.latency_ms(0.99).unwrap_or_default();
                let worst = results.shares(class).first().map(|share| share.to_string());
                let worst = worst.unwrap_or_default();
                println!(
                    "sync {sync_ms:>3} ms, era {era:9} {:9} p99 {p99:7.2} ms: {worst}",
                    class.name
                );
            }
        }
    }
    Ok(())
}
