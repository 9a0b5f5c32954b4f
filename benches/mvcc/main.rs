//! What the store costs, and what watchers cost the puts.
//!
//! `cargo bench --bench mvcc` runs all parts, in the default era and 3.5; `-- all` every era, `--
//! 3.1` one, `-- puts` one part, `-- --test` each once. Medians over rounds, in
//! `target/mvcc/PART.json`.
//!
//! * `puts`: **timed** are puts of 256 B to 100,000 keys, to the end of the last put and to the end
//!   of the commit behind it, with a watchable store and without. **Kept out:** each key's first
//!   put.
//! * `ranges`: **timed** is a range from call to answer: values of 1 KiB; pages and counts of a
//!   million keys, at the head and at an old revision. **Kept out:** dropping the answer.
//! * `fan_out`, `lagging`: **timed** is a put from when it is due (2,000 a second, random) until
//!   its transaction has ended, beside up to a thousand watchers of its key, or one that is 200,000
//!   revisions behind. What puts cost beyond `spin`, a window of equally busy cores, is the design.

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

/// What one run of the bench measures.
struct BenchConfig {
    eras: Vec<Era>,
    rounds: usize,
    /// Only check that everything runs.
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
    let settings = BenchConfig { eras, rounds: if quick { 1 } else { 3 }, quick };
    let named = PARTS.iter().any(|(name, _)| is(name));
    for (name, measure) in PARTS {
        if !named || is(name) {
            measure(&settings);
        }
    }
}
