//! The checksum table: the crc32c of every page in use, stored in pages of the same file.
//!
//! bbolt has no checksums except in its meta pages. No tree contains the pages of the table, so
//! bbolt takes them for free pages. The trailer of the [meta page](super::meta) names the root of
//! the table, which lists the pages of the table. In the diagram, `n` is the number of checksums in
//! a table page.
//!
//! ```text
//!   trailer ──▶ root: page and crc32c of each table page ──▶ table page k: crc32c of the pages
//!                                                            from k·n to (k+1)·n - 1
//! ```
//!
//! * A page with overflow has one checksum, in the entry of its first page.
//! * A commit writes the root, and only the table pages whose checksums it changes. It writes them
//!   with the commit's other pages, before its meta page.
//! * The checksum of a page that no tree contains has no meaning.

use std::collections::BTreeSet;

use bytes::{BufMut, Bytes, BytesMut};

use super::page::{
    CHECKSUM_FLAG, Damage, PAGE_HEADER_BYTES, PageHeader, PageId, PageRun, u32_at, u64_at,
};

const SUM_BYTES: usize = 4;
/// An entry of the root: the id of a table page and its checksum.
const ROOT_ENTRY_BYTES: usize = 12;

/// The position of a table's root, with the root's checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableRoot {
    pub page: PageId,
    pub table_pages: u32,
    /// The checksum of the root with its overflow.
    pub sum: u32,
}

impl TableRoot {
    pub(super) const BYTES: usize = 16;

    /// `bytes` must have at least [`TableRoot::BYTES`] bytes.
    pub(super) fn parse(bytes: &[u8]) -> TableRoot {
        TableRoot { page: u64_at(bytes, 0), table_pages: u32_at(bytes, 8), sum: u32_at(bytes, 12) }
    }

    pub(super) fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.page.to_le_bytes());
        out.extend_from_slice(&self.table_pages.to_le_bytes());
        out.extend_from_slice(&self.sum.to_le_bytes());
    }

    /// Returns the run of pages that the root itself occupies.
    pub(super) fn run(&self, page_size: usize) -> PageRun {
        let bytes = PAGE_HEADER_BYTES + self.table_pages as usize * ROOT_ENTRY_BYTES;
        PageRun { first: self.page, count: bytes.div_ceil(page_size) as u64 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TablePage {
    page: PageId,
    sum: u32,
}

/// The pages of the table as of the last commit. The checksums themselves are kept in the
/// [pager](super::pager).
#[derive(Debug, Default)]
pub(super) struct ChecksumTable {
    pages: Vec<TablePage>,
    root: Option<PageRun>,
}

/// The changes to the table in one commit.
#[derive(Debug)]
pub(super) struct TableUpdate {
    pub(super) root: TableRoot,
    pub(super) written: Vec<(PageId, Bytes)>,
    /// Old pages of the table. They can be used again when the commit is on disk.
    pub(super) replaced: Vec<PageRun>,
}

impl ChecksumTable {
    /// Returns the pages that contain the table.
    pub(super) fn runs(&self) -> impl Iterator<Item = PageRun> {
        let pages =
            self.pages.iter().map(|table_page| PageRun { first: table_page.page, count: 1 });
        pages.chain(self.root)
    }

    /// Returns the index of a page among the table pages, or `None` if it is not a table page.
    pub(super) fn position(&self, page: PageId) -> Option<usize> {
        self.pages.iter().position(|table_page| table_page.page == page)
    }

    pub(super) fn root(&self) -> Option<PageRun> {
        self.root
    }

    /// Replaces the table pages whose entries have changed, and the root. The caller writes the new
    /// pages. `sums` are the checksums as of the commit in progress, and `changed` are the pages
    /// that the commit writes. `allocate` takes the number of consecutive pages that the table
    /// needs, and returns the id of the first page.
    pub(super) fn update(
        &mut self,
        page_size: usize,
        sums: &[u32],
        changed: impl Iterator<Item = PageId>,
        allocate: &mut dyn FnMut(u64) -> PageId,
    ) -> TableUpdate {
        let sums_per_page = sums_per_page(page_size);
        let mut stale: BTreeSet<usize> = changed.map(|id| id as usize / sums_per_page).collect();
        let table_pages = sums.len().div_ceil(sums_per_page);
        stale.extend(self.pages.len()..table_pages);
        let mut written = Vec::with_capacity(stale.len() + 1);
        let mut replaced: Vec<PageRun> = self.root.into_iter().collect();
        for index in stale {
            let page = allocate(1);
            let from = index * sums_per_page;
            let to = sums.len().min(from + sums_per_page);
            let bytes = encode_table_page(page, page_size, &sums[from..to]);
            let table_page = TablePage { page, sum: crc32c::crc32c(&bytes) };
            written.push((page, bytes));
            match self.pages.get_mut(index) {
                Some(old) => {
                    replaced.push(PageRun { first: old.page, count: 1 });
                    *old = table_page;
                }
                None => self.pages.push(table_page),
            }
        }
        let root = self.write_root(page_size, allocate, &mut written);
        TableUpdate { root, written, replaced }
    }

    fn write_root(
        &mut self,
        page_size: usize,
        allocate: &mut dyn FnMut(u64) -> PageId,
        written: &mut Vec<(PageId, Bytes)>,
    ) -> TableRoot {
        let mut root = TableRoot { page: 0, table_pages: self.pages.len() as u32, sum: 0 };
        let count = root.run(page_size).count;
        root.page = allocate(count);
        let mut bytes = BytesMut::with_capacity(count as usize * page_size);
        let overflow = (count - 1) as u32;
        PageHeader { id: root.page, flags: CHECKSUM_FLAG, count: 0, overflow }
            .append_to(&mut bytes);
        for table_page in &self.pages {
            bytes.put_u64_le(table_page.page);
            bytes.put_u32_le(table_page.sum);
        }
        bytes.resize(count as usize * page_size, 0);
        root.sum = crc32c::crc32c(&bytes);
        written.push((root.page, bytes.freeze()));
        self.root = Some(root.run(page_size));
        root
    }

    /// Reads the table that has the root `root`. The function `read` returns the bytes of a run of
    /// pages below `high_water`. Returns the pages of the table, and the checksums. Fails if the
    /// table is damaged or `read` fails.
    pub(super) fn load<E: From<Damage>>(
        root: TableRoot,
        page_size: usize,
        high_water: PageId,
        read: &mut dyn FnMut(PageRun) -> Result<Bytes, E>,
    ) -> Result<(ChecksumTable, Vec<u32>), E> {
        let damaged = |page, reason: &str| E::from(Damage::new(page, reason));
        let is_possible =
            |run: PageRun| run.first >= 2 && run.first.saturating_add(run.count) <= high_water;
        let run = root.run(page_size);
        if !is_possible(run) {
            return Err(damaged(root.page, "the root of the checksum table is outside the file"));
        }
        // Without this check, a damaged number of table pages could make the code below allocate
        // memory for pages that do not exist.
        if u64::from(root.table_pages) > high_water.div_ceil(sums_per_page(page_size) as u64) {
            return Err(damaged(root.page, "the checksum table is too large"));
        }
        let bytes = read(run)?;
        if crc32c::crc32c(&bytes) != root.sum {
            return Err(damaged(root.page, "the root of the checksum table is damaged"));
        }
        let entries = root_entries(&bytes).take(root.table_pages as usize);
        let pages: Vec<TablePage> = entries.map(|(page, sum)| TablePage { page, sum }).collect();
        let mut sums = Vec::new();
        for table_page in &pages {
            let run = PageRun { first: table_page.page, count: 1 };
            if !is_possible(run) {
                return Err(damaged(
                    table_page.page,
                    "a page of the checksum table is outside the file",
                ));
            }
            let bytes = read(run)?;
            if crc32c::crc32c(&bytes) != table_page.sum {
                return Err(damaged(table_page.page, "the checksum table is damaged"));
            }
            sums.extend(table_entries(&bytes));
        }
        Ok((ChecksumTable { pages, root: Some(run) }, sums))
    }
}

/// Returns all entries for which the root has space. Each entry is the id of a table page and its
/// checksum. Unused entries are zeros.
pub(super) fn root_entries(bytes: &[u8]) -> impl Iterator<Item = (PageId, u32)> {
    let entries = bytes[PAGE_HEADER_BYTES..].chunks_exact(ROOT_ENTRY_BYTES);
    entries.map(|entry| (u64_at(entry, 0), u32_at(entry, 8)))
}

pub(super) fn table_entries(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes[PAGE_HEADER_BYTES..].chunks_exact(SUM_BYTES).map(|sum| u32_at(sum, 0))
}

pub(super) fn sums_per_page(page_size: usize) -> usize {
    (page_size - PAGE_HEADER_BYTES) / SUM_BYTES
}

/// Returns the offset of a table page's entry in the root.
#[cfg(feature = "fuzzing")]
pub(super) fn entry_offset(index: usize) -> usize {
    PAGE_HEADER_BYTES + index * ROOT_ENTRY_BYTES
}

/// Returns the index of the table page that has the checksum of page `id`, and the checksum's
/// offset in that table page.
#[cfg(feature = "fuzzing")]
pub(super) fn sum_place(id: PageId, page_size: usize) -> (usize, usize) {
    let per_page = sums_per_page(page_size);
    (id as usize / per_page, PAGE_HEADER_BYTES + id as usize % per_page * SUM_BYTES)
}

fn encode_table_page(id: PageId, page_size: usize, sums: &[u32]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(page_size);
    PageHeader { id, flags: CHECKSUM_FLAG, count: 0, overflow: 0 }.append_to(&mut bytes);
    for sum in sums {
        bytes.put_u32_le(*sum);
    }
    bytes.resize(page_size, 0);
    bytes.freeze()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const PAGE_SIZE: usize = 1024;

    /// A simulated file: its pages by id, and its checksum table.
    #[derive(Default)]
    struct Written {
        pages: BTreeMap<PageId, Bytes>,
        table: ChecksumTable,
        next: PageId,
    }

    impl Written {
        fn update(&mut self, sums: &[u32], changed: &[PageId]) -> TableUpdate {
            let next = &mut self.next;
            let mut allocate = |count| {
                *next += count;
                *next - count
            };
            let changed = changed.iter().copied();
            let update = self.table.update(PAGE_SIZE, sums, changed, &mut allocate);
            self.pages.extend(update.written.iter().cloned());
            update
        }

        fn load(&self, root: TableRoot) -> Result<(ChecksumTable, Vec<u32>), Damage> {
            ChecksumTable::load(root, PAGE_SIZE, self.next, &mut |run| {
                self.pages.get(&run.first).cloned().ok_or_else(|| Damage::new(run.first, "gone"))
            })
        }
    }

    #[test]
    fn sums_are_read_back_and_only_changed_pages_are_written() {
        let mut written = Written { next: 600, ..Written::default() };
        let mut sums: Vec<u32> = (0..600).collect();
        let first = written.update(&sums, &[2, 599]);
        assert_eq!((first.written.len(), first.replaced.len()), (4, 0), "three pages and the root");
        sums[300] = 7;
        let second = written.update(&sums, &[300]);
        assert_eq!((second.written.len(), second.replaced.len()), (2, 2));
        let (loaded, found) = written.load(second.root).unwrap();
        assert_eq!(&found[..600], &sums[..]);
        assert!(loaded.runs().eq(written.table.runs()));
        assert!(first.root != second.root);
    }

    #[test]
    fn a_table_of_more_pages_than_the_file_is_refused() {
        let mut written = Written { next: 300, ..Written::default() };
        let root = written.update(&[5; 300], &[]).root;
        let mut entries = written.pages[&root.page].to_vec();
        let (first, rest) = entries[PAGE_HEADER_BYTES..].split_at_mut(ROOT_ENTRY_BYTES);
        rest.chunks_exact_mut(ROOT_ENTRY_BYTES).for_each(|entry| entry.copy_from_slice(first));
        let root = TableRoot { table_pages: 80, sum: crc32c::crc32c(&entries), ..root };
        written.pages.insert(root.page, Bytes::from(entries));
        assert_eq!(written.load(root).unwrap_err().reason, "the checksum table is too large");
    }

    #[test]
    fn a_damaged_table_is_noticed() {
        let mut written = Written { next: 300, ..Written::default() };
        let root = written.update(&[5; 300], &[]).root;
        assert!(written.load(root).is_ok());
        assert!(written.load(TableRoot { sum: root.sum ^ 1, ..root }).is_err());
        assert!(written.load(TableRoot { page: 1 << 40, ..root }).is_err());
        assert!(written.load(TableRoot { table_pages: u32::MAX, ..root }).is_err());
        for id in [300, 301, 302] {
            let page = written.pages[&id].clone();
            let mut damaged = page.to_vec();
            damaged[700] ^= 1;
            written.pages.insert(id, Bytes::from(damaged));
            assert!(written.load(root).is_err(), "page {id}");
            written.pages.insert(id, page);
        }
    }
}
