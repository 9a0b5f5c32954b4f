//! `calibrate`: what things cost here, measured with a real server of each era.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};
use clearlane_simulator::calibration::Calibration;
use clearlane_simulator::calibration::derive::{DeriveInputs, buffer_op_ns, costs, reading};
use clearlane_simulator::calibration::sleep::WakeupCosts;
use clearlane_simulator::costs::Costs;
use clearlane_simulator::era::Era;
use clearlane_simulator::era::reads_in_pieces;

use crate::given_back::given_back;
use crate::progress::Progress;
use crate::real::noise::{Noise, RetryBudget};
use crate::real::windows::{EraWindows, measure_eras};
use crate::real::{Program, arguments, cores, machine};
use crate::text::{print_line, print_progress, write};

/// What is known of one era only: where reading ends and sending begins is seen in 3.2, and what a
/// copy costs in 3.4.
const ORDER: [Era; 6] = [Era::V3_2, Era::V3_4, Era::V3_0, Era::V3_1, Era::V3_5, Era::Clearlane];

/// Which part of what a record, and a byte, costs is reading, if 3.2 was not asked.
const UNKNOWN: (f64, f64) = (0.5, 0.5);

pub(crate) fn command() -> Command {
    Command::new("calibrate")
        .about("Measures what things cost on this machine, with the real server: some thirteen minutes on a calm one; nothing else should run")
        .arg(
            Arg::new("out")
                .long("out")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("Where the costs go; to standard output, if left out"),
        )
        .arg(
            Arg::new("era")
                .long("era")
                .value_name("ERA,...")
                .value_delimiter(',')
                .default_values(Era::ALL.map(Era::name))
                .value_parser(|name: &str| name.parse::<Era>().map_err(|error| error.to_string()))
                .help("Which read paths; what 3.2 and 3.4 show is used for others, too"),
        )
        .arg(
            Arg::new("seconds")
                .long("seconds")
                .value_name("N")
                .default_value("2")
                .value_parser(value_parser!(u64).range(1..=60))
                .help("How long each of the loads takes; small puts, the longest reads and reads that come seldom take twice as long, and those that come rarely three times"),
        )
        .arg(
            Arg::new("turns")
                .long("turns")
                .value_name("N")
                .default_value("3")
                .value_parser(value_parser!(u64).range(1..=20))
                .help("So often each of them runs, eras in turn; the middle counts"),
        )
        .args(arguments())
}

pub(crate) fn done(matches: &ArgMatches) -> Result<(), String> {
    let program = Program::of(matches)?;
    let number = |name| *matches.get_one::<u64>(name).expect("it has a default");
    let (seconds, turns) = (number("seconds"), number("turns"));
    let wanted: Vec<Era> = matches.get_many("era").expect("it has a default").copied().collect();
    let out = matches.get_one::<PathBuf>("out");
    // Before all those minutes: it would be a pity afterwards.
    if let Some(file) = out {
        let opened = OpenOptions::new().create(true).append(true).open(file);
        opened.map_err(|error| format!("{}: {error}", file.display()))?;
    }
    let (mut eras, mut worst) = (BTreeMap::new(), Noise::default());
    let mut patience = RetryBudget::new(program.retry_budget);
    let (mut parts, mut buffer_op) = (UNKNOWN, Costs::BY_HAND.buffer_op_ns as f64);
    let wanted: Vec<Era> = ORDER.into_iter().filter(|era| wanted.contains(era)).collect();
    let sync_ns = program.sync_ns()?;
    let mut progress = Progress::of("calibration");
    let all = measure_eras(&program, &wanted, (turns, seconds), &mut patience, &mut |share| {
        progress.say(share)
    })?;
    drop(progress);
    let sleep = WakeupCosts::of(&all.iter().map(|shown| &shown.measurements).collect::<Vec<_>>());
    for EraWindows { era, measurements: seen, noise, .. } in &all {
        let (era, seen, noise) = (*era, seen, *noise);
        worst += noise;
        if !noise.is_little() {
            print_progress(&format!("era {era}: {noise}; its costs are those of a busy machine"));
        }
        match era {
            Era::V3_2 => parts = reading(seen),
            Era::V3_4 => buffer_op = buffer_op_ns(seen),
            _ => {}
        }
        let reading = if era == Era::Clearlane { parts } else { reading(seen) };
        let in_pieces = reads_in_pieces(era);
        let (buffer_op_ns, cores) = (buffer_op, cores() as f64);
        let quantum_ns = TICK_NS;
        let known =
            DeriveInputs { reading, buffer_op_ns, quantum_ns, cores, in_pieces, sync_ns, sleep };
        eras.insert(era, costs(seen, known));
    }
    // Those that were measured before 3.4 was do not know it yet.
    for costs in eras.values_mut() {
        costs.buffer_op_ns = buffer_op as u64;
    }
    let calibration = Calibration { machine: machine(), eras }.of_one_machine();
    let given_back = given_back(&calibration, &all)?;
    let text = format!("{calibration}\n# How calm it was: {worst}.\n{given_back}");
    match out {
        Some(file) => write(file, &text),
        None => print_line(&text),
    }
}

/// How long a core works for one before it makes way for another: Linux looks when its clock ticks.
const TICK_NS: f64 = 4e6;
