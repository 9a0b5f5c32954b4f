//! Runs seeds of the deterministic cluster, from the command line.
//!
//! ```text
//!   cargo run --release --bin dst -- --seeds 0..2000
//!   cargo run --release --bin dst -- --seed 17 --members 5 --trace
//!   cargo run --release --bin dst -- --seeds 0..100 --bug lost-vote
//! ```
//!
//! Seeds are independent, so they run in parallel, one seed at a time on each thread. There is
//! one thread per processor by default.
//!
//! The exit status is 1 if a rule was broken, and 2 if the arguments are wrong. With a planted bug,
//! status 1 means that no seed has found the bug.

use std::io::Write;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::{Arg, ArgAction, Command, value_parser};
use clearlane_dst::bugs::Bug;
use clearlane_dst::cluster::SeedOptions;
use clearlane_dst::{Report, run};

fn command() -> Command {
    let option = |name: &'static str, value| Arg::new(name).long(name).value_name(value);
    let number = value_parser!(u64).range(..u64::MAX);
    Command::new("dst").about("Runs seeds of the deterministic cluster").args([
        option("seeds", "FROM..TO")
            .value_parser(seeds)
            .default_value("0..100")
            .help("Runs these seeds, without TO"),
        option("seed", "N").value_parser(number).conflicts_with("seeds").help("Runs one seed"),
        option("members", "3|5")
            .value_parser(members)
            .help("Number of members (default: 3 for even seeds, 5 for odd seeds)"),
        option("bug", "NAME")
            .value_parser(value_parser!(Bug))
            .help("Plants a bug, and runs seeds until one finds it"),
        Arg::new("trace")
            .long("trace")
            .action(ArgAction::SetTrue)
            .requires("seed")
            .help("Prints every event"),
        option("threads", "N")
            .value_parser(value_parser!(u16).range(1..))
            .help("Number of seeds that run at a time (default: one per processor)"),
    ])
}

fn seeds(value: &str) -> Result<Range<u64>, &'static str> {
    let (from, to) = value.split_once("..").ok_or("must be FROM..TO")?;
    let number = |end: &str| end.parse::<u64>().map_err(|_| "not a number");
    let range = number(from)?..number(to)?;
    if range.is_empty() { Err("the range has no seed") } else { Ok(range) }
}

fn members(value: &str) -> Result<u64, &'static str> {
    value.parse().ok().filter(|members| [3, 5].contains(members)).ok_or("must be 3 or 5")
}

fn main() -> ExitCode {
    let matches = command().get_matches();
    let seeds = match matches.get_one::<u64>("seed") {
        Some(seed) => *seed..*seed + 1,
        None => matches.get_one::<Range<u64>>("seeds").expect("it has a default").clone(),
    };
    let members = matches.get_one::<u64>("members").copied();
    let (bug, prints_trace) = (matches.get_one("bug").copied(), matches.get_flag("trace"));
    let options = |seed: u64| {
        let members = members.unwrap_or(if seed.is_multiple_of(2) { 3 } else { 5 });
        SeedOptions { seed, members, bug, prints_trace }
    };
    let processors = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = matches.get_one::<u16>("threads").map_or_else(processors, |n| usize::from(*n));
    let (next, broken) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()));
    // Each thread runs seeds until none is left, or until a planted bug is found.
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let is_found = broken.lock().is_ok_and(|broken| !broken.is_empty());
            if seed >= seeds.end || (is_found && bug.is_some()) {
                return;
            }
            let report = run(options(seed));
            print_report(&report);
            if report.violation.is_some()
                && let Ok(mut broken) = broken.lock()
            {
                broken.push(seed);
            }
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let mut broken = broken.into_inner().unwrap_or_default();
    broken.sort_unstable();
    let count = seeds.end - seeds.start;
    print_line(&format!("{} of {count} seeds broke a rule: {broken:?}", broken.len()));
    if broken.is_empty() == bug.is_none() { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

fn print_report(report: &Report) {
    let SeedOptions { seed, members, .. } = report.options;
    let Report { trace_hash, effect_hash, metrics, .. } = report;
    print_line(&format!(
        "seed {seed} members {members} hash {trace_hash:016x} effects {effect_hash:016x} {metrics:?}"
    ));
    if let Some(violation) = &report.violation {
        print_line(&format!("seed {seed} members {members} VIOLATION {violation}"));
    }
}

/// Prints a line. Ignores errors, because the reader may have closed the pipe.
fn print_line(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
