//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, ValueEnum};

use crate::closed_loop::arguments::ClosedLoop;
use crate::day::{HOURS_MIN, REQUESTS_MIN};
use crate::experiment::ExperimentArguments;
use crate::stall::{KEY_SIZE, Row, VALUE_SIZE};
use crate::storm::StormKind;
use crate::target::Target;

/// Puts any server of etcd's API under load, and tells what its requests meet
#[derive(Clone, Debug, PartialEq, Eq, Parser)]
#[command(name = "clearlane-load", arg_required_else_help = true)]
pub enum Subcommand {
    /// Puts the keys of a workload
    Fill {
        /// A name that `clearlane-load workloads` lists, or a file
        workload: PathBuf,
        #[command(flatten)]
        options: FillOptions,
    },
    /// Puts some number of keys, for measurements of a restart
    Keys {
        /// How many
        #[arg(long, value_name = "N")]
        count: u64,
        /// Bytes of each key
        #[arg(long, value_name = "N")]
        key_size: u64,
        /// Bytes of each value
        #[arg(long, value_name = "N")]
        value_size: u64,
        #[command(flatten)]
        options: FillOptions,
    },
    /// Runs a workload: requests at their own times
    Run {
        /// A name that `clearlane-load workloads` lists, or a file
        workload: PathBuf,
        #[command(flatten)]
        target: Target,
        /// Leaves a class out; may be repeated
        #[arg(long, value_name = "CLASS")]
        without: Vec<String>,
        /// Instead of what the workload says
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
        seconds: Option<u64>,
        /// So many seconds of the same load before, which are not counted
        #[arg(long, value_name = "N", default_value_t = 0)]
        #[arg(value_parser = clap::value_parser!(u64).range(0..=3600))]
        warm_up: u64,
        /// Tells what this process, the server, used meanwhile, as Linux says
        #[arg(long)]
        pid: Option<u32>,
        #[command(flatten)]
        output: OutputArguments,
    },
    /// Lists the workloads that ship
    Workloads,
    #[command(flatten)]
    ClosedLoop(ClosedLoop),
    /// Checks whether a disk is fast enough for a log: 22 MiB in small writes, each synced
    Disk {
        /// Where the log would be
        #[arg(long, value_name = "DIR", default_value = ".")]
        dir: PathBuf,
        /// Writes the figures there, too
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Sends expensive requests of one kind, beside a run
    Stall {
        /// One of those that `clearlane-load rows` lists
        row: Row,
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        options: StallArguments,
    },
    /// Lists the kinds of expensive requests
    Rows,
    /// Does harm of one kind, beside a run
    Storm {
        /// One of those that `clearlane-load storms` lists
        kind: StormKind,
        #[command(flatten)]
        options: StormArguments,
    },
    /// Lists the kinds of harm
    Storms,
    /// Adds root and a user "load" with all permissions, and enables authentication; or undoes it
    Auth {
        state: AuthSwitch,
        #[command(flatten)]
        target: Target,
    },
    /// Checks passwords with bcrypt and no server: what the row authenticate is compared with
    Bcrypt(BcryptArguments),
    /// Sends what a day of steady load has; fails if memory grows, or something is left over
    Day {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        options: DayArguments,
    },
    /// Prints the table of days, and draws their curves
    Curves {
        /// Of `clearlane-load day --json`; a file's name names the server
        #[arg(required = true, value_name = "FILE")]
        days: Vec<PathBuf>,
        /// Draws the curves there
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Compares runs: a page with plots
    Compare {
        /// Of `--json`; a file's name names the run
        #[arg(required = true, value_name = "FILE")]
        runs: Vec<PathBuf>,
        /// Writes the page there
        #[arg(long, value_name = "FILE", required_unless_present = "svg")]
        html: Option<PathBuf>,
        /// Writes the plots there, each as a file
        #[arg(long, value_name = "DIR")]
        svg: Option<PathBuf>,
    },
    /// Repeats what was published about etcd, at servers that it starts
    Experiment(ExperimentArguments),
    /// Answers as many bytes as a server would, and does nothing else
    Stub(StubArguments),
}

#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct StallArguments {
    /// How many keys of `clearlane-load keys` the server has
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1000..=100_000_000))]
    pub keys: u64,
    /// How long requests are sent
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// Seconds before the first request, in which probes begin
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub head_start: u64,
    /// How many there are in the row authenticate, each with a connection
    #[arg(long, value_name = "N", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub clients: u64,
    /// Tells what this process used meanwhile, as Linux says
    #[arg(long)]
    pub pid: Option<u32>,
    /// Writes the figures there, too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AuthSwitch {
    On,
    Off,
}

#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct BcryptArguments {
    /// As many as there are cores, if it is left out
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub threads: Option<u64>,
    /// Each step doubles the work
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(4..=31))]
    pub cost: u32,
    /// How long
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// Writes the figures there, too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Args)]
pub struct StormArguments {
    /// The port: with TLS or without, as the kind says
    #[arg(long, value_name = "IP:PORT")]
    pub address: SocketAddr,
    /// How long
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// Attempts a second (0: as many as end)
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub rate: u64,
    /// For bytes without meaning
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct DayArguments {
    /// The server's process, of which Linux tells the memory
    #[arg(long)]
    pub pid: u32,
    /// The server's directory, to tell its size on disk
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Simulated hours, of 12 periods each
    #[arg(long, value_name = "N", default_value_t = 24)]
    #[arg(value_parser = clap::value_parser!(u64).range(HOURS_MIN..=1000))]
    pub hours: u64,
    /// How many keys are updated again and again
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub keys: u64,
    /// Requests in each period, about
    #[arg(long, value_name = "N", default_value_t = 4000)]
    #[arg(value_parser = clap::value_parser!(u64).range(REQUESTS_MIN..=10_000_000))]
    pub requests: u64,
    /// Connections that stay open, with 8 requests at a time on each
    #[arg(long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub connections: u64,
    /// Takes a snapshot at the end of each hour
    #[arg(long)]
    pub snapshots: bool,
    /// Defragments once, at the end of this hour
    #[arg(long, value_name = "HOUR")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub defragment: Option<u64>,
    /// How much the resident set may have grown, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub bound: u64,
    /// Writes the figures there, too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct StubArguments {
    /// Where, as ADDRESS:PORT
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:2379")]
    pub listen: SocketAddr,
    /// Bytes of each key
    #[arg(long, value_name = "N", default_value_t = KEY_SIZE as u32)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub key_size: u32,
    /// Bytes of each value
    #[arg(long, value_name = "N", default_value_t = VALUE_SIZE as u32)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1_048_576))]
    pub value_size: u32,
    /// Bytes of a snapshot
    #[arg(long, value_name = "N", default_value_t = 200_000_000)]
    pub snapshot_size: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct OutputArguments {
    /// Writes all figures there, too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Writes a line for each class and second there
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Writes a page with plots there
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Writes the plots there, each as a file
    #[arg(long, value_name = "DIR")]
    pub svg: Option<PathBuf>,
    /// Prints what happened in each second
    #[arg(long)]
    pub sample: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct FillOptions {
    #[command(flatten)]
    pub target: Target,
    /// Connections to put over
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub connections: u64,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parsed(line: &str) -> Result<Subcommand, String> {
        Subcommand::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_table_of_arguments_is_sound() {
        Subcommand::command().debug_assert();
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let target = Target {
            endpoints: vec!["http://127.0.0.1:2379".to_owned()],
            target_leader: false,
            cacert: None,
            cert: None,
            key: None,
            user: None,
            seed: 1,
        };
        let options = FillOptions { target: target.clone(), connections: 4 };
        let workload = PathBuf::from("a.toml");
        let fill = Subcommand::Fill { workload: workload.clone(), options };
        assert_eq!(parsed("clearlane-load fill a.toml"), Ok(fill));
        let (without, seconds, warm_up, pid) = (Vec::new(), None, 0, None);
        let output = OutputArguments::default();
        let run = Subcommand::Run { workload, target, without, seconds, warm_up, pid, output };
        assert_eq!(parsed("clearlane-load run a.toml"), Ok(run));
    }

    #[test]
    fn etcds_benchmark_is_understood() {
        for line in [
            "put --endpoints a:1,b:2 --conns 50 --clients 500 --total 9 --val-size 256 --rate 3",
            "put --sequential-keys --key-size=8 --key-space-size 1000 --target-leader",
            "range foo --total 5 --consistency=s",
            "range foo bar --limit 3 --keys-only --user a:b",
            "range --prefix foo --stream --cacert ca --cert c --key k",
            "range foo --prefix --paginate",
            "txn-put --txn-ops 2 --key-space-size 4",
            "txn-mixed --rw-ratio 2.5 --end-key z --limit 0",
            "watch --streams 3 --watch-per-stream 4 --watched-key-total 5 --put-total 6",
            "watch-latency --streams 3 --watchers-per-stream 2 --prevkv --put-rate 7",
            "lease-keepalive --total 3 --clients 2",
        ] {
            let asked = parsed(&format!("clearlane-load {line}"));
            assert!(matches!(asked, Ok(Subcommand::ClosedLoop(_))), "{line}: {asked:?}");
        }
    }

    #[test]
    fn rows_are_named_as_they_are_listed() {
        for row in Row::all() {
            let stall = parsed(&format!("clearlane-load stall {}", row.name()));
            let parsed = stall.map(
                |stall| matches!(stall, Subcommand::Stall { row: named, .. } if named == *row),
            );
            assert_eq!(parsed, Ok(true), "{row:?}");
            assert!(!row.about().is_empty(), "{row:?}");
        }
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
            ("clearlane-load run a --user me", "it must be NAME:PASSWORD"),
            ("clearlane-load range a --consistency x", "[possible values: l, s]"),
            ("clearlane-load range a b --prefix", "cannot be used with"),
            ("clearlane-load txn-mixed --rw-ratio=-1", "it must be a number from 0 to 1000000"),
            ("clearlane-load put --total 0", "0 is not in 1..=100000000000"),
            ("clearlane-load put --cert a", "--key <FILE>"),
            ("clearlane-load auth", "<STATE>"),
            ("clearlane-load bcrypt --cost 3", "3 is not in 4..=31"),
            ("clearlane-load stall", "<ROW>"),
            ("clearlane-load stall dear", "invalid value 'dear' for '<ROW>'"),
            ("clearlane-load stall dear", "calm, range-old, count-old, keys-only"),
            ("clearlane-load stall calm --keys 999", "999 is not in 1000..=100000000"),
            ("clearlane-load day", "--pid <PID>"),
            ("clearlane-load day --pid 1 --hours 1", "1 is not in 2..=1000"),
            ("clearlane-load day --pid 1 --requests 99", "99 is not in 100..=10000000"),
            ("clearlane-load day --pid 1 --keys 0", "0 is not in 1..=10000000"),
            ("clearlane-load day --pid 1 --bound 10001", "10001 is not in 0..=10000"),
            ("clearlane-load day --pid 1 --defragment 0", "0 is not in 1..=1000"),
            ("clearlane-load curves", "<FILE>"),
            ("clearlane-load stub --listen here", "invalid value 'here' for '--listen <ADDRESS>'"),
        ] {
            let error = parsed(line).expect_err(line);
            assert!(error.contains(told), "{line}: {error}");
        }
    }
}
