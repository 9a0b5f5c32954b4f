//! What the store costs, and what watchers cost the puts.
//!
//! ```text
//! cargo bench --bench mvcc                    # all parts, the default era and 3.5: some minutes
//! cargo bench --bench mvcc -- all             # puts and ranges in every era; or: 3.1, 3.2 ...
//! cargo bench --bench mvcc -- puts            # one part; or: ranges, fan_out, lagging
//! cargo bench --bench mvcc -- --test          # each once, with little of everything
//! ```
//!
//! Stores lie on redb, in the system's directory for temporary files. Eras take turns in one process,
//! and the figures are medians over the rounds.
//!
//! * `puts`: **timed** are puts of 256 B to 100,000 keys, one in a transaction, while another thread
//!   commits, and a third one drops the views that are current no more. Once to the end of the last
//!   put, and once to the end of the commit behind it, when nothing is left to pay. With a watchable
//!   store that has no watchers, and without one. **Kept out:** the first put of each key.
//! * `ranges`: **timed** is a range from its call to its answer, of values of 1 KiB, and pages and
//!   counts in a store of a million keys, at the head and at a revision before every tenth key was
//!   put again. **Kept out:** dropping the answer.
//! * `fan_out`: 2,000 puts per second to one key that up to a thousand watch, each in a stream of its
//!   own (`own`) or all in one (`one`).
//! * `lagging`: 2,000 puts per second beside a watcher that starts at revision 2 in a store of 200,000
//!   revisions, and stays when it has caught up; it watches every key, or a single one.
//!
//! In the last two, arrivals are random and do not depend on what became of the ones before, and the
//! thread that puts spins until one is due. **Timed** is from then until the transaction has ended and
//! its client could be answered; publishing it to the hub comes behind that, as in a server, and delays
//! the next put only. What is queued when a window ends counts with its wait so far and is not
//! served. What puts waited for locks is shown apart: a busy processor does not hide that. Watchers
//! have the threads that a server gives them: one that delivers and one that catches up (in the default
//! era when the hub wakes them, in old eras every 10 ms and 100 ms as in etcd), and up to two that take
//! responses. Every event is checked: each comes once, and in order.
//!
//! `spin` is a window without watchers, beside threads that keep the processor as busy as those of the
//! window named behind it. What watchers cost beyond `spin` is the design; on two cores the rest is
//! the price of the core.
//!
//! The table goes to the terminal, and to `target/mvcc/PART.json`.

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
