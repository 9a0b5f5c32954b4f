//! The `bolt` engine: bbolt's file, to the byte, written to be read.
//!
//! A copy-on-write B+tree in one file. A commit writes the pages that it changes to free places and
//! makes them the newest state with one of the two meta pages. A snapshot keeps the pages that it
//! can reach. Each bucket is a tree of its own, and a record in the tree of the buckets.
//!
//! * A page that a snapshot or the newest state can reach is never written.
//! * A commit is on disk before it returns: pages, sync, meta page, sync.
//! * Every page that is read has the sum that it was written with, or the read is
//!   [`Error::Corrupt`]. etcd ignores these [`checksums`].
//! * bbolt reads and writes the file, and what it has written is read back.
//!
//! From the bottom: [`page`], [`meta`], [`file`](mod@file), [`pager`], [`tree`], [`node`],
//! [`commit`]. See `docs/bolt.md`.

mod page;
mod meta;
mod checksums;
mod file;
mod page_cache;
mod freelist;
mod pager;
mod search;
mod node;
mod tree;
mod walk;
mod store;
mod snapshot;
mod commit;
mod txn;
mod open;
mod bulk;
mod image;
pub mod inspect;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
#[cfg(test)]
mod simulated_disk;
#[cfg(test)]
mod simulated_file;
#[cfg(test)]
mod power_cut;
#[cfg(test)]
mod damage;
#[cfg(test)]
mod trees;

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use crate::durable::{DataPath, DurableStore};
use crate::error::{EngineKind, Error, Result};
use crate::interface::{Snapshot, WriteTxn};
use crate::options::Options;
use crate::writer_lock::WriterGuard;

use file::DiskFile;
pub use image::Image;
use snapshot::BoltSnapshot;
pub(crate) use store::BoltStore;
use txn::BoltWriteTxn;

impl DurableStore for BoltStore {
    const KIND: EngineKind = EngineKind::Bolt;

    fn create(data_path: DataPath, options: &Options) -> Result<BoltStore> {
        let file = Box::new(DiskFile::open(&data_path.path, true)?);
        let store = BoltStore::create_on(file, open::PAGE_SIZE, &data_path.path, options)?;
        Ok(store.in_directory(data_path))
    }

    fn open(data_path: DataPath, options: &Options) -> Result<BoltStore> {
        let file = Box::new(DiskFile::open(&data_path.path, false)?);
        let store = BoltStore::open_on(file, &data_path.path, options)?;
        Ok(store.in_directory(data_path))
    }

    fn data_path(&self) -> &DataPath {
        self.data_path.as_ref().expect("a store that belongs to a directory has a path")
    }

    fn snapshot(self: &Arc<Self>) -> Result<Arc<dyn Snapshot>> {
        Ok(Arc::new(BoltSnapshot::new(self)))
    }

    fn begin_write(self: &Arc<Self>, guard: WriterGuard) -> Result<Box<dyn WriteTxn>> {
        Ok(Box::new(BoltWriteTxn::new(self, guard)))
    }

    fn size_on_disk(&self) -> Result<u64> {
        // The file grows in steps; what was never written takes no blocks.
        let path = self.pager.path();
        let found = std::fs::metadata(path).map_err(Error::at(path))?;
        Ok(found.len().min(found.blocks() * 512))
    }

    fn size_in_use(&self) -> u64 {
        self.newest().size_in_use
    }

    fn opening_notes(&self) -> &[String] {
        &self.notes
    }
}
