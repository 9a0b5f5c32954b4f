//! The `sled` engine: a log-structured tree, and how to give it snapshots.
//!
//! sled 0.34 has one ordered map, atomic batches, and iterators that see whatever changes while
//! they run. It has no snapshots. This module makes them from what sled has, with two rules.
//!
//! *The writer keeps its changes to itself until it commits.* A write transaction is a map in
//! memory, laid over the tree for its own reads. A commit applies it as one atomic batch and
//! flushes. All ten buckets share one tree (the bucket is the first byte of the key), because a
//! batch is atomic within a tree only.
//!
//! *Before the batch is applied, the values that it replaces are put on record.* A snapshot is a
//! commit number S. It reads the tree, which may hold newer values, and then asks the record: the
//! value that the first commit after S replaced is what S saw ([`undo_log`]).
//!
//! # A worked example
//!
//! ```text
//!   commit            tree            record: (key, commit) → value before
//!   1  put a=1        a=1
//!   snapshot S=1
//!   2  put a=2 b=5    a=2 b=5         (a,2)→1  (b,2)→none
//!   3  del a          b=5             (a,2)→1  (a,3)→2  (b,2)→none
//!
//!   S reads a: tree says nothing; first record above 1 is (a,2)→1     ⇒ a=1
//!   S reads b: tree says 5;       first record above 1 is (b,2)→none  ⇒ no b
//!   S scans:   tree gives b=5; record gives a=1 and takes b away      ⇒ a=1
//! ```
//!
//! A scan goes in chunks: read a chunk from the tree, then lay the record over the stretch of
//! keys that the chunk covers. When the last snapshot older than commit 2 is dropped, (a,2) and
//! (b,2) are dropped with it.
//!
//! # What a snapshot costs
//!
//! Taking one is a counter. Holding one costs memory: the old value of every key that changes
//! while it is open. Records of bucket `key` are written once, so for them that is the keys alone,
//! until compaction deletes them.
//!
//! # Invariants
//!
//! * The record of a commit is complete before the tree changes, and readers ask the tree first:
//!   so no reader sees a change of a later commit, however the two interleave.
//! * One batch carries the records, the size in use and the commit's number.
//! * After every commit its number is also written to a file of our own ([`commit_file`]). A tree that
//!   comes back with a smaller number has lost an acknowledged commit, and is refused.
//! * sled repairs while it opens, so a store whose files are not, to the byte, as sled left them
//!   when it was closed is first opened as a copy ([`trial_copy`]); what cannot be opened stays as it was.
//!
//! # What it does not promise
//!
//! sled 0.34 has reports of damage after abrupt stops (sled #1533, #1166), and its author works on
//! a successor. Our crash test kills it hundreds of times and finds every acknowledged commit. But
//! sled's flush is no `fsync`: we sync its log ourselves at every commit, and cannot sync the files
//! under `blobs/`, in which it puts what is too large for the log. After a power cut, a commit with
//! large values may be gone. `docs/decisions/engine-sled.md` has the findings. sled also runs
//! threads of its own, so a simulation on this engine is not deterministic.

mod txn;
mod merged_scan;
mod undo_log;
mod commit_file;
mod trial_copy;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::bucket::Bucket;
use crate::catch_panic::catch_panic;
use crate::durable::{DataPath, DurableStore};
use crate::error::{EngineKind, Error, Result};
use crate::interface::{Snapshot, WriteTxn};
use crate::open::Options;
use crate::writer_lock::WriterGuard;

use commit_file::CommitFile;
use txn::{SledSnapshot, SledWriteTxn};
use undo_log::UndoLog;

/// Our own entry in the tree, behind all buckets: commit number and size in use.
const METADATA_KEY: &[u8] = &[0xff];

/// One sled directory.
pub(crate) struct SledStore {
    /// sled's default tree, and with it the whole of sled.
    database: sled::Db,
    undo_log: UndoLog,
    size_in_use: AtomicU64,
    /// After the database, so that it notes what the files are when sled has closed them.
    commit_file: CommitFile,
    /// Last, so that sled's files are closed when their home goes.
    data_path: DataPath,
}

/// What [`METADATA_KEY`] holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TreeMetadata {
    commit: u64,
    size_in_use: u64,
}

impl TreeMetadata {
    fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.commit.to_be_bytes());
        bytes[8..].copy_from_slice(&self.size_in_use.to_be_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<TreeMetadata> {
        let (commit, size_in_use) = bytes.split_at_checked(8)?;
        let number = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_be_bytes);
        Some(TreeMetadata { commit: number(commit)?, size_in_use: number(size_in_use)? })
    }
}

impl DurableStore for SledStore {
    const KIND: EngineKind = EngineKind::Sled;

    fn create(home: DataPath, options: &Options) -> Result<SledStore> {
        let database = open_database(home.path(), options)?;
        let account = TreeMetadata::default();
        database.insert(METADATA_KEY, &account.to_bytes()).map_err(storage_error)?;
        database.flush().map_err(storage_error)?;
        let witness = CommitFile::create(home.path())?;
        Ok(SledStore::new(database, account, witness, home))
    }

    fn open(home: DataPath, options: &Options) -> Result<SledStore> {
        let mut witness = CommitFile::open(home.path())?;
        witness.wait_for_release()?;
        if !witness.was_closed_cleanly() {
            trial_copy::check_copy(home.path(), &witness, options)?;
        }
        let (database, account) = open_and_check(home.path(), &witness, options)?;
        witness.mark_open(account.commit)?;
        Ok(SledStore::new(database, account, witness, home))
    }

    fn data_path(&self) -> &DataPath {
        &self.data_path
    }

    fn snapshot(self: &Arc<Self>) -> Result<Arc<dyn Snapshot>> {
        Ok(Arc::new(SledSnapshot::new(self)))
    }

    fn begin_write(self: &Arc<Self>, turn: WriterGuard) -> Result<Box<dyn WriteTxn>> {
        Ok(Box::new(SledWriteTxn::begin(self, turn)))
    }

    fn size_on_disk(&self) -> Result<u64> {
        self.database.size_on_disk().map_err(storage_error)
    }

    fn size_in_use(&self) -> u64 {
        self.size_in_use.load(Ordering::Acquire)
    }
}

impl SledStore {
    fn new(
        database: sled::Db,
        account: TreeMetadata,
        witness: CommitFile,
        home: DataPath,
    ) -> SledStore {
        let undo = UndoLog::new(account.commit);
        let size_in_use = AtomicU64::new(account.size_in_use);
        SledStore { database, undo_log: undo, size_in_use, commit_file: witness, data_path: home }
    }
}

impl Drop for SledStore {
    fn drop(&mut self) {
        if self.data_path.is_removed_on_drop() {
            self.commit_file.set_removed_on_drop();
        }
    }
}

// By hand: sled would print every record.
impl fmt::Debug for SledStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SledStore").field("data_path", &self.data_path).finish_non_exhaustive()
    }
}

/// Opens sled and checks that it has all that was acknowledged.
fn open_and_check(
    path: &Path,
    witness: &CommitFile,
    options: &Options,
) -> Result<(sled::Db, TreeMetadata)> {
    let database = open_database(path, options)?;
    let account = database.get(METADATA_KEY).map_err(storage_error)?;
    let account = account.and_then(|bytes| TreeMetadata::from_bytes(&bytes));
    let account = account.ok_or_else(|| corrupt(path, "our own entry is missing"))?;
    witness.check_commit(account.commit)?;
    Ok((database, account))
}

fn open_database(path: &Path, options: &Options) -> Result<sled::Db> {
    let config = sled::Config::new()
        .path(path)
        .cache_capacity(options.cache_bytes as u64)
        // We flush at every commit; a timer would only add writes in between.
        .flush_every_ms(None);
    match catch_panic(|| config.open()) {
        Ok(Ok(database)) => Ok(database),
        Ok(Err(sled::Error::Io(error))) if error.raw_os_error().is_some() => {
            Err(Error::Path { path: path.to_owned(), source: error })
        }
        Ok(Err(error)) => Err(corrupt(path, &one_line(&error.to_string()))),
        Err(panic) => Err(corrupt(path, &panic)),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn corrupt(path: &Path, detail: &str) -> Error {
    Error::Corrupt { path: path.to_owned(), detail: detail.to_owned() }
}

fn storage_error(error: sled::Error) -> Error {
    Error::Storage(one_line(&error.to_string()))
}

/// A bucket's key as the tree has it.
fn tree_key(bucket: Bucket, key: &[u8]) -> Bytes {
    let mut whole = Vec::with_capacity(1 + key.len());
    whole.push(bucket as u8);
    whole.extend_from_slice(key);
    whole.into()
}
