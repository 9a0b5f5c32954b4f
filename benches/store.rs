//! A backend of any era on any engine, in a separate directory, filled with records.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use clearlane_backend::{Backend, Config, Era, PreCommit};
use clearlane_engine::{Bucket, Engine, EngineKind, Options};
use tempfile::TempDir;

/// The payload of a write transaction in the benches: the newest revision.
pub type Revision = u64;

/// Number of records in each write transaction while a store is filled.
const FILL_BATCH: u64 = 1_000;

/// A store for one bench. Its directory is removed when the store is dropped.
#[derive(Debug)]
pub struct Store {
    /// The backend. It is declared first, so that it is closed before its directory is removed.
    pub backend: Box<dyn Backend<Revision>>,
    /// The engine of the backend.
    pub engine: Arc<dyn Engine>,
    _directory: TempDir,
}

impl Store {
    /// Creates an empty store in the system's directory for temporary files (`TMPDIR`).
    pub fn open(era: Era, engine: EngineKind, config: Config) -> Store {
        let directory = TempDir::new().unwrap_or_else(|error| fail(&error));
        let path = directory.path().join("store");
        let engine = clearlane_engine::open(engine, &path, Options::default());
        let engine = engine.unwrap_or_else(|error| fail(&error));
        let backend = era.open(Arc::clone(&engine), config, save_revision(), 0);
        let backend = backend.expect("an empty engine can be opened");
        Store { backend, engine, _directory: directory }
    }

    /// Puts and commits the records of revisions 1 to `count`, each with a value of `size` bytes.
    pub fn fill(&self, count: u64, size: usize) {
        let value = value(size);
        for first in (1..=count).step_by(FILL_BATCH as usize) {
            let last = (first + FILL_BATCH - 1).min(count);
            let mut tx = self.backend.begin_write().expect("a healthy store takes writes");
            for revision in first..=last {
                let put = tx.put(Bucket::Key, &record_key(revision), value.clone());
                put.expect("revisions rise");
            }
            drop(tx.end(last).expect("a healthy store takes writes"));
        }
        self.backend.commit().expect("a healthy store commits");
    }

    /// Puts the record of `revision` in a separate write transaction.
    pub fn put(&self, revision: u64, value: Bytes) {
        let mut tx = self.backend.begin_write().expect("a healthy store takes writes");
        tx.put(Bucket::Key, &record_key(revision), value).expect("revisions rise");
        drop(tx.end(revision).expect("a healthy store takes writes"));
    }
}

/// Returns a hook that saves the revision. etcd saves its consistent index in the same way with
/// every commit.
fn save_revision() -> PreCommit<Revision> {
    PreCommit::new(|revision: &Revision, put| {
        put(Bucket::Meta, b"consistent_index", &revision.to_be_bytes())
    })
}

/// Returns the key of a record: main revision, `_`, sub revision 0.
pub fn record_key(revision: u64) -> [u8; 17] {
    let mut key = [0; 17];
    key[..8].copy_from_slice(&revision.to_be_bytes());
    key[8] = b'_';
    key
}

/// Returns a value of `size` bytes, which repeat after 251 bytes.
pub fn value(size: usize) -> Bytes {
    (0..size).map(|position| (position * 31 % 251) as u8).collect()
}

/// Returns the directory for a bench's files: `target/NAME`. `target_tmp` is cargo's
/// `CARGO_TARGET_TMPDIR`, the only directory in `target` whose path cargo passes to a bench.
pub fn results_directory(target_tmp: &str, name: &str) -> PathBuf {
    let directory = Path::new(target_tmp).with_file_name(name);
    std::fs::create_dir_all(&directory).unwrap_or_else(|error| fail(&error));
    directory
}

/// Prints the error in one line, and ends the bench.
#[allow(clippy::print_stderr, reason = "a bench reports why it stops")]
pub fn fail(error: &dyn std::fmt::Display) -> ! {
    eprintln!("error: {error}");
    std::process::exit(2);
}
