//! A backend of any era on any engine, in a directory of its own, filled with records.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use clearlane_backend::{Backend, Config, Era, PreCommit};
use clearlane_engine::{Bucket, Engine, EngineKind, Options};
use tempfile::TempDir;

/// The payload of the benches: the newest revision.
pub type Revision = u64;

/// Records that are put in one write transaction while a store is filled.
const FILL_BATCH: u64 = 1_000;

/// A store for one bench. Its directory goes away with it.
#[derive(Debug)]
pub struct Store {
    /// The backend. Declared first, so that it is closed before its directory is removed.
    pub backend: Box<dyn Backend<Revision>>,
    /// The engine below it.
    pub engine: Arc<dyn Engine>,
    _directory: TempDir,
}

impl Store {
    /// An empty store in the system's directory for temporary files (`TMPDIR`).
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

    /// One put of the record of `revision`, in a write transaction of its own.
    pub fn put(&self, revision: u64, value: Bytes) {
        let mut tx = self.backend.begin_write().expect("a healthy store takes writes");
        tx.put(Bucket::Key, &record_key(revision), value).expect("revisions rise");
        drop(tx.end(revision).expect("a healthy store takes writes"));
    }
}

/// The hook saves the revision, as etcd saves its consistent index with every commit.
fn save_revision() -> PreCommit<Revision> {
    PreCommit::new(|revision: &Revision, put| {
        put(Bucket::Meta, b"consistent_index", &revision.to_be_bytes())
    })
}

/// The key of a record: main revision, `_`, sub revision 0.
pub fn record_key(revision: u64) -> [u8; 17] {
    let mut key = [0; 17];
    key[..8].copy_from_slice(&revision.to_be_bytes());
    key[8] = b'_';
    key
}

/// A value of `size` bytes that does not compress to nothing.
pub fn value(size: usize) -> Bytes {
    (0..size).map(|position| (position * 31 % 251) as u8).collect()
}

/// Where a bench may leave files: `target/NAME`. `target_tmp` is cargo's `CARGO_TARGET_TMPDIR`, the
/// one directory in `target` whose path cargo gives to a bench.
pub fn results_directory(target_tmp: &str, name: &str) -> PathBuf {
    let directory = Path::new(target_tmp).with_file_name(name);
    std::fs::create_dir_all(&directory).unwrap_or_else(|error| fail(&error));
    directory
}

/// Ends the bench with one line.
#[allow(clippy::print_stderr, reason = "a bench reports why it stops")]
pub fn fail(error: &dyn std::fmt::Display) -> ! {
    eprintln!("error: {error}");
    std::process::exit(2);
}
