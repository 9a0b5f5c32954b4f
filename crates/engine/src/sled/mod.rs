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

mod tree;
mod open;
mod txn;
mod merged_scan;
mod undo_log;
mod commit_file;
mod trial_copy;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::durable::{DataPath, DurableStore};
use crate::error::{EngineKind, Result};
use crate::interface::{Snapshot, WriteTxn};
use crate::options::Options;
use crate::writer_lock::WriterGuard;

use commit_file::CommitFile;
use open::{open_and_check, open_database};
use tree::{METADATA_KEY, TreeMetadata, storage_error};
use txn::{SledSnapshot, SledWriteTxn};
use undo_log::UndoLog;

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
