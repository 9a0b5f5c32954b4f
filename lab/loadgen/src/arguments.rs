//! The command line of `clearlane-load`. The doc comments of the arguments are the program's help
//! texts.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, ValueEnum};

use crate::closed_loop::arguments::ClosedLoop;
use crate::day::DayOptions;
use crate::experiment::ExperimentArguments;
use crate::stall::{KEY_SIZE, Row, StallOptions, VALUE_SIZE};
use crate::storm::{StormKind, StormOptions};
use crate::target::Target;
use crate::within::within;

/// Puts any server of etcd's API under load, and reports what its clients wait for
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
    /// Puts a number of keys, for measurements of a restart
    Keys {
        /// Number of keys
        #[arg(long, value_name = "N")]
        count: u64,
        /// Size of each key, in bytes
        #[arg(long, value_name = "N")]
        key_size: u64,
        /// Size of each value, in bytes
        #[arg(long, value_name = "N")]
        value_size: u64,
        #[command(flatten)]
        options: FillOptions,
    },
    /// Runs a workload: sends requests when they are due
    Run {
        /// A name that `clearlane-load workloads` lists, or a file
        workload: PathBuf,
        #[command(flatten)]
        target: Target,
        /// Omits this class; may be repeated
        #[arg(long, value_name = "CLASS")]
        without: Vec<String>,
        /// Seconds of the run, instead of the number in the workload
        #[arg(long, value_name = "N", value_parser = within(1..=86_400))]
        seconds: Option<u64>,
        /// Seconds of the same load before the run, which are not measured
        #[arg(long, value_name = "N", default_value_t = 0, value_parser = within(0..=3600))]
        warm_up: u64,
        /// The server's process; reports its processor time and memory during the run
        #[arg(long)]
        pid: Option<u32>,
        #[command(flatten)]
        output: OutputArguments,
    },
    /// Lists the workloads that are part of this program
    Workloads,
    #[command(flatten)]
    ClosedLoop(ClosedLoop),
    /// Checks whether a disk is fast enough for a log: 22 MiB in small writes, each synced
    Disk {
        /// The directory for the log
        #[arg(long, value_name = "DIR", default_value = ".")]
        dir: PathBuf,
        /// Also writes the figures to this file
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Sends expensive requests of one kind, while another process measures
    Stall {
        /// A kind that `clearlane-load rows` lists
        row: Row,
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        options: StallOptions,
        /// Duration of the requests, in seconds
        #[arg(long, value_name = "N", default_value_t = 10, value_parser = within(1..=86_400))]
        seconds: u64,
        /// The server's process; reports its processor time
        #[arg(long)]
        pid: Option<u32>,
        /// Also writes the figures to this file
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Lists the kinds of expensive requests
    Rows,
    /// Sends hostile traffic of one kind, while another process measures
    Storm {
        /// A kind that `clearlane-load storms` lists
        kind: StormKind,
        #[command(flatten)]
        options: StormOptions,
    },
    /// Lists the kinds of hostile traffic
    Storms,
    /// Adds root and a user "load" with all permissions, and enables authentication; or undoes this
    Auth {
        state: AuthSwitch,
        #[command(flatten)]
        target: Target,
    },
    /// Checks passwords with bcrypt, without a server, for comparison with the row authenticate
    Bcrypt(BcryptArguments),
    /// Sends a day of steady load; fails if memory grows, or if something is left over
    Day {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        options: DayOptions,
        /// The server's process, whose memory is measured
        #[arg(long)]
        pid: u32,
        /// Also writes the figures to this file
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Prints the table of days, and draws their curves
    Curves {
        /// Files of `clearlane-load day --json`; a file's name is the name of the server
        #[arg(required = true, value_name = "FILE")]
        days: Vec<PathBuf>,
        /// Draws the curves in this file
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Compares runs on a page with plots
    Compare {
        /// Files of `--json`; a file's name is the name of the run
        #[arg(required = true, value_name = "FILE")]
        runs: Vec<PathBuf>,
        /// Writes the page to this file
        #[arg(long, value_name = "FILE", required_unless_present = "svg")]
        html: Option<PathBuf>,
        /// Writes the plots to this directory, each as a file
        #[arg(long, value_name = "DIR")]
        svg: Option<PathBuf>,
    },
    /// Repeats experiments that were published about etcd, with servers that it starts
    Experiment(ExperimentArguments),
    /// Starts a server that answers with as many bytes as a real server, and stores nothing
    Stub(StubArguments),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AuthSwitch {
    On,
    Off,
}

#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct BcryptArguments {
    /// Number of threads; by default the number of cores
    #[arg(long, value_name = "N", value_parser = within(1..=1024))]
    pub threads: Option<u64>,
    /// The cost of bcrypt; each step doubles the work
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(4..=31))]
    pub cost: u32,
    /// Duration of the checks, in seconds
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = within(1..=86_400))]
    pub seconds: u64,
    /// Also writes the figures to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct StubArguments {
    /// The address to listen on, as ADDRESS:PORT
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:2379")]
    pub listen: SocketAddr,
    /// Size of each key, in bytes
    #[arg(long, value_name = "N", default_value_t = KEY_SIZE, value_parser = within(1..=65_536))]
    pub key_size: u64,
    /// Size of each value, in bytes
    #[arg(long, value_name = "N", default_value_t = VALUE_SIZE)]
    #[arg(value_parser = within(0..=1_048_576))]
    pub value_size: u64,
    /// Size of a snapshot, in bytes
    #[arg(long, value_name = "N", default_value_t = 200_000_000)]
    pub snapshot_size: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct OutputArguments {
    /// Also writes all figures to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Writes a line for each class and second to this file
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Writes a page with plots to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Writes the plots to this directory, each as a file
    #[arg(long, value_name = "DIR")]
    pub svg: Option<PathBuf>,
    /// Also prints the results of each second
    #[arg(long)]
    pub sample: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct FillOptions {
    #[command(flatten)]
    pub target: Target,
    /// Number of connections for the puts
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = within(1..=1000))]
    pub connections: u64,
}

/// Returns an argument as it must be typed in a shell, with quotes if it needs them.
pub fn quoted(argument: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,@%+".contains(&byte);
    if !argument.is_empty() && argument.bytes().all(is_plain) {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', "'\\''"))
    }
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
    fn wrong_arguments_are_rejected() {
        for (line, part) in [
            ("", "Usage: clearlane-load <COMMAND>"),
            ("run", "<WORKLOAD>"),
            ("run a --sead 1", "unexpected argument '--sead'"),
            ("run a --seconds 0", "0 is not in 1..=86400"),
            ("keys --count 5", "--key-size <N>"),
            ("run a --user me", "must be NAME:PASSWORD"),
            ("range a --consistency x", "[possible values: l, s]"),
            ("range a b --prefix", "cannot be used with"),
            ("txn-mixed --rw-ratio=-1", "must be a number from 0 to 1000000"),
            ("put --cert a", "--key <FILE>"),
            ("bcrypt --cost 3", "3 is not in 4..=31"),
            ("stall dear", "calm, range-old, count-old, keys-only"),
            ("day", "--pid <PID>"),
            ("day --pid 1 --hours 1", "1 is not in 2..=1000"),
            ("curves", "<FILE>"),
            ("stub --listen here", "invalid value 'here' for '--listen <ADDRESS>'"),
        ] {
            let error = parsed(&format!("clearlane-load {line}")).expect_err(line);
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
