//! No value is overwritten: shows a key at every revision, until a compaction removes old
//! revisions.
//!
//! ```text
//! cargo run --release --example old_revision
//! ```

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use clearlane_backend::{Config, Era, PreCommit};
use clearlane_engine::{KeyRange, MemoryEngine};
use clearlane_mvcc::{RangeOptions, StoreConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let memory = std::sync::Arc::new(MemoryEngine::new()); // A store on disk behaves the same.
    let config = StoreConfig::new(memory, Config::default(), PreCommit::none(), ());
    let (store, _) = clearlane_mvcc::open(Era::Clearlane, config)?;
    let colour = KeyRange::new(b"colour", b"colour\0"); // The range of this one key.
    for change in ["red", "green", "delete", "blue"] {
        let mut write = store.begin_write()?;
        match change {
            "delete" => drop(write.delete_range(colour)?),
            value => write.put(b"colour", value.as_bytes(), 0)?,
        }
        println!("colour: {change:6} ──▶ revision {}", write.end(())?.revision);
    }
    for (compact_at, heading) in [(None, "Reads find:"), (Some(3), "Compacted at revision 3:")] {
        drop(compact_at.map(|at| store.compact(at, ())).transpose()?);
        println!("\n{heading}");
        for revision in 1..=6 {
            let options = RangeOptions { revision, ..RangeOptions::default() };
            match store.begin_read().range(colour, options).map(|mut answer| answer.records.pop()) {
                Ok(Some(record)) => println!("  at revision {revision}: {:?}", record.value),
                Ok(None) => println!("  at revision {revision}: no such key"),
                Err(error) => println!("  at revision {revision}: {error}"),
            }
        }
    }
    Ok(())
}
