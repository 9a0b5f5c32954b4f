//! The command line.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subcommand {
    Fill {
        workload: PathBuf,
        options: FillOptions,
    },
    /// Keys outside of any workload, for a store of a given size.
    Keys {
        count: u64,
        /// In bytes.
        key_size: u64,
        /// In bytes.
        value_size: u64,
        options: FillOptions,
    },
    Run {
        workload: PathBuf,
        endpoint: String,
        /// Classes to leave out.
        without: Vec<String>,
        /// Replaces the workload's.
        seconds: Option<u64>,
        /// In seconds; requests in it are not counted.
        warm_up: u64,
        /// For arrivals and keys.
        seed: u64,
        /// Where the report is written as JSON, too.
        json: Option<PathBuf>,
        /// The server's process, whose use of the machine is reported.
        pid: Option<u32>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FillOptions {
    pub endpoint: String,
    pub connections: u64,
    /// For values and their sizes.
    pub seed: u64,
}

/// The first argument is the program. The error may be a request for help.
pub fn parse(
    arguments: impl IntoIterator<Item = impl Into<std::ffi::OsString> + Clone>,
) -> Result<Subcommand, clap::Error> {
    let matches = command().try_get_matches_from(arguments)?;
    let (name, matches) = matches.subcommand().expect("clap asks for one");
    let whole = |name| *matches.get_one::<u64>(name).expect("it is required or has a default");
    Ok(match name {
        "fill" => Subcommand::Fill { workload: path(matches, "workload"), options: how(matches) },
        "keys" => Subcommand::Keys {
            count: whole("count"),
            key_size: whole("key-size"),
            value_size: whole("value-size"),
            options: how(matches),
        },
        _ => Subcommand::Run {
            workload: path(matches, "workload"),
            endpoint: endpoint(matches),
            without: matches.get_many("without").unwrap_or_default().cloned().collect(),
            seconds: matches.get_one("seconds").copied(),
            warm_up: whole("warm-up"),
            seed: whole("seed"),
            json: matches.get_one("json").cloned(),
            pid: matches.get_one("pid").copied(),
        },
    })
}

fn path(matches: &ArgMatches, name: &str) -> PathBuf {
    matches.get_one::<PathBuf>(name).cloned().expect("it is required")
}

fn endpoint(matches: &ArgMatches) -> String {
    matches.get_one::<String>("endpoint").cloned().expect("it has a default")
}

fn how(matches: &ArgMatches) -> FillOptions {
    let whole = |name| *matches.get_one::<u64>(name).expect("it has a default");
    FillOptions {
        endpoint: endpoint(matches),
        connections: whole("connections"),
        seed: whole("seed"),
    }
}

fn command() -> Command {
    let about = "Requests at their own times, to any server of etcd's API";
    let filling = |command: Command| {
        let connections = option("connections", "N", "Connections to put over");
        let connections = connections.value_parser(value_parser!(u64).range(1..=1000));
        command.args([server(), seed(), connections.default_value("4")])
    };
    let fill = Command::new("fill").about("Puts the keys of a workload").arg(workload());
    let keys =
        Command::new("keys").about("Puts some number of keys, for measurements of a restart");
    let keys = keys.args(
        [
            ("count", "How many"),
            ("key-size", "Bytes of each key"),
            ("value-size", "Bytes of each value"),
        ]
        .map(|(name, help)| {
            option(name, "N", help).value_parser(value_parser!(u64)).required(true)
        }),
    );
    let run = Command::new("run").about("Runs a workload, and tells what its requests met");
    let run = run.args([workload(), server(), seed()]).args([
        option("without", "CLASS", "Leaves a class out; may be repeated").action(ArgAction::Append),
        option("seconds", "N", "Instead of what the workload says")
            .value_parser(value_parser!(u64).range(1..=86_400)),
        option("warm-up", "N", "So many seconds of the same load before, which are not counted")
            .value_parser(value_parser!(u64).range(0..=3600))
            .default_value("0"),
        option("json", "FILE", "Writes the figures there, too")
            .value_parser(value_parser!(PathBuf)),
        option("pid", "PID", "Tells what this process used meanwhile, as Linux says")
            .value_parser(value_parser!(u32)),
    ]);
    Command::new("clearlane-load")
        .about(about)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([filling(fill), filling(keys), run])
}

fn option(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

fn workload() -> Arg {
    let help = "A file, as in crates/loadgen/workloads";
    Arg::new("workload")
        .value_name("WORKLOAD")
        .help(help)
        .required(true)
        .value_parser(value_parser!(PathBuf))
}

fn server() -> Arg {
    let help = "The server's address for clients, without TLS";
    option("endpoint", "ADDRESS", help).default_value("http://127.0.0.1:2379")
}

fn seed() -> Arg {
    let help = "Repeats times, keys and values";
    option("seed", "N", help).value_parser(value_parser!(u64)).default_value("1")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Subcommand, String> {
        parse(line.split_whitespace()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_table_of_arguments_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let endpoint = "http://127.0.0.1:2379".to_owned();
        let how = FillOptions { endpoint: endpoint.clone(), connections: 4, seed: 1 };
        let workload = PathBuf::from("a.toml");
        let fill = Subcommand::Fill { workload: workload.clone(), options: how };
        assert_eq!(parsed("clearlane-load fill a.toml"), Ok(fill));
        let (without, seconds, seed, json, pid) = (Vec::new(), None, 1, None, None);
        let warm_up = 0;
        let run =
            Subcommand::Run { workload, endpoint, without, seconds, warm_up, seed, json, pid };
        assert_eq!(parsed("clearlane-load run a.toml"), Ok(run));
    }

    #[test]
    fn everything_can_be_said() {
        let line = "clearlane-load run a.toml --endpoint b:1 --without c --without d --seconds 5 \
                    --warm-up 2 --seed 9 --json e.json --pid 7";
        let run = Subcommand::Run {
            workload: PathBuf::from("a.toml"),
            endpoint: "b:1".to_owned(),
            without: vec!["c".to_owned(), "d".to_owned()],
            seconds: Some(5),
            warm_up: 2,
            seed: 9,
            json: Some(PathBuf::from("e.json")),
            pid: Some(7),
        };
        assert_eq!(parsed(line), Ok(run));
        let line = "clearlane-load keys --count 10 --key-size 32 --value-size 64 --endpoint b:1 \
                    --connections 2 --seed 3";
        let how = FillOptions { endpoint: "b:1".to_owned(), connections: 2, seed: 3 };
        let keys = Subcommand::Keys { count: 10, key_size: 32, value_size: 64, options: how };
        assert_eq!(parsed(line), Ok(keys));
    }

    #[test]
    fn what_cannot_be_meant_is_told() {
        for (line, told) in [
            ("clearlane-load", "Usage: clearlane-load <COMMAND>"),
            ("clearlane-load fly", "unrecognized subcommand 'fly'"),
            ("clearlane-load run", "<WORKLOAD>"),
            ("clearlane-load run a --sead 1", "unexpected argument '--sead'"),
            ("clearlane-load run a --seconds 0", "0 is not in 1..=86400"),
            ("clearlane-load run a --pid me", "invalid value 'me' for '--pid <PID>'"),
            ("clearlane-load keys --count 5", "--key-size <N>"),
            ("clearlane-load fill a --connections 0", "0 is not in 1..=1000"),
        ] {
            let error = parsed(line).expect_err(line);
            assert!(error.contains(told), "{line}: {error}");
        }
    }
}
