//! Reads and writes pages by their ids. A page that is read from the file is checked against its
//! checksum.
//!
//! ```text
//!   in the cache? ──no──▶ read the file ──▶ checksum as in the table? ──▶ check layout ──▶ cache
//!                                               └── no: Error::Corrupt
//! ```
//!
//! A page and its overflow pages are read together and form one entry of the cache. A value that is
//! read from a page may share the page's bytes. `docs/decisions/engine-bolt-pages-by-reads.md`
//! explains why pages are read and not mapped into memory.

use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use parking_lot::RwLock;

use super::file::StoreFile;
use super::page::{Damage, PAGE_HEADER_BYTES, Page, PageHeader, PageId, PageRun};
use super::page_cache::PageCache;
use crate::PAGE_BUFFER_EXTRA;
use crate::cached_read;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::place::SharedPath;

/// Pages that follow each other in the file are written together. A write ends when it has at least
/// this many bytes.
const WRITE_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Pager {
    file: Box<dyn StoreFile>,
    page_size: usize,
    cache: PageCache,
    /// The checksum of each page, by page id. The checksum of a page that a reader can reach does
    /// not change.
    sums: RwLock<Vec<u32>>,
    /// If true, pages are read without checking their checksums: see [`Pager::ignore_sums`].
    is_unchecked: bool,
    sync_bytes: Option<usize>,
    path: SharedPath,
}

impl Pager {
    pub(super) fn new(
        file: Box<dyn StoreFile>,
        page_size: usize,
        path: impl Into<SharedPath>,
        options: &Options,
    ) -> Pager {
        Pager {
            file,
            page_size,
            cache: PageCache::new(options.cache_bytes),
            sums: RwLock::default(),
            is_unchecked: false,
            sync_bytes: options.sync_bytes,
            path: path.into(),
        }
    }

    /// Turns off the comparison of checksums, for a file that is only read and has no valid
    /// checksum table.
    pub(super) fn ignore_sums(&mut self) {
        self.is_unchecked = true;
    }

    pub(super) fn page_size(&self) -> usize {
        self.page_size
    }

    pub(super) fn path(&self) -> PathBuf {
        self.path.get()
    }

    /// Returns the number of bytes that the file occupies on disk. The file grows in steps, and a
    /// part that was never written occupies no blocks.
    pub(super) fn size_on_disk(&self) -> Result<u64> {
        self.file.size_on_disk().map_err(|source| self.file_error(source))
    }

    fn file_error(&self, source: io::Error) -> Error {
        Error::Path { path: self.path(), source }
    }

    pub(super) fn damaged(&self, page: PageId, reason: impl Into<String>) -> Error {
        Damage::new(page, reason).in_file(&self.path())
    }

    pub(super) fn page(&self, id: PageId) -> Result<Page> {
        if let Some(page) = self.cache.get(id) {
            return Ok(page);
        }
        let page = self.read_checked(id)?;
        self.cache.insert(page.clone());
        Ok(page)
    }

    /// Like [`page`](Pager::page), but a page that is read from the file is not put into the cache.
    pub(super) fn page_without_keeping(&self, id: PageId) -> Result<Page> {
        match self.cache.get(id) {
            Some(page) => Ok(page),
            None => self.read_checked(id),
        }
    }

    #[cfg(test)]
    pub(super) fn is_cached(&self, id: PageId) -> bool {
        self.cache.get(id).is_some()
    }

    /// Calls `look` with a page. If the page is in the cache, the lock of its shard is held during
    /// the call.
    pub(super) fn with_page<T>(&self, id: PageId, look: impl Fn(&Page) -> T) -> Result<T> {
        if let Some(seen) = self.cache.with(id, &look) {
            return Ok(seen);
        }
        Ok(look(&self.page(id)?))
    }

    pub(super) fn keep(&self, page: Page) {
        self.cache.insert(page);
    }

    /// Reads a page from the file and checks it, without using the cache.
    pub(super) fn read_checked(&self, id: PageId) -> Result<Page> {
        let bytes = self.read(id)?;
        if !self.is_unchecked {
            self.check_sum(id, &bytes)?;
        }
        self.parse(bytes, id)
    }

    pub(super) fn check_sum(&self, id: PageId, bytes: &[u8]) -> Result<()> {
        self.compare_sum(id, crc32c::crc32c(bytes))
    }

    /// Fails unless the table has `sum` as the checksum of page `id` with its overflow.
    pub(super) fn compare_sum(&self, id: PageId, sum: u32) -> Result<()> {
        let expected = self.sums.read().get(id as usize).copied();
        if Some(sum) != expected {
            return Err(self.damaged(id, "the checksum is wrong"));
        }
        Ok(())
    }

    /// Reads a page with its overflow, without checking it.
    pub(super) fn read(&self, id: PageId) -> Result<Bytes> {
        let (first, run) = self.read_first(id)?;
        self.read_rest(first, run)
    }

    /// Reads a page without its overflow. Also returns the run that consists of the page and its
    /// overflow.
    pub(super) fn read_first(&self, id: PageId) -> Result<(Bytes, PageRun)> {
        let first = self.read_run(PageRun { first: id, count: 1 })?;
        let header = PageHeader::parse(&first[..PAGE_HEADER_BYTES]);
        let run = PageRun { first: id, count: 1 + u64::from(header.overflow) };
        // The length is checked before memory is allocated, because the overflow count in the
        // header may be damaged.
        let end = run.ids().end * self.page_size as u64;
        if run.count > 1 && end > self.file.len().map_err(|source| self.file_error(source))? {
            return Err(
                self.damaged(id, format!("overflow {} is outside the file", header.overflow))
            );
        }
        Ok((first, run))
    }

    /// Returns a page with its overflow. Together they occupy `run`. `first` is the first page,
    /// which has already been read.
    pub(super) fn read_rest(&self, first: Bytes, run: PageRun) -> Result<Bytes> {
        if run.count == 1 { Ok(first) } else { self.read_run(run) }
    }

    pub(super) fn read_run(&self, run: PageRun) -> Result<Bytes> {
        self.read_bytes(run).map(Bytes::from)
    }

    /// Returns the run of pages that starts at `first`, fits into `bytes` bytes, and does not
    /// include `end`. It has at least one page.
    pub(super) fn run_of_bytes(&self, first: PageId, end: PageId, bytes: usize) -> PageRun {
        let room = (bytes / self.page_size).max(1) as u64;
        PageRun { first, count: room.min(end - first) }
    }

    pub(super) fn read_bytes(&self, run: PageRun) -> Result<Vec<u8>> {
        let len = run.count as usize * self.page_size;
        let mut bytes = Vec::with_capacity(len + PAGE_BUFFER_EXTRA);
        bytes.resize(len, 0);
        let offset = run.first * self.page_size as u64;
        let is_read = match cached_read::is_cached_only() {
            true => self.file.read_cached_at(offset, &mut bytes),
            false => self.file.read_at(offset, &mut bytes).map(|()| true),
        };
        match is_read {
            Ok(true) => Ok(bytes),
            Ok(false) => Err(cached_read::not_cached()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.damaged(run.first, "is after the end of the file"))
            }
            Err(error) => Err(self.file_error(error)),
        }
    }

    pub(super) fn parse(&self, bytes: Bytes, id: PageId) -> Result<Page> {
        Page::parse(bytes, id).map_err(|damage| damage.in_file(&self.path()))
    }

    pub(super) fn set_sums(&self, new: &[(PageId, u32)]) {
        let mut sums = self.sums.write();
        for &(id, sum) in new {
            let index = id as usize;
            if index >= sums.len() {
                sums.resize(index + 1, 0);
            }
            sums[index] = sum;
        }
    }

    pub(super) fn replace_sums(&self, sums: Vec<u32>) {
        *self.sums.write() = sums;
    }

    pub(super) fn with_sums<T>(&self, look: impl FnOnce(&[u32]) -> T) -> T {
        look(&self.sums.read())
    }

    /// Makes the file long enough for the pages below `high_water`. The length doubles up to 16
    /// MiB, and then grows in steps of 16 MiB.
    pub(super) fn grow(&self, high_water: PageId) -> Result<()> {
        const SMALLEST: u64 = 32 << 10;
        const STEP: u64 = 16 << 20;
        let needed = high_water * self.page_size as u64;
        if needed <= self.file.len().map_err(|source| self.file_error(source))? {
            return Ok(());
        }
        let len = match needed <= STEP {
            true => needed.next_power_of_two().max(SMALLEST),
            false => needed.next_multiple_of(STEP),
        };
        self.file.set_len(len).map_err(|source| self.file_error(source))
    }

    /// Writes pages, which must be in the order of their ids, and syncs them.
    pub(super) fn write(&self, pages: &[(PageId, Bytes)]) -> Result<()> {
        self.write_unsynced(pages)?;
        self.file.sync_data().map_err(|source| self.file_error(source))
    }

    /// Like [`write`](Pager::write), but the pages are guaranteed to be on disk only after a later
    /// sync.
    pub(super) fn write_unsynced(&self, pages: &[(PageId, Bytes)]) -> Result<()> {
        let follows = |(id, page): &(PageId, Bytes), (next, _): &(PageId, Bytes)| {
            id * self.page_size as u64 + page.len() as u64 == next * self.page_size as u64
        };
        let mut unsynced = 0;
        for row in pages.chunk_by(follows) {
            self.write_row(row, &mut unsynced).map_err(|source| self.file_error(source))?;
        }
        Ok(())
    }

    /// Writes pages that follow each other in the file. `unsynced` counts the bytes since the last
    /// sync. Syncs when this number reaches `sync_bytes`.
    fn write_row(&self, row: &[(PageId, Bytes)], unsynced: &mut usize) -> io::Result<()> {
        let mut offset = row[0].0 * self.page_size as u64;
        let mut buffer = Vec::new();
        for (index, (_, page)) in row.iter().enumerate() {
            buffer.extend_from_slice(page);
            if buffer.len() < WRITE_BYTES && index + 1 < row.len() {
                continue;
            }
            self.file.write_at(offset, &buffer)?;
            offset += buffer.len() as u64;
            *unsynced += buffer.len();
            buffer.clear();
            if self.sync_bytes.is_some_and(|bytes| *unsynced >= bytes) {
                *unsynced = 0;
                self.file.sync_data()?;
            }
        }
        Ok(())
    }

    /// Writes a meta page and syncs it.
    pub(super) fn write_meta(&self, place: PageId, page: &[u8]) -> Result<()> {
        let offset = place * self.page_size as u64;
        let written = self.file.write_at(offset, page).and_then(|()| self.file.sync_data());
        written.map_err(|source| self.file_error(source))
    }
}
