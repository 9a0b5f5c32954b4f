//! The arguments of `clearlane-load experiment`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};

use super::Experiment;
use crate::arguments::quoted;
use crate::named::Named;
use crate::servers::{ERAS, era_of_version};
use crate::within::within;

/// The value of `--era` that excludes Clearlane's server from the experiments.
pub(super) const NO_ERA: &str = "none";

#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct ExperimentArguments {
    /// The name of an experiment; `all` runs all experiments, and `list` lists their names
    #[arg(value_name = "NAME|all|list")]
    pub selection: Selection,
    /// The duration and the size of the experiment
    #[arg(long, value_enum, default_value_t = Scale::Small)]
    pub scale: Scale,
    /// The directory for the reports
    #[arg(long, value_name = "DIR", default_value = "experiments")]
    pub out: PathBuf,
    /// An era of Clearlane, instead of the experiment's own eras, or `none`; may be repeated
    #[arg(long, value_name = "ERA", value_parser = era)]
    pub era: Vec<String>,
    /// The program of etcd's server, which is also measured
    #[arg(long, value_name = "BINARY")]
    pub etcd: Option<PathBuf>,
    /// Addresses of a running cluster, which is also measured: its keys below /experiment/ are
    /// overwritten and deleted
    #[arg(long, value_name = "URL,...", value_delimiter = ',')]
    pub endpoints: Vec<String>,
    /// The program of Clearlane's server; by default in the directory of this program
    #[arg(long, value_name = "BINARY")]
    pub clearlane: Option<PathBuf>,
    /// A running Redis server, for the experiment redis; its keys experiment:... are overwritten
    #[arg(long, value_name = "HOST:PORT")]
    pub redis: Option<String>,
    /// Number of rounds, in which the servers take turns: figures are medians (by default 1 at
    /// scale small and 5 at scale full)
    #[arg(long, value_name = "N", value_parser = within(1..=100))]
    pub rounds: Option<u64>,
    /// Number of keys in each expensive read (by default a number that holds a lock for 100 ms,
    /// measured before the load)
    #[arg(long, value_name = "N", value_parser = within(100..=10_000_000))]
    pub keys: Option<u64>,
    /// Seed of random times, keys and values; the same seed repeats them
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scale {
    /// a few seconds for each run, for a first look
    Small,
    /// the published size, as far as two cores allow
    Full,
}

impl Named for Scale {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    All,
    List,
    One(&'static Experiment),
}

impl ExperimentArguments {
    /// Returns the command that repeats one of the experiments.
    pub(super) fn command(&self, experiment: &str) -> String {
        let mut command =
            format!("clearlane-load experiment {experiment} --scale {}", self.scale.name());
        let mut add = |name: &str, value: &str| {
            command.push_str(&format!(" --{name} {}", quoted(value)));
        };
        self.era.iter().for_each(|era| add("era", era));
        if !self.endpoints.is_empty() {
            add("endpoints", &self.endpoints.join(","));
        }
        for (name, path) in [("etcd", &self.etcd), ("clearlane", &self.clearlane)] {
            path.iter().for_each(|path| add(name, &path.display().to_string()));
        }
        self.redis.iter().for_each(|redis| add("redis", redis));
        self.rounds.iter().for_each(|rounds| add("rounds", &rounds.to_string()));
        self.keys.iter().for_each(|keys| add("keys", &keys.to_string()));
        if self.seed != 1 {
            add("seed", &self.seed.to_string());
        }
        command
    }
}

impl FromStr for Selection {
    type Err = String;

    fn from_str(text: &str) -> Result<Selection, String> {
        match text {
            "all" => Ok(Selection::All),
            "list" => Ok(Selection::List),
            name => Experiment::named(name).map(Selection::One).ok_or_else(|| {
                let names = Experiment::all().iter().map(|experiment| experiment.name.as_str());
                let names = names.collect::<Vec<_>>().join(", ");
                format!("unknown experiment; known are all, list, {names}")
            }),
        }
    }
}

fn era(text: &str) -> Result<String, String> {
    if text == NO_ERA {
        return Ok(text.to_owned());
    }
    if let Some(era) = era_of_version(text) {
        return Ok(era.to_owned());
    }
    Err(format!("unknown era; known are {} and {NO_ERA}", ERAS.join(", ")))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: ExperimentArguments,
    }

    fn parsed(line: &str) -> Result<ExperimentArguments, String> {
        let words = ["experiment"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn lists_of_eras_and_endpoints_are_taken() {
        const REORDERED: &str =
            "redis --scale full --era 3.2 --era none --endpoints a:1,b:2 --rounds 3 --keys 500";
        let line =
            "redis --era 3.2 --era none --endpoints a:1,b:2 --scale full --keys 500 --rounds 3";
        let arguments = parsed(line).expect("it is right");
        assert_eq!((arguments.era.len(), arguments.endpoints.len()), (2, 2));
        assert_eq!((arguments.scale, arguments.rounds, arguments.seed), (Scale::Full, Some(3), 1));
        let again = arguments.command("redis");
        assert_eq!(again, format!("clearlane-load experiment {}", REORDERED));
        assert_eq!(quoted("a b'c"), r"'a b'\''c'");
    }

    #[test]
    fn what_cannot_be_meant_is_told() {
        for (line, told) in [
            ("", "<NAME|all|list>"),
            ("fly", "unknown experiment; known are all, list, expensive-reads, "),
            ("all --era 3.9", "unknown era; known are 3.0, 3.1, 3.2, 3.4, 3.5, clearlane"),
        ] {
            let error = parsed(line).expect_err(line);
            assert!(error.contains(told), "{line}: {error}");
        }
    }
}
