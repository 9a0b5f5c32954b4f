//! The `sled` engine: a log-structured tree, with snapshots that we add because sled 0.34 has none.
//!
//! All buckets share one tree, because a sled batch is atomic only within one tree. The first byte
//! of a key is its bucket. A batch contains the changes of a commit, the commit's number and the
//! size in use. `docs/engine.md` shows an example, and `docs/decisions/engine-sled.md` lists the
//! guarantees that this engine cannot give.

mod files;
mod txn;
mod undo_log;

use std::fmt;
use std::sync::Arc;

use crate::bucket::Bucket;
use crate::durable::{DataPath, DurableStore};
use crate::error::{EngineKind, Error, Result, one_line};
use crate::interface::{Snapshot, WriteTxn};
use crate::options::Options;
use crate::writer_lock::WriterGuard;

use files::{CommitFile, open_database};
use txn::{SledSnapshot, SledWriteTxn};
use undo_log::{Overlay, UndoLog};

pub(crate) struct SledStore {
    /// sled's database. We use only its default tree, which contains all records.
    database: sled::Db,
    undo_log: UndoLog,
    /// Our file with the number of the last commit. The field is declared after the database, so
    /// that it is dropped later and waits until sled has closed its files.
    commit_file: CommitFile,
    /// The path of the store. The field is declared last, so that sled's files are closed before
    /// their directory is removed.
    data_path: DataPath,
}

impl DurableStore for SledStore {
    const KIND: EngineKind = EngineKind::Sled;

    fn create(data_path: DataPath, options: &Options) -> Result<SledStore> {
        let database = open_database(&data_path.path(), &data_path.path(), options)?;
        database.flush().map_err(storage_error)?;
        let commit_file = CommitFile::create(&data_path.path())?;
        Ok(SledStore { database, undo_log: UndoLog::default(), commit_file, data_path })
    }

    fn open(data_path: DataPath, options: &Options) -> Result<SledStore> {
        let commit_file = CommitFile::open(&data_path.path())?;
        let (database, metadata) = commit_file.open_database(options)?;
        Ok(SledStore { database, undo_log: UndoLog::new(metadata), commit_file, data_path })
    }

    fn data_path(&self) -> &DataPath {
        &self.data_path
    }

    fn snapshot(self: &Arc<Self>) -> Result<Arc<dyn Snapshot>> {
        let (commit, store) = (self.undo_log.open_snapshot(), Arc::clone(self));
        Ok(Arc::new(SledSnapshot { commit, store }))
    }

    fn begin_write(self: &Arc<Self>, guard: WriterGuard) -> Result<Box<dyn WriteTxn>> {
        let commit = self.undo_log.committed().commit;
        let changes = Overlay { commit, ..Overlay::default() };
        Ok(Box::new(SledWriteTxn { changes, store: Arc::clone(self), guard }))
    }

    fn size_on_disk(&self) -> Result<u64> {
        self.database.size_on_disk().map_err(storage_error)
    }

    fn size_in_use(&self) -> u64 {
        self.undo_log.committed().size_in_use
    }
}

// A derived implementation would print every record of sled's tree.
impl fmt::Debug for SledStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SledStore").field("data_path", &self.data_path).finish_non_exhaustive()
    }
}

/// The key of our own entry in the tree. It is larger than the keys of all buckets.
const METADATA_KEY: &[u8] = &[0xff];

#[derive(Clone, Copy, Debug, Default)]
struct TreeMetadata {
    /// The number of the last commit.
    commit: u64,
    size_in_use: u64,
}

impl TreeMetadata {
    fn to_bytes(self) -> sled::IVec {
        [self.commit.to_be_bytes(), self.size_in_use.to_be_bytes()].concat().into()
    }

    fn from_bytes(bytes: &[u8]) -> Option<TreeMetadata> {
        let number = |from: usize| Some(u64::from_be_bytes(*bytes.get(from..)?.first_chunk()?));
        Some(TreeMetadata { commit: number(0)?, size_in_use: number(8)? })
    }
}

fn tree_key(bucket: Bucket, key: &[u8]) -> sled::IVec {
    [&[bucket as u8][..], key].concat().into()
}

/// Returns the smallest tree key that is larger than all keys of the bucket.
fn after_bucket(bucket: Bucket) -> sled::IVec {
    sled::IVec::from(&[bucket as u8 + 1])
}

fn storage_error(error: sled::Error) -> Error {
    Error::Storage(one_line(&error.to_string()))
}
