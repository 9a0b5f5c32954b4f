//! A committed state as a bolt file, in chunks. The server sends it to clients that request a
//! snapshot. A raft snapshot has another format, the engine's [`stream`](crate::stream).
//!
//! ```text
//!   two meta pages │ pages from 2 on as in the file, free pages as zeros │ checksum table
//! ```
//!
//! * The length is known at the start. Before the first chunk, the branches are read to find the
//!   pages that the state contains. Nearly all leaves are read only once, in the order of the file.
//! * Commits may run at the same time, because pages of an open snapshot do not change.
//! * Every page is compared with its checksum. If a checksum does not match, the read fails with
//!   [`Error::Corrupt`], and no chunk follows.
//! * The branches may be taken from the page cache. The chunks are read from the file. No page is
//!   added to the cache.
//!
//! For an engine that does not store its records in a bolt file, [`Image::of_records`] creates a
//! temporary file.

mod reach;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::vec;

use bytes::Bytes;

use super::bulk::BulkWriter;
use super::checksums::ChecksumTable;
use super::file::DiskFile;
use super::meta::{Meta, NO_FREELIST, encode_meta_page};
use super::open::PAGE_SIZE;
use super::page::{LeafElement, PAGE_HEADER_BYTES, PageHeader, PageId, PageRun, VALUE_BYTES_MAX};
use super::pager::Pager;
use super::snapshot::BoltSnapshot;
use super::walk::PageSet;
use crate::KEY_BYTES_MAX;
use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::interface::{KeyRange, Snapshot};
use crate::options::Options;

/// Maximum number of bytes that are read at a time. If a page is larger, one page is read at a
/// time.
const CHUNK_BYTES: usize = 256 << 10;
/// Number of bytes of records that are collected before they are written to a temporary file.
const PART_BYTES: usize = 4 << 20;
/// The permissions of a temporary file, which only this process uses.
const RIGHTS: u32 = 0o600;

/// A bolt file that is read once from start to end.
#[derive(Debug)]
pub struct Image {
    bytes: u64,
    source: Source,
}

#[derive(Debug)]
enum Source {
    State(Box<StateImage>),
    File(Box<FileImage>),
}

impl Image {
    /// Creates an image of `snapshot`. If the snapshot's engine has no bolt file, a temporary bolt
    /// file is written in `dir`.
    pub fn new(snapshot: Arc<dyn Snapshot>, dir: &Path) -> Result<Image> {
        match Arc::clone(&snapshot).image()? {
            Some(image) => Ok(image),
            None => Image::of_records(&*snapshot, dir),
        }
    }

    pub(super) fn of_state(snapshot: Arc<BoltSnapshot>) -> Result<Image> {
        let state = StateImage::new(snapshot)?;
        Ok(Image { bytes: state.bytes(), source: Source::State(Box::new(state)) })
    }

    /// Creates an image of `snapshot` by writing its records to a temporary file in `dir`. The name
    /// of the file is removed immediately. So the file disappears when the image is dropped or the
    /// process is killed.
    pub fn of_records(snapshot: &dyn Snapshot, dir: &Path) -> Result<Image> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // etcd's temporary files also have names that start with `tmp`. etcd removes all such files
        // when it starts.
        #[allow(clippy::disallowed_methods, reason = "the name of a file that is removed at once")]
        let process = std::process::id();
        let path = dir.join(format!("tmp-image-{process}-{number}"));
        let file = DiskFile::create(&path, RIGHTS)?;
        std::fs::remove_file(&path).map_err(Error::at(&path))?;
        let pager = Pager::new(Box::new(file), PAGE_SIZE, &*path, &Options::default());
        let mut writer = BulkWriter::new(&pager, PART_BYTES);
        for bucket in Bucket::ALL {
            write_bucket(snapshot, bucket, &mut writer)?;
        }
        let pages = writer.finish()?;
        let file = FileImage { pager, next: 0, pages };
        Ok(Image { bytes: pages * PAGE_SIZE as u64, source: Source::File(Box::new(file)) })
    }

    /// Returns the total length of all chunks.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn next_chunk(&mut self) -> Result<Option<Bytes>> {
        match &mut self.source {
            Source::State(state) => state.next_chunk(),
            Source::File(file) => file.next_chunk(),
        }
    }
}

fn write_bucket(
    snapshot: &dyn Snapshot,
    bucket: Bucket,
    writer: &mut BulkWriter<'_>,
) -> Result<()> {
    writer.begin_bucket(Bytes::from_static(bucket.name().as_bytes()));
    let mut outcome = Ok(());
    snapshot.scan(bucket, KeyRange::ALL, &mut |key, value| {
        outcome = write_record(key, value, writer);
        if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    outcome?;
    writer.end_bucket()
}

fn write_record(key: &[u8], value: &[u8], writer: &mut BulkWriter<'_>) -> Result<()> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(Error::KeySize { bytes: key.len() });
    }
    if value.len() > VALUE_BYTES_MAX {
        return Err(Error::ValueSize { bytes: value.len() });
    }
    writer.push(LeafElement::new(Bytes::from([key, value].concat()), key.len(), false))
}

#[derive(Debug)]
struct StateImage {
    snapshot: Arc<BoltSnapshot>,
    meta_pages: Option<Bytes>,
    /// The pages that the state contains, without their overflow pages.
    heads: PageSet,
    /// The next page of the file to read. Reading ends before `end`.
    next: PageId,
    end: PageId,
    /// The page whose overflow continues in the next chunk, or `None` if the last page was read
    /// completely.
    partial: Option<PartialPage>,
    table: vec::IntoIter<Bytes>,
    high_water: PageId,
}

#[derive(Clone, Copy, Debug)]
struct PartialPage {
    id: PageId,
    pages_left: u64,
    sum: u32,
}

impl StateImage {
    fn new(snapshot: Arc<BoltSnapshot>) -> Result<StateImage> {
        let (pager, state) = (&snapshot.store.pager, snapshot.committed.meta);
        let page_size = pager.page_size();
        let heads = reach::heads(&snapshot)?;
        let (end, mut high_water) = (state.high_water, state.high_water);
        let sums: Vec<u32> = pager.with_sums(|sums| {
            let sum = |id| sums.get(id as usize).copied().filter(|_| heads.contains(id));
            (0..end).map(|id| sum(id).unwrap_or_default()).collect()
        });
        let mut allocate = |count| {
            high_water += count;
            high_water - count
        };
        let none = std::iter::empty();
        let update = ChecksumTable::default().update(page_size, &sums, none, &mut allocate);
        let txid = state.txid.max(1);
        let meta = |txid| Meta { freelist: NO_FREELIST, high_water, txid, ..state };
        let mut metas = [meta(txid), meta(txid - 1)];
        metas.sort_by_key(Meta::place);
        let pages = metas.map(|meta| encode_meta_page(&meta, Some(update.root)));
        let meta_pages = Some(Bytes::from(pages.concat()));
        let table: Vec<Bytes> = update.written.into_iter().map(|(_, page)| page).collect();
        let table = table.into_iter();
        let (next, partial) = (2, None);
        Ok(StateImage { snapshot, meta_pages, heads, next, end, partial, table, high_water })
    }

    fn bytes(&self) -> u64 {
        self.high_water * self.pager().page_size() as u64
    }

    fn pager(&self) -> &Pager {
        &self.snapshot.store.pager
    }

    fn next_chunk(&mut self) -> Result<Option<Bytes>> {
        if let Some(meta_pages) = self.meta_pages.take() {
            return Ok(Some(meta_pages));
        }
        if self.next == self.end {
            return Ok(self.table.next());
        }
        let run = self.pager().run_of_bytes(self.next, self.end, CHUNK_BYTES);
        let is_free = self.partial.is_none() && !run.ids().any(|id| self.heads.contains(id));
        let chunk = match is_free {
            true => vec![0; run.count as usize * self.pager().page_size()],
            false => {
                let mut chunk = self.pager().read_bytes(run)?;
                self.partial = self.check(run.first, &mut chunk)?;
                chunk
            }
        };
        self.next = run.ids().end;
        Ok(Some(Bytes::from(chunk)))
    }

    /// Compares pages with their checksums, and fills free pages with zeros. Returns the page that
    /// continues after this chunk, or `None` if no page does. Fails if a checksum is wrong.
    fn check(&self, first: PageId, chunk: &mut [u8]) -> Result<Option<PartialPage>> {
        let mut partial = self.partial;
        for (id, page) in (first..).zip(chunk.chunks_exact_mut(self.pager().page_size())) {
            let so_far = match partial {
                Some(so_far) => so_far,
                None if self.heads.contains(id) => self.begin(id, page)?,
                None => {
                    page.fill(0);
                    continue;
                }
            };
            let sum = crc32c::crc32c_append(so_far.sum, page);
            let pages_left = so_far.pages_left - 1;
            if pages_left == 0 {
                self.pager().compare_sum(so_far.id, sum)?;
            }
            partial = (pages_left > 0).then_some(PartialPage { pages_left, sum, ..so_far });
        }
        Ok(partial)
    }

    fn begin(&self, id: PageId, page: &[u8]) -> Result<PartialPage> {
        let header = PageHeader::parse(&page[..PAGE_HEADER_BYTES]);
        let pages_left = 1 + u64::from(header.overflow);
        if id + pages_left > self.end {
            let reason = format!("overflow {} is outside the file", header.overflow);
            return Err(self.pager().damaged(id, reason));
        }
        Ok(PartialPage { id, pages_left, sum: 0 })
    }
}

/// A temporary file that only the image uses.
#[derive(Debug)]
struct FileImage {
    pager: Pager,
    next: PageId,
    pages: PageId,
}

impl FileImage {
    fn next_chunk(&mut self) -> Result<Option<Bytes>> {
        if self.next == self.pages {
            return Ok(None);
        }
        let run: PageRun = self.pager.run_of_bytes(self.next, self.pages, CHUNK_BYTES);
        let chunk = self.pager.read_run(run)?;
        self.next = run.ids().end;
        Ok(Some(chunk))
    }
}
