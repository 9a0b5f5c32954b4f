//! A store in memory, for fuzz targets. It exists only with the feature `fuzzing`.
//!
//! * A [`MemoryFile`] can be read as bytes, and its operations can fail as on a full disk.
//! * [`put_sums_right`] corrects the checksums of a damaged file, and [`make_foreign`] removes
//!   them. So a target also reaches the code that reads damaged pages.

use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::BoltStore;
use super::checksums::{TableRoot, entry_offset, sum_place};
use super::file::StoreFile;
use super::meta::{META_PAGE_BYTES, MetaSums, PAGE_SIZE_MAX, PAGE_SIZE_MIN};
use super::page::{PAGE_HEADER_BYTES, PageHeader, PageId, u32_at, u64_at};
use crate::durable::DurableStore;
use crate::error::Result;
use crate::interface::{OpeningNote, Snapshot, WriteTxn};
use crate::options::Options;
use crate::writer_lock::WriterLock;

/// A file in memory. All clones share its contents.
#[derive(Clone, Debug, Default)]
pub struct MemoryFile {
    state: Arc<Mutex<FileState>>,
}

#[derive(Debug, Default)]
struct FileState {
    bytes: Vec<u8>,
    /// Number of changes and syncs that still succeed. All later changes and syncs fail. If `None`,
    /// no change or sync fails.
    operations_left: Option<u64>,
}

impl MemoryFile {
    pub fn new(bytes: Vec<u8>) -> MemoryFile {
        let state = FileState { bytes, operations_left: None };
        MemoryFile { state: Arc::new(Mutex::new(state)) }
    }

    pub fn contents(&self) -> Vec<u8> {
        self.state.lock().bytes.clone()
    }

    /// Lets `operations` more changes and syncs succeed. All later changes and syncs fail.
    pub fn fail_after(&self, operations: u64) {
        self.state.lock().operations_left = Some(operations);
    }
}

impl FileState {
    fn count_operation(&mut self) -> io::Result<()> {
        match &mut self.operations_left {
            Some(0) => Err(io::ErrorKind::StorageFull.into()),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl StoreFile for MemoryFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.lock().bytes.len() as u64)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state.lock();
        let from = usize::try_from(offset).map_err(io::Error::other)?;
        let found = state.bytes.get(from..from.saturating_add(out.len()));
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        state.count_operation()?;
        let from = usize::try_from(offset).map_err(io::Error::other)?;
        let place = state.bytes.get_mut(from..from.saturating_add(data.len()));
        place.ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(data);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        state.count_operation()?;
        state.bytes.resize(usize::try_from(len).map_err(io::Error::other)?, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.state.lock().count_operation()
    }
}

#[derive(Debug)]
pub struct MemoryStore {
    store: Arc<BoltStore>,
    file: MemoryFile,
    writer_lock: Arc<WriterLock>,
}

impl MemoryStore {
    pub fn create(page_size: usize) -> Result<MemoryStore> {
        let file = MemoryFile::default();
        let boxed = Box::new(file.clone());
        let store = BoltStore::create_on(boxed, page_size, Path::new("memory"), &options())?;
        Ok(MemoryStore { store: Arc::new(store), file, writer_lock: Arc::default() })
    }

    pub fn open(file: &MemoryFile) -> Result<MemoryStore> {
        let boxed = Box::new(file.clone());
        let store = BoltStore::open_on(boxed, Path::new("memory"), &options())?;
        let (store, file) = (Arc::new(store), file.clone());
        Ok(MemoryStore { store, file, writer_lock: Arc::default() })
    }

    pub fn file(&self) -> &MemoryFile {
        &self.file
    }

    pub fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        self.store.snapshot()
    }

    pub fn begin_write(&self) -> Result<Box<dyn WriteTxn>> {
        self.store.begin_write(self.writer_lock.acquire()?)
    }

    pub fn size_in_use(&self) -> u64 {
        self.store.size_in_use()
    }

    pub fn opening_notes(&self) -> &[OpeningNote] {
        self.store.opening_notes()
    }

    /// Returns the number of pages that are free now or will be free when snapshots are closed.
    pub fn unused_pages(&self) -> u64 {
        let (free, pending) = self.store.writer().freelist.counts();
        free + pending
    }
}

/// The cache is small, so that pages are often read from the file.
fn options() -> Options {
    Options { cache_bytes: 64 << 10, ..Options::default() }
}

/// Changes both meta pages so that they refer to no checksum table, as in a file of another
/// program. The trailer of a page that bbolt wrote is all zeros. The trailers that this function
/// leaves are not, so opening the file reports missing checksums instead of another program.
pub fn make_foreign(image: &mut [u8]) {
    let page_size = page_size_of(image);
    for place in 0..2 {
        if let Some(page) = meta_page(image, page_size, place) {
            MetaSums::remove_trailer(page);
            MetaSums::put_right(page);
        }
    }
}

/// Corrects the checksums of a damaged file that this engine wrote: the checksums of pages, of
/// table pages and of meta pages. Skips pages that it cannot find.
pub fn put_sums_right(image: &mut [u8]) {
    let page_size = page_size_of(image);
    for place in 0..2 {
        let Some(page) = meta_page(image, page_size, place) else { continue };
        MetaSums::copy_to_trailer(page);
        let mut root = MetaSums::table_root(page);
        put_page_sums_right(image, page_size, root);
        root.sum = put_table_sums_right(image, page_size, root).unwrap_or(root.sum);
        if let Some(page) = meta_page(image, page_size, place) {
            MetaSums::set_table_root(page, root);
            MetaSums::put_right(page);
        }
    }
}

fn page_size_of(image: &[u8]) -> usize {
    let at = MetaSums::PAGE_SIZE_OFFSET;
    let found = image.get(at..at + 4).map_or(0, |bytes| u32_at(bytes, 0) as usize);
    let is_size = found.is_power_of_two() && (PAGE_SIZE_MIN..=PAGE_SIZE_MAX).contains(&found);
    if is_size { found } else { PAGE_SIZE_MIN }
}

fn meta_page(image: &mut [u8], page_size: usize, place: usize) -> Option<&mut [u8]> {
    image.get_mut(place * page_size..place * page_size + META_PAGE_BYTES)
}

/// Returns the bytes of `count` pages, or `None` if they are outside the image.
fn pages(image: &[u8], page_size: usize, first: PageId, count: u64) -> Option<&[u8]> {
    let from = usize::try_from(first).ok()?.checked_mul(page_size)?;
    let bytes = usize::try_from(count).ok()?.checked_mul(page_size)?;
    image.get(from..from.checked_add(bytes)?)
}

fn set(image: &mut [u8], at: Option<usize>, sum: u32) {
    let place = at.and_then(|at| image.get_mut(at..at.checked_add(4)?));
    if let Some(place) = place {
        place.copy_from_slice(&sum.to_le_bytes());
    }
}

fn put_page_sums_right(image: &mut [u8], page_size: usize, root: TableRoot) {
    for id in 2..(image.len() / page_size) as PageId {
        let Some(first) = pages(image, page_size, id, 1) else { return };
        let overflow = PageHeader::parse(&first[..PAGE_HEADER_BYTES]).overflow;
        let Some(run) = pages(image, page_size, id, 1 + u64::from(overflow)) else { continue };
        let sum = crc32c::crc32c(run);
        let (index, offset) = sum_place(id, page_size);
        let at = table_page(image, page_size, root, index).and_then(|page| {
            usize::try_from(page).ok()?.checked_mul(page_size)?.checked_add(offset)
        });
        set(image, at, sum);
    }
}

/// Corrects the checksums in the root of the table. Returns the checksum of the root, or `None` if
/// the root is not inside the image.
fn put_table_sums_right(image: &mut [u8], page_size: usize, root: TableRoot) -> Option<u32> {
    let run = root.run(page_size);
    let root_page = usize::try_from(run.first).ok()?.checked_mul(page_size)?;
    for index in 0..root.table_pages as usize {
        let page = table_page(image, page_size, root, index)?;
        if let Some(bytes) = pages(image, page_size, page, 1) {
            let sum = crc32c::crc32c(bytes);
            set(image, root_page.checked_add(entry_offset(index) + 8), sum);
        }
    }
    pages(image, page_size, run.first, run.count).map(crc32c::crc32c)
}

/// Returns the id of a table page, as stated in the root. Returns `None` if the root's entry is not
/// inside the image.
fn table_page(image: &[u8], page_size: usize, root: TableRoot, index: usize) -> Option<PageId> {
    let run = root.run(page_size);
    let at = entry_offset(index);
    let entry = pages(image, page_size, run.first, run.count)?.get(at..at + 8)?;
    Some(u64_at(entry, 0))
}
