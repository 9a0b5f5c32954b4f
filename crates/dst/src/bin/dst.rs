//! Runs seeds of the deterministic cluster, from the command line.
//!
//! ```text
//!   cargo run --release -p clearlane-dst --bin dst -- --seeds 0..2000
//!   cargo run --release -p clearlane-dst --bin dst -- --seed 17 --members 5 --trace
//!   cargo run --release -p clearlane-dst --bin dst -- --seeds 0..100 --bug lost-vote
//! ```
//!
//! Seeds are independent, so they run on as many threads as there are processors; each is alone in
//! its thread. Ends with status 1 if a rule was broken, and with 2 if the arguments are wrong. With
//! a planted bug it is the other way round: status 1 means that no seed has found it.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "what it finds goes to a terminal")]

use std::io::Write;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use clearlane_dst::bugs::Bug;
use clearlane_dst::cluster::SeedOptions;
use clearlane_dst::trace::TraceOutput;
use clearlane_dst::{Report, run};

const USAGE: &str = "\
usage: chaos [--seeds FROM..TO | --seed N] [--members 3|5] [--bug NAME] [--trace] [--threads N]
  --seeds FROM..TO   these seeds, TO excluded; without it 0..100
  --seed N           one seed
  --members 3|5      with so many members only; without it seeds take turns: even 3, odd 5
  --bug NAME         with a planted bug, until a seed finds it
  --trace            prints every event; needs --seed
  --threads N        so many at a time; without it one per processor";

#[derive(Debug)]
struct Arguments {
    seeds: Range<u64>,
    members: Option<u64>,
    bug: Option<Bug>,
    trace: bool,
    threads: usize,
}

fn main() -> ExitCode {
    let arguments = std::env::args().skip(1).collect::<Vec<String>>();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        print_line(USAGE);
        return ExitCode::SUCCESS;
    }
    match parse(&arguments) {
        Ok(arguments) => run_seeds(&arguments),
        Err(wrong) => {
            eprintln!("chaos: {wrong}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn parse(arguments: &[String]) -> Result<Arguments, String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut parsed = Arguments { seeds: 0..100, members: None, bug: None, trace: false, threads };
    let mut rest = arguments.iter();
    while let Some(name) = rest.next() {
        if name == "--trace" {
            parsed.trace = true;
            continue;
        }
        let known = ["--seeds", "--seed", "--members", "--bug", "--threads"];
        if !known.contains(&name.as_str()) {
            return Err(format!("there is no argument {name}"));
        }
        let value = rest.next().ok_or(format!("{name} needs a value"))?;
        match name.as_str() {
            "--seeds" => parsed.seeds = range(value)?,
            "--seed" => {
                let seed = number(name, value)?;
                let end = seed.checked_add(1).ok_or(format!("{name} {value}: too large"))?;
                parsed.seeds = seed..end;
            }
            "--members" => match number(name, value)? {
                members @ (3 | 5) => parsed.members = Some(members),
                _ => return Err(format!("--members {value}: 3 or 5")),
            },
            "--bug" => parsed.bug = Some(bug(value)?),
            _ => parsed.threads = (number(name, value)? as usize).max(1),
        }
    }
    if parsed.trace && parsed.seeds.end - parsed.seeds.start != 1 {
        return Err("--trace needs --seed: the lines of several seeds would be mixed".to_owned());
    }
    Ok(parsed)
}

fn number(name: &str, value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("{name} {value}: not a number"))
}

fn range(value: &str) -> Result<Range<u64>, String> {
    let ends = value.split_once("..").ok_or(format!("--seeds {value}: not FROM..TO"))?;
    let range = number("--seeds", ends.0)?..number("--seeds", ends.1)?;
    if range.is_empty() { Err(format!("--seeds {value}: no seed at all")) } else { Ok(range) }
}

fn bug(value: &str) -> Result<Bug, String> {
    let names = || Bug::ALL.map(Bug::name).join(", ");
    let found = Bug::ALL.into_iter().find(|bug| bug.name() == value);
    found.ok_or_else(|| format!("--bug {value}: there are {}", names()))
}

fn run_seeds(arguments: &Arguments) -> ExitCode {
    let next = AtomicU64::new(arguments.seeds.start);
    let broken = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads {
            scope.spawn(|| run_worker(arguments, &next, &broken));
        }
    });
    let mut broken = broken.into_inner().unwrap_or_default();
    broken.sort_unstable();
    let count = arguments.seeds.end - arguments.seeds.start;
    print_line(&format!("{} of {count} seeds broke a rule: {broken:?}", broken.len()));
    if broken.is_empty() == arguments.bug.is_none() { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

/// Runs seeds until there are none left, or until a planted bug is found.
fn run_worker(arguments: &Arguments, next: &AtomicU64, broken: &Mutex<Vec<u64>>) {
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        let found = broken.lock().is_ok_and(|broken| !broken.is_empty());
        if seed >= arguments.seeds.end || (found && arguments.bug.is_some()) {
            return;
        }
        let members = arguments.members.unwrap_or(if seed.is_multiple_of(2) { 3 } else { 5 });
        let keep = if arguments.trace { TraceOutput::Print } else { TraceOutput::Hash };
        let report = run(SeedOptions { seed, members, bug: arguments.bug, trace: keep });
        print_report(&report);
        if report.violation.is_some()
            && let Ok(mut broken) = broken.lock()
        {
            broken.push(seed);
        }
    }
}

fn print_report(report: &Report) {
    let Report {
        options, violation, trace_hash: hash, effect_hash: effects, metrics: figures, ..
    } = report;
    let (seed, members) = (options.seed, options.members);
    print_line(&format!(
        "seed {seed} members {members} hash {hash:016x} effects {effects:016x} {figures:?}"
    ));
    if let Some(violation) = violation {
        print_line(&format!("seed {seed} members {members} VIOLATION {violation}"));
    }
}

/// If the reader has closed the pipe, the program ends without an error.
fn print_line(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
