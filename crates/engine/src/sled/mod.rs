//! The `sled` engine: a log-structured tree, and how to give it snapshots, which sled 0.34 lacks.
//!
//! All buckets share one tree (the bucket is the key's first byte): a sled batch is atomic within
//! one. `docs/engine.md` has an example, `docs/decisions/engine-sled.md` what this engine cannot
//! promise.
//!
//! * A write transaction keeps its changes in memory until it commits: one atomic batch, and a
//!   flush.
//! * The values that a batch replaces are in the [`undo_log`] before the tree changes, and a reader
//!   asks the tree first: so it sees no change of a later commit, however the two interleave.
//! * One batch carries the records, the size in use and the commit's number.
//! * After a commit its number is also in the [`commit_file`]. A tree that comes back with a
//!   smaller number has lost an acknowledged commit, and is refused.
//! * sled repairs while it opens, so a store that is not, to the byte, as sled left it when it was
//!   closed is first opened as a copy (`open.rs`); what cannot be opened stays as it was.

mod tree;
mod open;
mod txn;
mod merged_scan;
mod undo_log;
mod commit_file;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::durable::{DataPath, DurableStore};
use crate::error::{EngineKind, Result};
use crate::interface::{Snapshot, WriteTxn};
use crate::options::Options;
use crate::writer_lock::WriterGuard;

use commit_file::CommitFile;
use open::{check_copy, open_and_check, open_database};
use tree::{METADATA_KEY, TreeMetadata, storage_error};
use txn::{SledSnapshot, SledWriteTxn};
use undo_log::UndoLog;

pub(crate) struct SledStore {
    /// sled's default tree, and with it the whole of sled.
    database: sled::Db,
    undo_log: UndoLog,
    size_in_use: AtomicU64,
    /// After the database, so that it notes what the files are when sled has closed them.
    commit_file: CommitFile,
    /// Last, so that sled's files are closed when their path goes.
    data_path: DataPath,
}

impl DurableStore for SledStore {
    const KIND: EngineKind = EngineKind::Sled;

    fn create(data_path: DataPath, options: &Options) -> Result<SledStore> {
        let database = open_database(&data_path.path, options)?;
        let metadata = TreeMetadata::default();
        database.insert(METADATA_KEY, &metadata.to_bytes()).map_err(storage_error)?;
        database.flush().map_err(storage_error)?;
        let commit_file = CommitFile::create(&data_path.path)?;
        Ok(SledStore::new(database, metadata, commit_file, data_path))
    }

    fn open(data_path: DataPath, options: &Options) -> Result<SledStore> {
        let mut commit_file = CommitFile::open(&data_path.path)?;
        commit_file.wait_for_release()?;
        if !commit_file.was_closed_cleanly() {
            check_copy(&data_path.path, &commit_file, options)?;
        }
        let (database, metadata) = open_and_check(&data_path.path, &commit_file, options)?;
        commit_file.mark_open(metadata.commit)?;
        Ok(SledStore::new(database, metadata, commit_file, data_path))
    }

    fn data_path(&self) -> &DataPath {
        &self.data_path
    }

    fn snapshot(self: &Arc<Self>) -> Result<Arc<dyn Snapshot>> {
        Ok(Arc::new(SledSnapshot::new(self)))
    }

    fn begin_write(self: &Arc<Self>, guard: WriterGuard) -> Result<Box<dyn WriteTxn>> {
        Ok(Box::new(SledWriteTxn::begin(self, guard)))
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
        metadata: TreeMetadata,
        commit_file: CommitFile,
        data_path: DataPath,
    ) -> SledStore {
        let undo_log = UndoLog::new(metadata.commit);
        let size_in_use = AtomicU64::new(metadata.size_in_use);
        SledStore { database, undo_log, size_in_use, commit_file, data_path }
    }
}

impl Drop for SledStore {
    fn drop(&mut self) {
        self.commit_file.is_removed_on_drop = self.data_path.is_removed_on_drop();
    }
}

// By hand: sled would print every record.
impl fmt::Debug for SledStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SledStore").field("data_path", &self.data_path).finish_non_exhaustive()
    }
}
