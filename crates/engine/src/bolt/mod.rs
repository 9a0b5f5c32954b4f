//! The `bolt` engine: reads and writes bbolt's file format, byte for byte, in code that is meant to
//! be easy to read.
//!
//! The file contains copy-on-write B+trees. A commit writes the changed pages to free pages of the
//! file. Then it writes one of the two meta pages, which makes the new pages the newest state. A
//! snapshot keeps the pages that it can reach. Each bucket has its own tree, and a record in the
//! tree of buckets leads to this tree.
//!
//! ```text
//!   meta 0   meta 1   tree of buckets ─┬─▶ tree of "key"    ─▶ leaves with records
//!   (the meta page with the larger     ├─▶ tree of "lease"
//!    txid is the newest state)         └─▶ …
//! ```
//!
//! * A page that a snapshot or the newest state can reach is never written.
//! * A commit is on disk before it returns. The order is: pages, sync, meta page, sync.
//! * Every page that is read must have the checksum with which it was written. If the state has no
//!   valid checksum table, for example because another program wrote it, the page must have the
//!   checksum that it had when the file was opened. Otherwise the read fails with
//!   [`Error::Corrupt`](crate::Error::Corrupt). etcd ignores these [`checksums`].
//! * bbolt can read and write the file, and this engine can read the result.
//!
//! Read the modules in this order, from the bottom up: [`page`], [`meta`], [`file`](mod@file),
//! [`pager`], [`tree`], [`node`], [`commit`]. See `docs/bolt.md`.

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
        let file = Box::new(DiskFile::open(&path.get(), true)?.with_syncs(options.syncs));
        let store = BoltStore::create_on(file, open::PAGE_SIZE, path.clone(), options)?;
        Ok(store.at_path(data_path))
    }

    fn open(data_path: DataPath, options: &Options) -> Result<BoltStore> {
        let path = data_path.shared_path();
        let file = Box::new(DiskFile::open(&path.get(), false)?.with_syncs(options.syncs));
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

    /// Counts free pages, and pages that become free when snapshots are closed. Free space inside
    /// partly used pages is not counted.
    fn free_bytes(&self) -> Result<u64> {
        let (free, pending) = self.writer().freelist.counts();
        Ok((free + pending) * self.pager.page_size() as u64)
    }

    fn opening_notes(&self) -> &[OpeningNote] {
        &self.notes
    }
}
