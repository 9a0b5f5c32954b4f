//! Do costs give back what they were made from?
//!
//! Costs are differences, and the model adds them up again. What it makes of the very loads of the
//! calibration should be what was seen of them: where it is not, either a cost was disturbed in the
//! minute in which it was measured, or the model does something else than the server. In that case
//! no prediction can be trusted that has to do with it, and it is better to know before.

use std::fmt::Write as _;

use clearlane_simulator::calibration::Calibration;
use clearlane_simulator::calibration::derive::LoadMeasurement;
use clearlane_simulator::results::ClassResults;
use clearlane_simulator::run::run;
use clearlane_simulator::scenario::Scenario;
use clearlane_simulator::server::Build;

use crate::real::cores;
use crate::real::windows::{EraWindows, loads};

/// Of each load in the model. Of long reads that is ten, and their p99 the slowest of these.
const SECONDS: u64 = 10;

/// The end of a file of costs: by how much each load differs in the model.
pub(crate) fn given_back(calibration: &Calibration, all: &[EraWindows]) -> Result<String, String> {
    let mut text = "# What the model makes of the loads that the costs are from, beyond what was seen (p50, p99), in %:\n"
        .to_owned();
    let _ = write!(text, "# {:<16}", "");
    for EraWindows { era, .. } in all {
        let _ = write!(text, "{:>13}", era.name());
    }
    for (group, loads) in loads().into_iter().enumerate() {
        for (number, load) in loads.into_iter().enumerate() {
            let workload = load.workload(SECONDS)?;
            let names: Vec<String> =
                workload.classes.iter().map(|class| class.name.clone()).collect();
            let scenario = Scenario { cores: cores(), ..Scenario::new(workload) };
            let in_the_model = |EraWindows { era, .. }: &EraWindows| {
                run(&scenario, &Build::new(*era, calibration.costs(*era)))
            };
            let runs: Vec<_> = all.iter().map(in_the_model).collect();
            for (class, name) in names.into_iter().enumerate() {
                let _ = write!(text, "\n# {name:<16}");
                for (EraWindows { windows, .. }, run) in all.iter().zip(&runs) {
                    let cell = match run {
                        Ok(run) => beyond(&windows[&(group, number, class)], &run.classes[class]),
                        // By these costs it is more than the machine can do.
                        Err(_) => "refused".to_owned(),
                    };
                    let _ = write!(text, "{cell:>13}");
                }
            }
        }
    }
    text.push('\n');
    Ok(text)
}

/// By which share it takes longer in the model.
fn beyond(seen: &LoadMeasurement, class: &ClassResults) -> String {
    let share = |seen_ns: f64, quantile| match class.latency_ms(quantile) {
        Some(ms) if seen_ns > 0.0 => format!("{:+.0}", (ms * 1e6 / seen_ns - 1.0) * 100.0),
        _ => "-".to_owned(),
    };
    format!("{} {}", share(seen.median_ns, 0.5), share(seen.p99_ns, 0.99))
}
