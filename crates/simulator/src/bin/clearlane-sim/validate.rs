//! `validate`: the same loads in the model and on the real server, and how far they are apart.

use std::fmt;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use clearlane_loadgen::report::Report;
use clearlane_simulator::calibration::Calibration;
use clearlane_simulator::era::Era;
use clearlane_simulator::model::{Model, Stalls};
use clearlane_simulator::results::Results;
use clearlane_simulator::run::run;
use clearlane_simulator::scenario::Scenario;
use clearlane_simulator::server::Build;
use clearlane_simulator::validation::{LatencyComparison, METRICS, Validation};
use serde_json::{Value, json};

use crate::control::{Control, Pace};
use crate::progress::Progress;
use crate::real::noise::{DiskStalls, Noise, ProcessorTime, RetryBudget};
use crate::real::{Program, Server, arguments, cores, machine};
use crate::scenario_arguments::{calibration, costs, text};
use crate::text::{print_line, print_progress};

/// What runs before anything counts.
const WARM_UP: Duration = Duration::from_secs(3);

pub(crate) fn command() -> Command {
    let era = |name: &str| name.parse::<Era>().map_err(|error| error.to_string());
    Command::new("validate")
        .about(
            "Runs scenarios on the real server and in the model, and says how far they are apart",
        )
        .arg(
            Arg::new("scenarios")
                .value_name("SCENARIO")
                .required(true)
                .num_args(1..)
                .help("Names of those that ship, or files; they must fit this machine"),
        )
        .arg(
            Arg::new("era")
                .long("era")
                .value_name("ERA,...")
                .value_delimiter(',')
                .default_values(["3.2", "3.4", "clearlane"])
                .value_parser(era)
                .help("Which read paths"),
        )
        .arg(
            Arg::new("runs")
                .long("runs")
                .value_name("N")
                .default_value("5")
                .value_parser(value_parser!(u64).range(1..=100))
                .help("So many of each, eras in turn; medians count"),
        )
        .arg(
            Arg::new("seconds")
                .long("seconds")
                .value_name("N")
                .value_parser(value_parser!(u64).range(1..=86_400))
                .help("Instead of what the scenario says"),
        )
        .arg(costs())
        .args(arguments())
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("For programs"))
}

pub(crate) fn done(matches: &ArgMatches) -> Result<(), String> {
    let program = Program::of(matches)?;
    let calibration = calibration(matches)?;
    let wanted = matches.get_many::<Era>("era").expect("it has a default");
    let mut eras = Vec::new();
    for era in wanted.copied() {
        if !eras.contains(&era) {
            eras.push(era);
        }
    }
    if calibration.machine != machine() {
        let (theirs, ours) = (&calibration.machine, machine());
        print_progress(&format!(
            "the costs are of {theirs}, and this is {ours}: `calibrate` measures them here"
        ));
    }
    let runs = *matches.get_one::<u64>("runs").expect("it has a default");
    let names = matches.get_many::<String>("scenarios").expect("it is required");
    let mut scenarios = Vec::new();
    for name in names {
        let of = |error: &dyn std::fmt::Display| format!("{name}: {error}");
        let mut scenario = Scenario::parse(&text(name)?).map_err(|error| of(&error))?;
        if let Some(seconds) = matches.get_one("seconds") {
            scenario.workload.seconds = *seconds;
        }
        fits(&scenario).map_err(|error| of(&error))?;
        scenario.cores = cores();
        scenarios.push((name, scenario));
    }
    let (mut all, mut patience) = (serde_json::Map::new(), RetryBudget::new(program.retry_budget));
    for (name, scenario) in scenarios {
        let of = |error: String| format!("{name}: {error}");
        let trial = Trial { name, scenario: &scenario, calibration: &calibration, runs };
        let (found, machine) = trial.run(&program, &eras, &mut patience).map_err(of)?;
        let noise = machine.noise;
        if !noise.is_little() {
            print_progress(&format!("{name}: {noise}; the real runs are those of a busy machine"));
        }
        match matches.get_flag("json") {
            true => {
                let mut json = found.json();
                json["stolen"] = json!(noise.stolen);
                json["drift"] = json!(noise.drift);
                json["stood_ms"] = json!(noise.stood_ms);
                json["pace"] = machine.json();
                json["stalls"] = machine.stalls();
                all.insert(name.clone(), json);
            }
            false => print_line(&format!("{name}\n{}{machine}\n\n", found.table()))?,
        }
    }
    if matches.get_flag("json") {
        let all = json!({ "machine": machine(), "calibrated_on": calibration.machine, "scenarios": Value::Object(all) });
        print_line(&format!("{all:#}\n"))?;
    }
    Ok(())
}

/// The real server runs here, as the only member and beside its clients. A scenario that is about
/// another machine cannot.
fn fits(scenario: &Scenario) -> Result<(), String> {
    let (model, here) = (&scenario.model, Model::default());
    // Two is what a file has that says nothing of them.
    let has_cores = [2, cores()].contains(&scenario.cores);
    match *model == here && scenario.quantum_ns.is_none() && has_cores {
        true => Ok(()),
        false => Err("its table [model] describes other machines than this one; validate takes those without, \
             which run on what there is"
            .to_owned()),
    }
}

struct Trial<'t> {
    name: &'t str,
    scenario: &'t Scenario,
    calibration: &'t Calibration,
    runs: u64,
}

/// A server of an era, and what shows what the machine is like beside it.
struct Bench {
    era: Era,
    server: Server,
    control: Control,
}

/// What the real server has shown once, and what the model is told of the machine meanwhile.
struct RealRun {
    report: Report,
    pace: Pace,
    stalls: Option<Stalls>,
}

impl Trial<'_> {
    /// Eras take turns, so that what the machine does beside it meets all of them.
    fn run(
        &self,
        program: &Program,
        eras: &[Era],
        patience: &mut RetryBudget,
    ) -> Result<(Validation, Machine), String> {
        let mut progress = Progress::of(self.name);
        // Before anything takes long: it may be more than the machine can do.
        for era in eras {
            self.predicted(*era, 1, Pace::SAME, None).map_err(of(*era))?;
        }
        let start = |era: &Era| self.bench(program, *era).map_err(of(*era));
        let benches = eras.iter().map(start).collect::<Result<Vec<_>, _>>()?;
        let (mut found, mut noise) = (Validation::default(), Noise::default());
        let (mut paces, mut stood) = (Vec::new(), Vec::new());
        for seed in 1..=self.runs {
            let mut turn = Vec::new();
            for bench in &benches {
                let once = || self.once(bench, seed);
                let (seen, disturbed) = patience.least_noisy(once).map_err(of(bench.era))?;
                noise += disturbed;
                turn.push(seen);
                let done = (seed - 1) * eras.len() as u64 + turn.len() as u64;
                progress.say(done as f64 / (self.runs * eras.len() as u64) as f64);
            }
            // One for all eras, but for the disk, which is another one in each run: what would be
            // an error of the model for one of them must not pass for the machine.
            let pace = Pace::middle(&turn.iter().map(|run| run.pace).collect::<Vec<_>>());
            for (era, RealRun { report, stalls, .. }) in eras.iter().zip(&turn) {
                let model = self.predicted(*era, seed, pace, *stalls).map_err(of(*era))?;
                add(&mut found, *era, report, &model);
                stood.extend(stalls.map(|stalls| (*era, seed, stalls)));
            }
            paces.push(pace);
        }
        Ok((found, Machine { noise, paces, stood }))
    }

    fn bench(&self, program: &Program, era: Era) -> Result<Bench, String> {
        let server = Server::start(program, era)?;
        server.fill(&self.scenario.workload.space, "the keys")?;
        let control = Control::new(Build::new(era, self.calibration.costs(era)), self.scenario);
        Ok(Bench { era, server, control })
    }

    /// One run on the real server, and the pace of the machine around it. That the driver is late
    /// beside a long answer is part of what is compared.
    fn once(&self, bench: &Bench, seed: u64) -> Result<(RealRun, Noise), String> {
        let Bench { server, control, .. } = bench;
        let before = control.small(server, seed)?;
        let (page, lent) = (server.metrics()?, ProcessorTime::read()?);
        // A server that has been standing by is slower at first.
        let report = server.load(&self.scenario.workload, seed, WARM_UP)?;
        let stolen = ProcessorTime::read()?.stolen_since(lent);
        let stood = DiskStalls::between(&page, &server.metrics()?);
        let apart = WARM_UP + Duration::from_secs(self.scenario.workload.seconds);
        let stalls = stood.map(|stood| stood.stalls(apart));
        let stood_ms = stood.map_or(0.0, |stood| stood.longest_ms);
        let (after, long_ms) = (control.small(server, seed)?, control.long(server, seed)?);
        let drift = (after.read_ms / before.read_ms - 1.0).abs();
        let pace = control.pace(before.between(after), long_ms)?;
        Ok((RealRun { report, pace, stalls }, Noise { stolen, late_ms: 0.0, drift, stood_ms }))
    }

    fn predicted(
        &self,
        era: Era,
        seed: u64,
        pace: Pace,
        stalls: Option<Stalls>,
    ) -> Result<Results, String> {
        let build = Build::new(era, pace.costs(&self.calibration.costs(era)));
        let mut scenario = Scenario { seed, ..self.scenario.clone() };
        scenario.model.stalls = stalls.unwrap_or(scenario.model.stalls);
        run(&scenario, &build).map_err(|error| error.to_string())
    }
}

fn of(era: Era) -> impl Fn(String) -> String {
    move |error| format!("era {era}: {error}")
}

/// What the machine was like while real servers ran.
struct Machine {
    noise: Noise,
    /// In each turn of the eras; at least one.
    paces: Vec<Pace>,
    /// In each run in which the disk stood still: the era, and the seed.
    stood: Vec<(Era, u64, Stalls)>,
}

impl Machine {
    /// By the names of its parts.
    fn json(&self) -> Value {
        let of = |by: fn(&Pace) -> Option<f64>| self.paces.iter().map(by).collect::<Vec<_>>();
        json!({
            "woken_in": of(|pace| Some(pace.woken_in)),
            "written_in": of(|pace| Some(pace.written_in)),
            "read_in": of(|pace| pace.read_in),
        })
    }

    /// How often the model's disk stood still, and for how long.
    fn stalls(&self) -> Value {
        let stalls = self.stood.iter().map(|(era, seed, Stalls { every_ns, length_ns })| {
            let (every_s, ms) = (*every_ns as f64 / 1e9, *length_ns as f64 / 1e6);
            json!({ "era": era.name(), "seed": seed, "every_s": every_s, "ms": ms })
        });
        stalls.collect()
    }

    /// The least and the most, if it is known.
    fn bounds(&self, of: fn(&Pace) -> Option<f64>) -> Option<String> {
        let all = || self.paces.iter().filter_map(of);
        let (low, high) = (all().reduce(f64::min)?, all().reduce(f64::max)?);
        Some(format!("{low:.2} to {high:.2}"))
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "while it ran for real, {}; as many times as when costs were measured, which the model was told, ",
            self.noise
        )?;
        let woken = self.bounds(|pace| Some(pace.woken_in)).unwrap_or_default();
        let written = self.bounds(|pace| Some(pace.written_in)).unwrap_or_default();
        write!(f, "threads took {woken} to wake, and puts {written} beside them")?;
        if let Some(read) = self.bounds(|pace| pace.read_in) {
            write!(f, ", and long reads that are alone took {read}")?;
        }
        match self.stood.len() {
            0 => Ok(()),
            runs => write!(
                f,
                "; in {runs} of the runs the model's disk stood still as often as the log's did, and for as long, on average"
            ),
        }
    }
}

/// One more run of the one and of the other.
fn add(found: &mut Validation, era: Era, real: &Report, model: &Results) {
    for (line, class) in real.classes.iter().zip(&model.classes) {
        for (metric, (_, quantile, _)) in METRICS.into_iter().enumerate() {
            let times = line.metrics.latency_ms(quantile).zip(class.latency_ms(quantile));
            let Some((real_ms, model_ms)) = times else { continue };
            let is_it = |figure: &&mut LatencyComparison| {
                figure.era == era && figure.class == class.name && figure.metric == metric
            };
            match found.comparisons.iter_mut().find(is_it) {
                Some(figure) => {
                    figure.real_ms.push(real_ms);
                    figure.model_ms.push(model_ms);
                }
                None => found.comparisons.push(LatencyComparison {
                    era,
                    class: class.name.clone(),
                    metric,
                    real_ms: vec![real_ms],
                    model_ms: vec![model_ms],
                }),
            }
        }
    }
}
