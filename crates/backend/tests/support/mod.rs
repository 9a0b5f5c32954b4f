//! What the backend's tests share: a plain model, and words for operations.

// Each test binary uses its own part of this module.
#![allow(dead_code, reason = "shared by several test binaries, none of which uses all of it")]

pub(crate) mod model;
pub(crate) mod words;

use std::sync::Arc;

use clearlane_backend::{Backend, Config, Design, PreCommit};
use clearlane_engine::memory::MemoryEngine;
use clearlane_engine::{Bucket, Engine};

/// The payload of the tests: the number of the last entry applied.
pub(crate) type Entry = u64;

/// The hook of the tests: saves the entry's number, as etcd saves its consistent index.
pub(crate) fn save_consistent_index() -> PreCommit<Entry> {
    PreCommit::new(|entry: &Entry, put| {
        put(Bucket::Meta, b"consistent_index", entry.to_string().as_bytes())
    })
}

/// A fresh engine that keeps everything in memory.
pub(crate) fn memory_engine() -> Arc<dyn Engine> {
    Arc::new(MemoryEngine::new())
}

/// A backend of a design on an engine, with the tests' hook.
pub(crate) fn open(design: Design, engine: Arc<dyn Engine>, config: Config) -> Box<dyn Backend<Entry>> {
    design.open(engine, config, save_consistent_index(), 0).unwrap()
}
