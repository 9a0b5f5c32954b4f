//! `measure`: measures the costs of this machine with three simple loads.
//!
//! ```text
//!   load                     measured figures             the scaled groups of costs
//!   read   one key           processor time, latency  ->  a request; threads that wake
//!   long   20,000 records    processor time, latency  ->  a record; the waits of a long response
//!   put    1 KiB             processor time, latency  ->  a put; its threads and its disk
//! ```
//!
//! Each load runs on the real server of an era, and in the model, at first with the shipped costs.
//! For each load, one group of costs is scaled so that the model shows the measured processor time,
//! and another group so that it shows the measured median latency. Ratios within a group stay as
//! shipped. Costs that no load shows also stay as shipped.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command, value_parser};
use clearlane_loadgen::process::Process;
use clearlane_simulator::cost_file::CostFile;
use clearlane_simulator::costs::{CostGroup, Costs};
use clearlane_simulator::era::Era;
use clearlane_simulator::run::run;
use clearlane_simulator::scenario::Scenario;
use clearlane_simulator::server::Build;

use crate::real::{Program, Server, arguments, cores, machine};
use crate::scenario_arguments::era_argument;
use crate::text::{path_flag, print_line, print_progress, write};

const KEYS: &str = "[keys]\ncount = 20_000\nsize = 64\nvalue = 1024\n";

/// A load, and two groups of costs. The load's CPU time determines the group `computed`, and its
/// median latency determines the group `waited`. The loads are measured in the order of [`LOADS`],
/// because each load needs the costs from the earlier loads.
struct Load {
    class: &'static str,
    computed: CostGroup,
    waited: CostGroup,
}

const LOADS: [Load; 3] = [
    Load {
        class: "operation = \"range\"\nconsistency = \"serializable\"\nrate = 400\n\
            arrivals = \"poisson\"\nconnections = 4\n",
        computed: CostGroup::Request,
        waited: CostGroup::RequestWaits,
    },
    Load {
        class: "operation = \"range\"\nconsistency = \"serializable\"\nkeys = 20_000\nrate = 2\n",
        computed: CostGroup::Record,
        waited: CostGroup::RecordWaits,
    },
    Load {
        class: "operation = \"put\"\nrate = 200\narrivals = \"poisson\"\nconnections = 4\n",
        computed: CostGroup::Put,
        waited: CostGroup::PutWaits,
    },
];

/// Length of the load before a measurement. The first requests of a new server are slower than
/// later ones.
const WARM_UP_SECONDS: u64 = 2;

/// How many times longer a load runs in the model than on the server. Simulated time costs little.
const IN_THE_MODEL: u64 = 5;

/// Largest factor by which a group of costs is scaled. A larger factor must be an error, because
/// machines do not differ that much.
const TIMES_MAX: f64 = 20.0;

pub(crate) fn command() -> Command {
    Command::new("measure")
        .about("Measures the costs of this machine with the real server; run nothing else")
        .arg(path_flag("out", "FILE").help("File for the costs (default: standard output)"))
        .arg(
            era_argument(&Era::ALL)
                .help("Eras to measure; other eras use the costs of the era before them"),
        )
        .arg(
            Arg::new("seconds")
                .long("seconds")
                .value_name("N")
                .default_value("4")
                .value_parser(value_parser!(u64).range(1..=60))
                .help("Seconds for each of the three loads"),
        )
        .args(arguments())
}

pub(crate) fn done(matches: &ArgMatches) -> Result<(), String> {
    let program = Program::of(matches)?;
    let seconds = *matches.get_one("seconds").expect("it has a default");
    let wanted: Vec<Era> = matches.get_many("era").expect("it has a default").copied().collect();
    let (shipped, mut eras) = (CostFile::shipped(), BTreeMap::new());
    for era in wanted {
        print_progress(&format!("era {era}"));
        let costs = costs(&program, era, shipped.costs(era), seconds);
        eras.insert(era, costs.map_err(|error| format!("era {era}: {error}"))?);
    }
    let text = CostFile { machine: machine(), eras }.to_string();
    match matches.get_one::<PathBuf>("out") {
        Some(file) => write(file, &text),
        None => print_line(&text),
    }
}

/// The average CPU time per request, and the median latency.
#[derive(Clone, Copy, Debug)]
struct Shown {
    processor_ns: f64,
    median_ns: f64,
}

/// Returns the measured costs of an era. They are scaled from the costs in `shipped`.
fn costs(program: &Program, era: Era, shipped: Costs, seconds: u64) -> Result<Costs, String> {
    let mut costs = shipped;
    let keys = scenario(LOADS[0].class, seconds)?.workload.space;
    let server = Server::start(program, era, &keys)?;
    for Load { class, computed, waited } in LOADS {
        let seen = on_the_server(&server, &scenario(class, seconds)?)?;
        let model = scenario(class, seconds * IN_THE_MODEL)?;
        for (group, of) in [
            (computed, (|shown| shown.processor_ns) as fn(Shown) -> f64),
            (waited, |shown| shown.median_ns),
        ] {
            let with = |times| in_the_model(&model, era, costs.scaled(group, times)).map(of);
            let times = times(of(seen), with)?;
            costs = costs.scaled(group, times);
        }
    }
    Ok(costs)
}

fn scenario(class: &str, seconds: u64) -> Result<Scenario, String> {
    let text = format!("seconds = {seconds}\n{KEYS}[[class]]\nname = \"measured\"\n{class}");
    let scenario = Scenario::parse(&text).map_err(|error| error.to_string())?;
    Ok(Scenario { cores: cores(), ..scenario })
}

/// Runs a load on the server, after a warm-up. The measured CPU time includes the client's CPU
/// time, as in the model.
fn on_the_server(server: &Server, scenario: &Scenario) -> Result<Shown, String> {
    let own = Process::open(process::id()).map_err(|error| error.to_string())?;
    let used = |process: &Process| {
        process.usage().map(|usage| usage.processor).map_err(|error| error.to_string())
    };
    let both = || Ok::<_, String>(used(&server.process()?)? + used(&own)?);
    let mut warm_up = scenario.workload.clone();
    warm_up.seconds = WARM_UP_SECONDS;
    server.load(&warm_up, 2, Duration::ZERO)?;
    let before = both()?;
    let report = server.load(&scenario.workload, 1, Duration::ZERO)?;
    let processor = both()?.saturating_sub(before);
    let metrics = &report.classes[0].metrics;
    let median_ms = metrics.latency_ms(0.5).ok_or("no request was answered")?;
    let processor_ns = processor.as_nanos() as f64 / metrics.answered() as f64;
    Ok(Shown { processor_ns, median_ns: median_ms * 1e6 })
}

fn in_the_model(scenario: &Scenario, era: Era, costs: Costs) -> Result<Shown, String> {
    let results = run(scenario, &Build::new(era, costs)).map_err(|error| error.to_string())?;
    let class = &results.classes[0];
    let median_ms = class.latency_ms(0.5).ok_or("no request was answered in the model")?;
    let used_ns = results.cores_used * scenario.workload.seconds as f64 * 1e9;
    Ok(Shown { processor_ns: used_ns / class.answers() as f64, median_ns: median_ms * 1e6 })
}

/// Returns the factor by which a group of costs must be multiplied so that the model shows `seen`.
/// The factor is at most [`TIMES_MAX`]. With factor 0, the model shows only the part of its result
/// that does not depend on the group. If the group makes no difference, the factor is 1.
fn times(seen: f64, in_the_model: impl Fn(f64) -> Result<f64, String>) -> Result<f64, String> {
    let (rest, by_the_costs) = (in_the_model(0.0)?, in_the_model(1.0)?);
    if by_the_costs <= rest {
        return Ok(1.0);
    }
    Ok(((seen - rest) / (by_the_costs - rest)).clamp(0.0, TIMES_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_beyond_the_rest_is_scaled() {
        let of = |seen| times(seen, |times| Ok(200.0 + 300.0 * times)).unwrap();
        assert_eq!([500.0, 800.0, 350.0, 100.0, 1e9].map(of), [1.0, 2.0, 0.5, 0.0, TIMES_MAX]);
        assert_eq!(times(400.0, |_| Ok(200.0)), Ok(1.0), "a part that does not show stays");
    }

    #[test]
    fn costs_that_were_scaled_are_found_again() {
        let costs = CostFile::shipped().costs(Era::V3_2);
        for Load { class, computed, waited } in LOADS {
            let model = scenario(class, 20).unwrap();
            for (group, of) in [
                (computed, (|shown| shown.processor_ns) as fn(Shown) -> f64),
                (waited, |shown| shown.median_ns),
            ] {
                let with = |times| in_the_model(&model, Era::V3_2, costs.scaled(group, times));
                let found = times(of(with(1.4).unwrap()), |times| with(times).map(of)).unwrap();
                assert!((found / 1.4 - 1.0).abs() < 0.15, "{group:?}: {found}");
            }
        }
    }
}
