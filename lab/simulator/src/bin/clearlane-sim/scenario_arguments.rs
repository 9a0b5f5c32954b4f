//! Arguments of several subcommands: a scenario, its changes, and the eras.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use clearlane_simulator::cost_file::CostFile;
use clearlane_simulator::era::Era;
use clearlane_simulator::recorder::Recorded;
use clearlane_simulator::results::Results;
use clearlane_simulator::run::{RunError, check, run_each, run_each_and_record};
use clearlane_simulator::scenario::Scenario;
use clearlane_simulator::server::Build;
use clearlane_simulator::shipped::Shipped;
use clearlane_simulator::timeline::TimelineHeader;

use crate::text::{path_flag, read};

#[derive(Debug)]
pub(crate) struct ScenarioArguments {
    /// The scenario's name or file, for error messages and titles.
    pub(crate) name: String,
    pub(crate) scenario: Scenario,
    pub(crate) eras: Vec<Era>,
    pub(crate) as_json: bool,
    pub(crate) cost_file: CostFile,
}

/// Returns the argument for several eras, separated by commas.
pub(crate) fn era_argument(by_default: &[Era]) -> Arg {
    Arg::new("era")
        .long("era")
        .value_name("ERA,...")
        .value_delimiter(',')
        .default_values(by_default.iter().map(|era| era.name()))
        .value_parser(|name: &str| name.parse::<Era>())
}

/// Adds the arguments that [`ScenarioArguments::of`] reads.
pub(crate) fn with_scenario(command: Command, eras: &[Era]) -> Command {
    let number = |name: &'static str| Arg::new(name).long(name).value_name("N");
    command.args([
        Arg::new("scenario")
            .value_name("SCENARIO")
            .required(true)
            .help("A scenario that `list` shows, or a file"),
        era_argument(eras).help("Eras of the read path"),
        Arg::new("set")
            .long("set")
            .value_name("NAME=VALUE")
            .action(ArgAction::Append)
            .help("Changes a field of the scenario, such as cheap.rate=200; may be repeated"),
        number("cores")
            .value_parser(value_parser!(u16).range(1..=1024))
            .help("Cores of the machine that server and client share"),
        number("seed").value_parser(value_parser!(u64)).help("Seed for times and sizes"),
        number("seconds")
            .value_parser(value_parser!(u64).range(1..=86_400))
            .help("Length of the run, instead of the length in the scenario"),
        path_flag("costs", "FILE")
            .help("Costs that `measure` has written (default: shipped costs of one machine)"),
        Arg::new("json").long("json").action(ArgAction::SetTrue).help("Prints JSON"),
    ])
}

impl ScenarioArguments {
    pub(crate) fn of(matches: &ArgMatches) -> Result<ScenarioArguments, String> {
        let name: &String = matches.get_one("scenario").expect("it is required");
        let of = |error: clearlane_loadgen::Error| format!("{name}: {error}");
        let mut scenario = Scenario::parse(&text(name)?).map_err(of)?;
        if let Some(seconds) = matches.get_one::<u64>("seconds") {
            scenario.workload.seconds = *seconds;
        }
        if let Some(cores) = matches.get_one::<u16>("cores") {
            scenario.cores = usize::from(*cores);
        }
        if let Some(seed) = matches.get_one("seed") {
            scenario.seed = *seed;
        }
        for setting in matches.get_many::<String>("set").unwrap_or_default() {
            let (name, value) = setting.split_once('=').ok_or_else(|| {
                format!("--set {setting}: must be NAME=VALUE, such as cheap.rate=200")
            })?;
            let of = |error| format!("--set {setting}: {error}");
            scenario.set(name.trim(), value.trim()).map_err(of)?;
        }
        scenario.check().map_err(of)?;
        let eras = matches.get_many("era").expect("it has a default").copied().collect();
        let as_json = matches.get_flag("json");
        let cost_file = match matches.get_one::<PathBuf>("costs") {
            None => CostFile::shipped(),
            Some(path) => CostFile::parse(&read(path)?)
                .map_err(|error| format!("{}: {error}", path.display()))?,
        };
        Ok(ScenarioArguments { name: name.clone(), scenario, eras, as_json, cost_file })
    }

    /// Runs the scenario in all eras. Fails before the first run if the scenario cannot run in one
    /// of the eras.
    pub(crate) fn run(&self) -> Result<Vec<Results>, String> {
        let of = |era: Era| move |error: RunError| self.wrong_in(era, error);
        for era in &self.eras {
            check(&self.scenario, &self.build(*era)).map_err(of(*era))?;
        }
        let builds: Vec<Build> = self.eras.iter().map(|era| self.build(*era)).collect();
        let runs: Vec<_> = builds.iter().map(|build| (&self.scenario, build)).collect();
        let outcomes = match self.scenario.recorded {
            Recorded::LongestWait => run_each_and_record(&runs),
            Recorded::Nothing | Recorded::Window(..) => run_each(&runs),
        };
        self.eras.iter().zip(outcomes).map(|(era, outcome)| outcome.map_err(of(*era))).collect()
    }

    /// Returns the scenario's name. For a file, this is its name without folders and ending.
    pub(crate) fn title(&self) -> String {
        let name = Path::new(&self.name).file_stem().unwrap_or(self.name.as_ref());
        name.to_string_lossy().into_owned()
    }

    /// Describes the run. The text is printed above the tables.
    pub(crate) fn heading(&self) -> String {
        let Scenario { workload, cores, seed, model, .. } = &self.scenario;
        let members = match model.members + model.learners {
            1 => String::new(),
            count => format!(" each of {count} members"),
        };
        format!(
            "scenario {}: {cores} cores{members}, seed {seed}, {} s of requests\n",
            self.title(),
            workload.seconds
        )
    }

    /// Returns the header for the file of a timeline.
    pub(crate) fn timeline_header(&self, recorded: &str, era: Era) -> TimelineHeader {
        TimelineHeader {
            recorded: recorded.to_owned(),
            scenario: Some(self.title()),
            era: Some(era.to_string()),
            details: Some(format!("{} cores, seed {}", self.scenario.cores, self.scenario.seed)),
        }
    }

    fn build(&self, era: Era) -> Build {
        Build::new(era, self.cost_file.costs(era))
    }

    pub(crate) fn wrong(&self, what: impl Display) -> String {
        format!("{}: {what}", self.name)
    }

    pub(crate) fn wrong_in(&self, era: Era, what: impl Display) -> String {
        self.wrong(format_args!("era {era}: {what}"))
    }
}

/// Returns the text of a shipped scenario or of a file. If there is a file with the name of a
/// shipped scenario, returns the text of the file.
fn text(name: &str) -> Result<String, String> {
    let path = PathBuf::from(name);
    match Shipped::find(name) {
        Some(shipped) if !path.is_file() => Ok(shipped.text.to_owned()),
        None if !path.exists() && looks_like_a_name(&path) => {
            let names = Shipped::all().map(|shipped| shipped.name).collect::<Vec<_>>().join(", ");
            Err(format!("{name}: no file or shipped scenario has this name; known are {names}"))
        }
        _ => read(&path),
    }
}

fn looks_like_a_name(path: &Path) -> bool {
    path.extension().is_none() && path.components().count() == 1
}
