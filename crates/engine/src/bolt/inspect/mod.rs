//! Reads a bolt file without changing it. The file may have been written by us, by bbolt or by
//! etcd.
//!
//! * [`BoltFile`]: the two meta pages, and which meta page has the current state.
//! * [`BoltFile::page`]: one page, as far as it is readable.
//! * [`BoltFile::survey`]: every page and bucket, and all damage.
//! * [`BoltFile::scan`]: the records of a bucket in order.
//! * As a [`Snapshot`](crate::Snapshot): the records of etcd's buckets.
//!
//! Several readers can lock the file at the same time. Opening a file that a store has open for
//! writing fails with [`Error::Locked`]. Nothing is written and nothing is repaired.

mod page_view;
mod survey;
mod scan;
mod snapshot;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use super::checksums::ChecksumTable;
use super::file::{DiskFile, StoreFile};
use super::open::{LoadError, find_page_size, read_meta, read_table};
use super::page::PageRun;
use super::pager::Pager;
use crate::error::{Error, Result};
use crate::options::Options;

pub use super::checksums::TableRoot;
pub use super::meta::{Meta, MetaPage, NO_FREELIST};
pub use super::page::PageId;
pub use page_view::{
    BranchItem, BucketValue, ElementsView, LeafItem, PageBody, PageKind, PageView,
};
pub use scan::Record;
pub use survey::{BucketEntry, PageEntry, Problem, Survey, TreeStats};

/// A bolt file that is open for reading.
#[derive(Debug)]
pub struct BoltFile {
    path: PathBuf,
    pager: Pager,
    /// The two meta pages, or the reasons why they cannot be used.
    metas: [std::result::Result<MetaPage, String>; 2],
    bytes: u64,
    checksums: Checksums,
    /// The checksum table of the newest state. It is empty if the state has no table, or if the
    /// table is damaged.
    table: ChecksumTable,
}

/// The state of the file's checksums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// The checksums were written with the newest state.
    Present,
    /// The meta pages name no checksum table, as in a file that bbolt wrote.
    Missing,
    /// The checksums belong to the previous state: another program wrote the newest state, or the
    /// trailer of the newest meta page is damaged.
    Old,
    /// The checksums cannot be read. The string gives the reason.
    Damaged(String),
}

impl BoltFile {
    /// Opens a file. The file may be damaged: the call fails only if it cannot be read, or if a
    /// writer has locked it.
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

    /// Returns the length of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the page size that the meta pages state, or 4,096 if neither can be used.
    pub fn page_size(&self) -> usize {
        self.pager.page_size()
    }

    /// Returns each meta page, or the reason why it cannot be used.
    pub fn metas(&self) -> &[std::result::Result<MetaPage, String>; 2] {
        &self.metas
    }

    /// Returns the meta page with the current state. Fails if neither meta page can be used.
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

    /// Returns whether bbolt made the newest commit, for example as a part of etcd or its tools.
    pub fn is_of_bbolt(&self) -> bool {
        self.newest().is_ok_and(|newest| newest.is_of_bbolt)
    }

    /// Returns the number of pages to inspect: the pages below the high-water mark that the file is
    /// long enough to contain. If no meta page is valid, returns the number of pages in the file.
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

    /// Returns the root of the checksum table, or `None` if there is no valid table.
    fn table_root(&self) -> Option<PageRun> {
        self.table.root()
    }
}
