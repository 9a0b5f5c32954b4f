//! `calibrate`: what things cost here, measured with the real server, era by era.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Arg, ArgMatches, Command, value_parser};
use clearlane_simulator::calibration::Calibration;
use clearlane_simulator::calibration::derive::{Known, buffer_op_ns, costs, reading};
use clearlane_simulator::costs::Costs;
use clearlane_simulator::era::Era;

use crate::progress::Progress;
use crate::real::windows::seen;
use crate::real::{Program, arguments, cores, machine};
use crate::text::{say, write};

/// What is known of one era only: where reading ends and sending begins is seen in 3.2, and what a copy costs in 3.4.
const ORDER: [Era; 6] = [Era::V32, Era::V34, Era::V30, Era::V31, Era::V35, Era::Clearlane];

/// Which part of what a record, and a byte, costs is reading, if 3.2 was not asked.
const UNKNOWN: (f64, f64) = (0.5, 0.5);

/// For so long threads are watched that want to run where others run.
const WATCHED: Duration = Duration::from_millis(1500);

pub(crate) fn command() -> Command {
    Command::new("calibrate")
        .about("Measures what things cost on this machine, with the real server: some five minutes, in which nothing else should run")
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
                .default_value("4")
                .value_parser(value_parser!(u64).range(1..=60))
                .help("How long each of the ten loads takes"),
        )
        .args(arguments())
}

pub(crate) fn done(matches: &ArgMatches) -> Result<(), String> {
    let program = Program::of(matches)?;
    let seconds = *matches.get_one::<u64>("seconds").expect("it has a default");
    let wanted: Vec<Era> = matches.get_many("era").expect("it has a default").copied().collect();
    let quantum_ns = quantum_ns();
    let mut eras = BTreeMap::new();
    let (mut parts, mut buffer_op) = (UNKNOWN, Costs::BY_HAND.buffer_op_ns as f64);
    for era in ORDER.into_iter().filter(|era| wanted.contains(era)) {
        let mut progress = Progress::of(&format!("era {era}"));
        let of = |error| format!("era {era}: {error}");
        let seen = seen(&program, era, seconds, &mut |share| progress.say(share)).map_err(of)?;
        match era {
            Era::V32 => parts = reading(&seen),
            Era::V34 => buffer_op = buffer_op_ns(&seen),
            _ => {}
        }
        let reading = if era == Era::Clearlane { parts } else { reading(&seen) };
        eras.insert(era, costs(&seen, Known { reading, buffer_op_ns: buffer_op, quantum_ns }));
    }
    let calibration = Calibration { machine: machine(), eras };
    match matches.get_one::<PathBuf>("out") {
        Some(file) => write(file, &calibration.to_string()),
        None => say(&calibration.to_string()),
    }
}

/// How long a core works for one before it makes way for another: from how much longer a thread that has slept
/// waits for its turn when all cores are busy. If each of some cores is somewhere in its quantum, the first of them is
/// free after one part more of it than there are cores.
fn quantum_ns() -> f64 {
    let calm_ns = lateness_ns();
    let is_over = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = (0..cores())
        .map(|_| {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    let busy_ns = lateness_ns();
    is_over.store(true, Ordering::Relaxed);
    busy.into_iter().for_each(|thread| drop(thread.join()));
    // Less than a tenth of a millisecond is not seen between the two.
    ((busy_ns - calm_ns) * (cores() + 1) as f64).max(100_000.0)
}

/// How late a thread is on average that sleeps for a millisecond.
fn lateness_ns() -> f64 {
    let (begin, nap) = (Instant::now(), Duration::from_millis(1));
    let (mut late, mut naps) = (Duration::ZERO, 0.0);
    while begin.elapsed() < WATCHED {
        let asleep = Instant::now();
        thread::sleep(nap);
        late += asleep.elapsed().saturating_sub(nap);
        naps += 1.0;
    }
    late.as_nanos() as f64 / naps
}
