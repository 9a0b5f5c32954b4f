//! The `bolt` engine: bbolt's file, to the byte, written to be read.
//!
//! A copy-on-write B+tree in one file. A commit writes the pages that it changes to free places and
//! makes them the newest state with one of the two meta pages. A snapshot keeps the pages that it
//! can reach. Each bucket is a tree of its own, and a record in the tree of the buckets.
//!
//! * A page that a snapshot or the newest state can reach is never written.
//! * A commit is on disk before it returns: pages, sync, meta page, sync.
//! * Every page that is read has the sum that it was written with, or the read is
//!   [`Error::Corrupt`](crate::Error::Corrupt). etcd ignores these [`checksums`].
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

use std::sync::Arc;

use crate::durable::{DataPath, DurableStore};
use crate::error::{EngineKind, Result};
use crate::interface::{OpeningNote, Snapshot, WriteTxn};
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
        let path = data_path.shared_path();
        let file = Box::new(DiskFile::open(&path.get(), true)?);
        let store = BoltStore::create_on(file, open::PAGE_SIZE, path.clone(), options)?;
        Ok(store.at_path(data_path))
    }

    fn open(data_path: DataPath, options: &Options) -> Result<BoltStore> {
        let path = data_path.shared_path();
        let file = Box::new(DiskFile::open(&path.get(), false)?);
        let store = BoltStore::open_on(file, path.clone(), options)?;
        Ok(store.at_path(data_path))
    }

    fn data_path(&self) -> &DataPath {
        self.data_path.as_ref().expect("a store that an engine has opened has a path")
    }

    fn snapshot(self: &Arc<Self>) -> Result<Arc<dyn Snapshot>> {
        Ok(Arc::new(BoltSnapshot::new(self)))
    }

    fn begin_write(self: &Arc<Self>, guard: WriterGuard) -> Result<Box<dyn WriteTxn>> {
        Ok(Box::new(BoltWriteTxn::new(self, guard)))
    }

    fn size_on_disk(&self) -> Result<u64> {
        self.pager.size_on_disk()
    }

    fn size_in_use(&self) -> u64 {
        self.newest().size_in_use
    }

    fn opening_notes(&self) -> &[OpeningNote] {
        &self.notes
    }
}
