//! Helpers of the backend's tests: a plain model, operations written as words, and engines with
//! hooks.

// Each test binary uses only a part of this module.
#![allow(dead_code, reason = "shared by several test binaries, none of which uses all of it")]

pub(crate) mod batches;
pub(crate) mod contents;
pub(crate) mod hooked_engine;
pub(crate) mod model;
pub(crate) mod blocked_threads;
pub(crate) mod words;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clearlane_backend::{Backend, Config, Era, PreCommit};
use clearlane_engine::memory::MemoryEngine;
use clearlane_engine::{Bucket, Engine};

/// The payload in the tests: the number of the last applied entry.
pub(crate) type Entry = u64;

/// Returns the pre-commit hook of the tests. It saves the entry's number, as etcd saves its
/// consistent index.
pub(crate) fn save_consistent_index() -> PreCommit<Entry> {
    PreCommit::new(|entry: &Entry, put| {
        put(Bucket::Meta, b"consistent_index", entry.to_string().as_bytes())
    })
}

pub(crate) fn memory_engine() -> Arc<dyn Engine> {
    Arc::new(MemoryEngine::new())
}

/// Opens a backend of an era on an engine, with the tests' hook. Its payload is the entry that the
/// engine's last commit saved.
pub(crate) fn open(era: Era, engine: Arc<dyn Engine>, config: Config) -> Box<dyn Backend<Entry>> {
    let entry = contents::saved_entry(&contents::durable(&*engine));
    era.open(engine, config, save_consistent_index(), entry).unwrap()
}

/// Prints the name of a run if a test fails during the run.
pub(crate) struct OnPanic(pub(crate) String);

impl Drop for OnPanic {
    #[allow(clippy::print_stderr, reason = "shown by the harness where the test failed")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed: {}", self.0);
        }
    }
}

/// Sets the flag when it is dropped, even during a panic, so that the other threads stop.
pub(crate) struct SetOnDrop<'f>(pub(crate) &'f AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
