//! The `redb` engine, the default: a copy-on-write B+tree in one file, with one writer, as bbolt.
//!
//! A commit copies the changed leaves and the branches above them, and makes the new root valid by
//! writing one of two slots in the file's header. A snapshot keeps its root's pages, so the file
//! grows while one is held. Each bucket is a table; our own table `clearlane` keeps
//! [`size_in_use`](crate::Engine::size_in_use), written in the transaction whose records it counts.
//!
//! * A commit is synced before it returns (redb's `Durability::Immediate`).
//! * A file that redb refuses, or whose tables are not ours, is left as it was: see
//!   [`deferred_backend`](mod@deferred_backend).
//! * All ten tables exist from the store's first commit on.
//!
//! See `docs/engine.md` and `docs/decisions/engine-redb-quick-repair.md`.

/// The locks of a storage backend are those of the one inside.
macro_rules! forward_locks {
    ($($inner:ident).+) => {
        forward_locks!(@ try_lock_range, bool, $($inner).+);
        forward_locks!(@ try_lock_shared_range, bool, $($inner).+);
        forward_locks!(@ lock_range, (), $($inner).+);
        forward_locks!(@ lock_shared_range, (), $($inner).+);
        forward_locks!(@ unlock_range, (), $($inner).+);
        forward_locks!(@ query_lock_range, bool, $($inner).+);
    };
    (@ $name:ident, $outcome:ty, $($inner:ident).+) => {
        fn $name(
            &self,
            from: std::ops::Bound<u64>,
            to: std::ops::Bound<u64>,
        ) -> Result<$outcome, redb::BackendError> {
            self.$($inner).+.$name(from, to)
        }
    };
}

mod deferred_backend;
mod nowait_file;
mod snapshot;
mod write;
#[cfg(test)]
pub(crate) mod simulated_disk;
#[cfg(test)]
mod power_cut;

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redb::{
    Database, DatabaseError, ReadableDatabase, StorageBackend, StorageError, TableDefinition,
};

use crate::bucket::Bucket;
use crate::catch_panic::catch_panic;
use crate::durable::{DataPath, DurableStore};
use crate::error::{EngineKind, Error, Result};
use crate::interface::{Snapshot, WriteTxn};
use crate::options::Options;
use crate::writer_lock::WriterGuard;

use deferred_backend::DeferredBackend;
use nowait_file::NowaitFile;
use snapshot::RedbSnapshot;
use write::RedbWriteTxn;

type RecordTableDefinition = TableDefinition<'static, &'static [u8], &'static [u8]>;

/// Our own table, and its one number.
const METADATA_TABLE: TableDefinition<'static, &'static str, u64> =
    TableDefinition::new("clearlane");
const SIZE_IN_USE: &str = "size_in_use";

const fn table_of(bucket: Bucket) -> RecordTableDefinition {
    TableDefinition::new(bucket.name())
}

#[derive(Debug)]
pub(crate) struct RedbStore {
    database: Database,
    /// As of the last commit; the durable copy is in [`METADATA_TABLE`].
    size_in_use: AtomicU64,
    quick_repair: bool,
    path: PathBuf,
    /// Last, so that the file is closed when its path goes. Absent on a simulated disk.
    data_path: Option<DataPath>,
}

impl RedbStore {
    pub(crate) fn create_on(
        disk: impl StorageBackend,
        path: &Path,
        options: &Options,
    ) -> Result<RedbStore> {
        let database =
            builder(options).create_with_backend(disk).map_err(|e| open_error(path, e))?;
        let make_tables = || -> std::result::Result<(), redb::Error> {
            let mut txn = database.begin_write()?;
            txn.set_quick_repair(options.quick_repair);
            for bucket in Bucket::ALL {
                txn.open_table(table_of(bucket))?;
            }
            txn.open_table(METADATA_TABLE)?.insert(SIZE_IN_USE, 0)?;
            Ok(txn.commit()?)
        };
        make_tables().map_err(storage_error)?;
        Ok(RedbStore::new(database, 0, path, options))
    }

    pub(crate) fn open_on(
        disk: impl StorageBackend,
        path: &Path,
        options: &Options,
    ) -> Result<RedbStore> {
        let is_empty = disk.len().map_err(Error::at(path))? == 0;
        if is_empty {
            // redb would take an empty file for a new one.
            return Err(Error::corrupt(path, "the file is empty"));
        }
        let disk = DeferredBackend::new(disk);
        let opened = catch_panic(|| open_and_check(disk.clone(), path, options));
        let (database, size_in_use) =
            opened.unwrap_or_else(|panic| Err(Error::corrupt(path, panic)))?;
        disk.release().map_err(Error::at(path))?;
        Ok(RedbStore::new(database, size_in_use, path, options))
    }

    fn new(database: Database, size_in_use: u64, path: &Path, options: &Options) -> RedbStore {
        let (size_in_use, quick_repair) = (AtomicU64::new(size_in_use), options.quick_repair);
        RedbStore { database, size_in_use, quick_repair, path: path.to_owned(), data_path: None }
    }
}

impl DurableStore for RedbStore {
    const KIND: EngineKind = EngineKind::Redb;

    fn create(data_path: DataPath, options: &Options) -> Result<RedbStore> {
        let disk = open_file(&data_path.path, true, options)?;
        let store = RedbStore::create_on(disk, &data_path.path, options)?;
        Ok(RedbStore { data_path: Some(data_path), ..store })
    }

    fn open(data_path: DataPath, options: &Options) -> Result<RedbStore> {
        let disk = open_file(&data_path.path, false, options)?;
        let store = RedbStore::open_on(disk, &data_path.path, options)?;
        Ok(RedbStore { data_path: Some(data_path), ..store })
    }

    fn data_path(&self) -> &DataPath {
        self.data_path.as_ref().expect("a store that belongs to a directory has a path")
    }

    fn snapshot(self: &Arc<Self>) -> Result<Arc<dyn Snapshot>> {
        Ok(Arc::new(RedbSnapshot::new(self)?))
    }

    fn begin_write(self: &Arc<Self>, guard: WriterGuard) -> Result<Box<dyn WriteTxn>> {
        Ok(Box::new(RedbWriteTxn::begin(self, guard)?))
    }

    fn size_on_disk(&self) -> Result<u64> {
        // redb doubles the file when it is full; what was never written takes no blocks.
        let found = std::fs::metadata(&self.path).map_err(Error::at(&self.path))?;
        Ok(found.len().min(found.blocks() * 512))
    }

    fn size_in_use(&self) -> u64 {
        self.size_in_use.load(Ordering::Acquire)
    }
}

fn builder(options: &Options) -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(options.cache_bytes);
    builder
}

fn open_file(path: &Path, new: bool, options: &Options) -> Result<NowaitFile> {
    let file = OpenOptions::new().read(true).write(true).create_new(new).open(path);
    match file {
        Ok(file) => {
            NowaitFile::new(file, options.sync_bytes).map_err(|error| open_error(path, error))
        }
        // The marker names this file.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(Error::corrupt(path, "the file is missing"))
        }
        Err(source) => Err(Error::at(path)(source)),
    }
}

fn open_and_check(
    disk: impl StorageBackend,
    path: &Path,
    options: &Options,
) -> Result<(Database, u64)> {
    let database = builder(options).create_with_backend(disk).map_err(|e| open_error(path, e))?;
    let size_in_use = check_tables(&database).map_err(|error| match error {
        redb::Error::Io(source) => Error::at(path)(source),
        other => Error::corrupt(path, other.to_string()),
    })?;
    Ok((database, size_in_use))
}

/// Returns the size in use.
fn check_tables(database: &Database) -> std::result::Result<u64, redb::Error> {
    let txn = database.begin_read()?;
    for bucket in Bucket::ALL {
        txn.open_table(table_of(bucket))?;
    }
    let size = txn.open_table(METADATA_TABLE)?.get(SIZE_IN_USE)?;
    let missing = || redb::Error::Corrupted("the size in use is not recorded".to_owned());
    size.map(|size| size.value()).ok_or_else(missing)
}

fn open_error(path: &Path, error: DatabaseError) -> Error {
    match error {
        DatabaseError::DatabaseAlreadyOpen => Error::Locked { path: path.to_owned() },
        // From the system and not from what redb has read.
        DatabaseError::Storage(StorageError::Io(source)) if source.raw_os_error().is_some() => {
            Error::at(path)(source)
        }
        DatabaseError::Storage(StorageError::Io(other)) => Error::corrupt(path, other.to_string()),
        DatabaseError::Storage(StorageError::Corrupted(detail)) => Error::corrupt(path, detail),
        other => Error::corrupt(path, other.to_string()),
    }
}

fn storage_error(error: impl Into<redb::Error>) -> Error {
    Error::Storage(error.into().to_string())
}
