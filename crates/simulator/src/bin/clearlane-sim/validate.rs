//! `validate`: the same loads in the model and on the real server, and how far they are apart.

use std::fmt;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use clearlane_load::report::Report;
use clearlane_load::workload::Workload;
use clearlane_simulator::calibration::Calibration;
use clearlane_simulator::era::Era;
use clearlane_simulator::model::Model;
use clearlane_simulator::results::Results;
use clearlane_simulator::run::run;
use clearlane_simulator::scenario::Scenario;
use clearlane_simulator::server::Build;
use clearlane_simulator::validation::{Figure, METRICS, Validation};
use serde_json::{Value, json};

use crate::asked::{calibration, costs, text};
use crate::progress::Progress;
use crate::real::noise::{Lent, Noise, Patience};
use crate::real::{Program, Server, arguments, cores, machine};
use crate::text::{say, tell};

/// What runs before anything counts.
const WARM_UP: Duration = Duration::from_secs(3);

/// What shows whether the machine is as it was.
const CONTROL: &str = "seconds = 1\n[keys]\ncount = 1\nsize = 64\nvalue = 64\n[[class]]\nname = \"control\"\n\
    operation = \"range\"\nrate = 150\narrivals = \"poisson\"\nconsistency = \"serializable\"\n";
/// Enough of it for a median.
const CONTROL_SECONDS: u64 = 2;

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
        tell(&format!(
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
    let (mut all, mut patience) = (serde_json::Map::new(), Patience::new(program.patience));
    for (name, scenario) in scenarios {
        let of = |error: String| format!("{name}: {error}");
        let trial = Trial { name, scenario: &scenario, calibration: &calibration, runs };
        let (found, machine) = trial.run(&program, &eras, &mut patience).map_err(of)?;
        let noise = machine.noise;
        if !noise.is_little() {
            tell(&format!("{name}: {noise}; the real runs are those of a busy machine"));
        }
        match matches.get_flag("json") {
            true => {
                let mut json = found.json();
                json["stolen"] = json!(noise.stolen);
                json["drift"] = json!(noise.drift);
                json["woken_in"] = json!(machine.woken);
                all.insert(name.clone(), json);
            }
            false => say(&format!("{name}\n{}{machine}\n\n", found.table()))?,
        }
    }
    if matches.get_flag("json") {
        let all = json!({ "machine": machine(), "calibrated_on": calibration.machine, "scenarios": Value::Object(all) });
        say(&format!("{all:#}\n"))?;
    }
    Ok(())
}

/// The real server runs here, as the only member and beside its clients. A scenario that is about another machine cannot.
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

impl Trial<'_> {
    /// Eras take turns, so that what the machine does beside it meets all of them.
    fn run(
        &self,
        program: &Program,
        eras: &[Era],
        patience: &mut Patience,
    ) -> Result<(Validation, Machine), String> {
        let mut progress = Progress::of(self.name);
        // Before anything takes long: it may be more than the machine can do.
        for era in eras {
            self.predicted(*era, 1, 1.0).map_err(|error| format!("era {era}: {error}"))?;
        }
        let mut servers = Vec::new();
        for era in eras {
            let of = |error: String| format!("era {era}: {error}");
            let server = Server::start(program, *era).map_err(of)?;
            server.fill(&self.scenario.workload.space, "the keys").map_err(of)?;
            servers.push((*era, server, self.control(*era).map_err(of)?));
        }
        let (mut found, mut worst) = (Validation::default(), Noise::default());
        let mut woken = Vec::new();
        for seed in 1..=self.runs {
            for (number, (era, server, control)) in servers.iter().enumerate() {
                let of = |error: String| format!("era {era}: {error}");
                let once = || self.once(server, control, seed);
                let ((real, times), noise) = patience.calmest(once).map_err(of)?;
                worst += noise;
                woken.push(times);
                let model = self.predicted(*era, seed, times).map_err(of)?;
                add(&mut found, *era, &real, &model);
                let done = (seed - 1) * eras.len() as u64 + number as u64 + 1;
                progress.say(done as f64 / (self.runs * eras.len() as u64) as f64);
            }
        }
        Ok((found, Machine { noise: worst, woken }))
    }

    /// One run on the real server, and how long threads took to wake before and after it, by what the costs say. That the
    /// driver is late beside a long answer is part of what is compared.
    fn once(
        &self,
        server: &Server,
        control: &Control,
        seed: u64,
    ) -> Result<((Report, f64), Noise), String> {
        let workload = &self.scenario.workload;
        let before = control.read_ms(server, seed)?;
        let lent = Lent::look()?;
        // Who has been standing by is slower at first.
        let report = server.load(workload, seed, WARM_UP)?;
        let stolen = Lent::look()?.stolen_since(lent);
        let after = control.read_ms(server, seed)?;
        let drift = (after / before - 1.0).abs();
        let times = control.woken_in((before + after) / 2.0);
        Ok(((report, times), Noise { stolen, late_ms: 0.0, drift }))
    }

    fn predicted(&self, era: Era, seed: u64, woken_in: f64) -> Result<Results, String> {
        self.in_the_model(era, &Scenario { seed, ..self.scenario.clone() }, woken_in)
    }

    fn in_the_model(
        &self,
        era: Era,
        scenario: &Scenario,
        woken_in: f64,
    ) -> Result<Results, String> {
        let build = Build::new(era, self.calibration.costs(era).woken_in(woken_in));
        run(scenario, &build).map_err(|error| error.to_string())
    }

    /// Reads of one key, which come as seldom as those that a calibration takes for how long threads need to wake.
    fn control(&self, era: Era) -> Result<Control, String> {
        let classes = Workload::parse(CONTROL).map_err(|error| error.to_string())?.classes;
        let seconds = CONTROL_SECONDS;
        let workload = Workload { classes, seconds, ..self.scenario.workload.clone() };
        let scenario = Scenario { workload: workload.clone(), ..self.scenario.clone() };
        let median_ms = |woken_in| {
            let results = self.in_the_model(era, &scenario, woken_in)?;
            results.classes[0].latency_ms(0.5).ok_or("no answer in the model".to_owned())
        };
        let (awake_ms, median_ms) = (median_ms(0.0)?, median_ms(1.0)?);
        Ok(Control { workload, awake_ms, median_ms })
    }
}

/// A load whose latency the costs were made from: most of it is waiting for threads to wake, and if it takes another time
/// now, so do they.
struct Control {
    workload: Workload,
    /// By the costs, if nobody had to be woken.
    awake_ms: f64,
    /// By the costs.
    median_ms: f64,
}

impl Control {
    /// How long it takes now.
    fn read_ms(&self, server: &Server, seed: u64) -> Result<f64, String> {
        let report = server.load(&self.workload, seed, Duration::ZERO)?;
        Ok(report.lines[0].tally.latency_ms(0.5).ok_or("no answer came")?)
    }

    /// How many times as long as the costs say threads take to wake, if it takes so long.
    fn woken_in(&self, read_ms: f64) -> f64 {
        let by_the_costs_ms = self.median_ms - self.awake_ms;
        match by_the_costs_ms > 0.0 {
            true => ((read_ms - self.awake_ms) / by_the_costs_ms).max(0.0),
            false => 1.0,
        }
    }
}

/// What the machine was like while real servers ran.
struct Machine {
    noise: Noise,
    /// In each run: how many times as long as the costs say threads took to wake.
    woken: Vec<f64>,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bounds = |(low, high): (f64, f64), times: &f64| (low.min(*times), high.max(*times));
        let (low, high) = self.woken.iter().fold((f64::INFINITY, 0.0), bounds);
        write!(
            f,
            "while it ran for real, {}; threads took {low:.2} to {high:.2} times as long to wake as when costs were \
             measured, which the model was told",
            self.noise
        )
    }
}

/// One more run of the one and of the other.
fn add(found: &mut Validation, era: Era, real: &Report, model: &Results) {
    for (line, class) in real.lines.iter().zip(&model.classes) {
        for (metric, (_, quantile, _)) in METRICS.into_iter().enumerate() {
            let times = line.tally.latency_ms(quantile).zip(class.latency_ms(quantile));
            let Some((real_ms, model_ms)) = times else { continue };
            let is_it = |figure: &&mut Figure| {
                figure.era == era && figure.class == class.name && figure.metric == metric
            };
            match found.figures.iter_mut().find(is_it) {
                Some(figure) => {
                    figure.real_ms.push(real_ms);
                    figure.model_ms.push(model_ms);
                }
                None => found.figures.push(Figure {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_small_read_takes_beyond_computing_is_waking() {
        let workload = Workload::parse(CONTROL).unwrap();
        let control = Control { workload, awake_ms: 0.2, median_ms: 0.5 };
        let times = |read_ms| (control.woken_in(read_ms) * 100.0).round() / 100.0;
        assert_eq!([0.5, 0.8, 0.35, 0.2, 0.1].map(times), [1.0, 2.0, 0.5, 0.0, 0.0]);
        // By hand, nobody has to be woken.
        assert_eq!(Control { awake_ms: 0.2, median_ms: 0.2, ..control }.woken_in(0.4), 1.0);
    }
}
