//! The cost of the store, and the cost of watchers for puts.
//!
//! ```text
//! cargo bench --bench mvcc                    # all parts, the default era and 3.5: some minutes
//! cargo bench --bench mvcc -- all             # puts and ranges in every era; or: 3.1, 3.2 ...
//! cargo bench --bench mvcc -- puts            # one part; or: ranges, fan_out, lagging
//! cargo bench --bench mvcc -- --test          # each once, with small numbers
//! ```
//!
//! The head of each part describes the timed part: `puts.rs`, `ranges.rs`, `fan_out.rs`,
//! `unsynced.rs` (`lagging`). The open-loop window of the last two is in `load_window.rs`. Stores
//! use the engine bolt, in the system's directory for temporary files. Eras alternate in one
//! process, and the figures are medians over five rounds. They are printed, and written to
//! `target/mvcc/PART.json`.

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

mod bench_store;
mod puts;
mod ranges;
mod watch_threads;
mod load_window;
mod fan_out;
mod unsynced;
mod report;

use clearlane_backend::Era;
use clearlane_benches::pace;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The settings of one run.
struct BenchConfig {
    eras: Vec<Era>,
    rounds: usize,
    /// If true, the run only checks that everything works.
    quick: bool,
}

type Part = (&'static str, fn(&BenchConfig));

const PARTS: [Part; 4] = [
    ("puts", puts::measure),
    ("ranges", ranges::measure),
    ("fan_out", fan_out::measure),
    ("lagging", unsynced::measure),
];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let is = |word: &str| arguments.iter().any(|argument| argument == word);
    if is("--list") {
        return;
    }
    let quick = is("--test");
    let named: Vec<Era> = Era::DISTINCT_STORES.into_iter().filter(|era| is(era.name())).collect();
    let eras = match is("all") {
        true => Era::DISTINCT_STORES.to_vec(),
        false if named.is_empty() => vec![Era::Clearlane, Era::V3_5],
        false => named,
    };
    let settings = BenchConfig { eras, rounds: if quick { 1 } else { 5 }, quick };
    let named = PARTS.iter().any(|(name, _)| is(name));
    for (name, measure) in PARTS {
        if !named || is(name) {
            measure(&settings);
        }
    }
}
