//! Looking into a bolt file: ours, bbolt's or etcd's, without changing it.
//!
//! * [`BoltFile`]: the meta pages, and the one that counts.
//! * [`BoltFile::page`]: one page, as far as it can be read.
//! * [`BoltFile::survey`]: every page and bucket, and everything that is wrong.
//! * [`BoltFile::scan`]: the records of a bucket in order.
//! * [`BoltFile::compact`]: a copy without what is free.
//! * As a [`Snapshot`](crate::Snapshot): the records of etcd's buckets.
//!
//! The lock of the file is shared with others that only read; a file that is being written is
//! [`Error::Locked`]. Nothing is written, and nothing is mended.

mod page_view;
mod survey;
mod scan;
mod snapshot;
mod compact;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use super::checksums::ChecksumTable;
use super::file::{DiskFile, StoreFile};
use super::open::{LoadError, find_page_size, read_meta, read_table};
use super::page::PageRun;
use super::pager::Pager;
use crate::directory::find_data;
use crate::error::{EngineKind, Error, Result};
use crate::options::Options;

pub use super::checksums::TableRoot;
pub use super::meta::{Meta, MetaPage, NO_FREELIST};
pub use super::page::PageId;
pub use page_view::{
    BranchItem, BucketValue, ElementsView, LeafItem, PageBody, PageKind, PageView,
};
pub use scan::Record;
pub use survey::{BucketEntry, PageEntry, Problem, Survey, TreeStats};

/// An open file.
#[derive(Debug)]
pub struct BoltFile {
    path: PathBuf,
    pager: Pager,
    /// The two meta pages, or why they cannot be used.
    metas: [std::result::Result<MetaPage, String>; 2],
    bytes: u64,
    checksums: Checksums,
    /// Empty if there is none, or it is damaged.
    table: ChecksumTable,
}

/// What is known of the checksums of the pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// They are there, written with the newest state.
    Present,
    /// The meta pages have none, as in a file that bbolt has written.
    Missing,
    /// Those that are there belong to the state before: another program has written the newest.
    Old,
    /// They cannot be read, for this reason.
    Damaged(String),
}

/// The file of a store, by the store's directory. The store may be open.
pub fn of_store(dir: &Path) -> Result<PathBuf> {
    find_data(dir, EngineKind::Bolt)
}

impl BoltFile {
    /// Opens a file. It may be damaged: only a file that cannot be read is refused.
    pub fn open(path: &Path) -> Result<BoltFile> {
        BoltFile::open_on(Box::new(DiskFile::open_to_read(path)?), path)
    }

    pub(super) fn open_on(file: Box<dyn StoreFile>, path: &Path) -> Result<BoltFile> {
        let bytes = file.len().map_err(Error::at(path))?;
        let page_size = find_page_size(&*file).map_err(Error::at(path))?;
        let read = |place| read_meta(&*file, place, page_size).map_err(Error::at(path));
        let metas = [read(0)?, read(1)?];
        let pager = Pager::new(file, page_size, path, &Options::default());
        let table = ChecksumTable::default();
        let checksums = Checksums::Missing;
        let path = path.to_owned();
        let mut file = BoltFile { path, pager, metas, bytes, checksums, table };
        file.load_checksums();
        Ok(file)
    }

    fn load_checksums(&mut self) {
        let has_table = |meta: &MetaPage| meta.table.is_some();
        let root = self.newest().ok().and_then(|newest| newest.table);
        let loaded = root.map(|root| read_table(&self.pager, self.pages(), root));
        self.checksums = match loaded {
            Some(Ok((table, sums))) => {
                self.pager.replace_sums(sums);
                self.table = table;
                self.checksums = Checksums::Present;
                return;
            }
            Some(Err(LoadError::Table(damage))) => {
                Checksums::Damaged(format!("page {}: {}", damage.page, damage.reason))
            }
            Some(Err(LoadError::File(error))) => Checksums::Damaged(error.to_string()),
            None if self.metas.iter().flatten().any(has_table) => Checksums::Old,
            None => Checksums::Missing,
        };
        self.pager.ignore_sums();
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What the meta pages say, or 4,096 if neither can be used.
    pub fn page_size(&self) -> usize {
        self.pager.page_size()
    }

    /// Each meta page, or why it cannot be used.
    pub fn metas(&self) -> &[std::result::Result<MetaPage, String>; 2] {
        &self.metas
    }

    /// The meta page that counts.
    pub fn newest(&self) -> Result<&MetaPage> {
        let newest = self.metas.iter().flatten().max_by_key(|page| page.rank());
        newest.ok_or_else(|| {
            let reason = |place: usize| match &self.metas[place] {
                Ok(_) => unreachable!("it would be the newest"),
                Err(reason) => reason,
            };
            let detail = format!("page 0: {}; page 1: {}", reason(0), reason(1));
            Error::corrupt(self.path(), format!("no meta page is valid: {detail}"))
        })
    }

    /// Whether bbolt, and so etcd or its tools, made the newest commit.
    pub fn is_of_bbolt(&self) -> bool {
        self.newest().is_ok_and(|newest| newest.is_of_bbolt)
    }

    /// How many pages there are to be looked at: those below the high-water mark that the file is
    /// long enough for. If no meta page is valid, all of the file.
    pub fn pages(&self) -> PageId {
        let room = self.bytes / self.page_size() as u64;
        match self.newest() {
            Ok(newest) => newest.meta.high_water.min(room),
            Err(_) => room,
        }
    }

    pub fn checksums(&self) -> &Checksums {
        &self.checksums
    }

    fn has_sums(&self) -> bool {
        self.checksums == Checksums::Present
    }

    /// The root of the checksum table that is valid.
    fn table_root(&self) -> Option<PageRun> {
        self.table.root()
    }
}
