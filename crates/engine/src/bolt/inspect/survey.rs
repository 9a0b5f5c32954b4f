//! Lists every page and every bucket of a file, and all damage.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;

use super::page_view::{PageKind, reason_of};
use super::{BoltFile, Checksums, MetaPage, NO_FREELIST, PageId};
use crate::bolt::checksums::sums_per_page;
use crate::bolt::meta::{META_BYTES, TRAILER_BYTES};
use crate::bolt::page::{PAGE_HEADER_BYTES, Page, PageHeader, PageRun};
use crate::bolt::tree::{BucketHead, BucketRoot};
use crate::bolt::walk::{Visit, Walk, read_freelist};
use crate::error::{Error, Result};

/// The result of a walk over the newest state.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The pages in the order of their ids. Each entry includes the pages of its overflow.
    pub pages: Vec<PageEntry>,
    /// The buckets. The first is the tree of the buckets, and each bucket precedes the buckets
    /// inside it.
    pub buckets: Vec<BucketEntry>,
    pub problems: Vec<Problem>,
}

/// A page with its overflow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageEntry {
    pub id: PageId,
    pub kind: PageKind,
    /// Number of entries in the page: elements, free pages, checksums or table pages, depending on
    /// its kind.
    pub count: u64,
    /// Number of further pages that belong to this page.
    pub overflow: u64,
    /// The index of the bucket in [`Survey::buckets`] whose tree contains the page, or `None` if no
    /// tree contains it.
    pub bucket: Option<usize>,
    /// The page's depth in its tree. The depth is 0 for the root of a tree, for a page outside all
    /// trees, and for a page that is too damaged to be parsed.
    pub depth: usize,
    /// The number of bytes in use in the page and its overflow. It is 0 for a free page, and for a
    /// page of a tree if the page is too damaged to be parsed.
    pub used_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketEntry {
    /// The names from the outermost bucket to this one. The path of the tree of the buckets is
    /// empty.
    pub path: Vec<Bytes>,
    /// The root page, or `None` if the bucket is inline.
    pub root: Option<PageId>,
    /// The leaf that contains the bucket's record, or 0 for the tree of the buckets, which has no
    /// record.
    pub leaf: PageId,
    pub sequence: u64,
    /// Counts of this tree, without the buckets inside it.
    pub stats: TreeStats,
}

/// Counts of one tree or of several trees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeStats {
    pub branch_pages: u64,
    pub branch_overflow: u64,
    pub branch_used_bytes: u64,
    pub leaf_pages: u64,
    pub leaf_overflow: u64,
    pub leaf_used_bytes: u64,
    /// Number of levels from the root to the leaves; 1 for an inline bucket.
    pub depth: usize,
    pub records: u64,
    /// Number of bytes of the keys and values of the records.
    pub record_bytes: u64,
    /// Number of buckets directly inside the tree. Buckets inside these buckets are not counted.
    pub buckets: u64,
    /// Number of inline buckets among the buckets that `buckets` counts.
    pub inline_buckets: u64,
    /// Number of bytes in use in the page of an inline bucket. These bytes are part of the leaf
    /// that contains the bucket's record.
    pub inline_used_bytes: u64,
}

impl TreeStats {
    pub fn add(&mut self, other: &TreeStats) {
        self.branch_pages += other.branch_pages;
        self.branch_overflow += other.branch_overflow;
        self.branch_used_bytes += other.branch_used_bytes;
        self.leaf_pages += other.leaf_pages;
        self.leaf_overflow += other.leaf_overflow;
        self.leaf_used_bytes += other.leaf_used_bytes;
        self.depth = self.depth.max(other.depth);
        self.records += other.records;
        self.record_bytes += other.record_bytes;
        self.buckets += other.buckets;
        self.inline_buckets += other.inline_buckets;
        self.inline_used_bytes += other.inline_used_bytes;
    }
}

/// A problem, with the page that it concerns. `page` is `None` if the problem concerns the whole
/// file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    pub page: Option<PageId>,
    pub reason: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.page {
            Some(page) => write!(f, "page {page}: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

impl Survey {
    /// Returns the entry that includes page `id`, which may be an overflow page. Returns `None` if
    /// no entry includes it.
    pub fn page(&self, id: PageId) -> Option<&PageEntry> {
        let index = self.pages.partition_point(|page| page.id <= id).checked_sub(1)?;
        self.pages.get(index).filter(|page| id <= page.id + page.overflow)
    }

    /// Returns the counts of all trees together. The field `depth` is the largest depth.
    pub fn total(&self) -> TreeStats {
        let mut total = TreeStats::default();
        self.buckets.iter().for_each(|bucket| total.add(&bucket.stats));
        total
    }
}

impl BoltFile {
    /// Walks the whole file. Fails only if no meta page is valid.
    pub fn survey(&self) -> Result<Survey> {
        let newest = *self.newest()?;
        let mut found = Found::new(newest.meta.root);
        self.note_file_problems(&newest, &mut found.problems);
        let mut walk = Walk::new(&self.pager, self.pages(), self.has_sums());
        walk.walk(newest.meta.root, &mut found)?;
        for run in self.table.runs() {
            match walk.claim(run) {
                Ok(()) => found.add(self.table_entry(run)),
                Err(error) => found.damaged(run.first, error)?,
            }
        }
        if newest.meta.freelist != NO_FREELIST {
            self.survey_freelist(newest.meta.freelist, &mut walk, &mut found)?;
        }
        self.metas().iter().enumerate().for_each(|(place, meta)| {
            found.add(meta_entry(place as PageId, meta.as_ref().ok()));
        });
        let Found { pages, buckets, mut problems, damaged, .. } = found;
        let pages = self.with_the_others(pages, &damaged, &walk);
        problems.sort();
        Ok(Survey { pages, buckets, problems })
    }

    pub(super) fn note_file_problems(&self, newest: &MetaPage, problems: &mut Vec<Problem>) {
        let mut note = |page, reason: String| problems.push(Problem { page, reason });
        for (place, meta) in self.metas().iter().enumerate() {
            let page = Some(place as PageId);
            match meta {
                Ok(meta) if meta.is_damaged => {
                    note(page, "the meta page is damaged; its second copy is intact".to_owned())
                }
                Ok(_) => {}
                Err(reason) => note(page, format!("the meta page is damaged: {reason}")),
            }
        }
        let needed = newest.meta.high_water.saturating_mul(self.page_size() as u64);
        if needed > self.bytes() {
            let bytes = self.bytes();
            note(
                None,
                format!("cut short: the file has {bytes} bytes, but its pages need {needed}"),
            );
        }
        if let Checksums::Damaged(reason) = self.checksums() {
            note(None, format!("the checksums cannot be read: {reason}"));
        }
    }

    fn table_entry(&self, run: PageRun) -> PageEntry {
        let (kind, count, entry_bytes) = match self.table.position(run.first) {
            Some(position) => {
                let per_page = sums_per_page(self.page_size()) as u64;
                let rest = self.pages().saturating_sub(position as u64 * per_page);
                (PageKind::ChecksumTable, rest.min(per_page), 4)
            }
            // The root lists all pages of the table except itself.
            None => (PageKind::ChecksumRoot, self.table.runs().count() as u64 - 1, 12),
        };
        let used_bytes = PAGE_HEADER_BYTES as u64 + count * entry_bytes;
        let (id, overflow) = (run.first, run.count - 1);
        PageEntry { id, kind, count, overflow, bucket: None, depth: 0, used_bytes }
    }

    fn survey_freelist(&self, id: PageId, walk: &mut Walk<'_>, found: &mut Found) -> Result<()> {
        let read = match id < self.pages() {
            true => read_freelist(&self.pager, id),
            false => Err(self.pager.damaged(id, "the freelist is after the last page")),
        };
        let (run, free) = match read {
            Ok(read) => read,
            Err(error) => return found.damaged(id, error),
        };
        let mut listed = BTreeSet::new();
        for page in &free {
            let reason = if *page >= self.pages() {
                "is in the freelist, but is after the last page"
            } else if *page < 2 || walk.is_used(*page) {
                "is in the freelist, but is in use"
            } else if !listed.insert(*page) {
                "is in the freelist twice"
            } else {
                continue;
            };
            found.problems.push(Problem { page: Some(*page), reason: reason.to_owned() });
        }
        match walk.claim(run) {
            Ok(()) => {
                let kind = PageKind::Freelist;
                let (id, count, overflow) = (run.first, free.len() as u64, run.count - 1);
                let used_bytes = PAGE_HEADER_BYTES as u64 + 8 * count;
                let (bucket, depth) = (None, 0);
                found.add(PageEntry { id, kind, count, overflow, bucket, depth, used_bytes });
            }
            Err(error) => found.damaged(id, error)?,
        }
        for page in walk.unused().into_iter().flat_map(PageRun::ids) {
            if !listed.contains(&page) {
                let reason = "is neither in use nor in the freelist".to_owned();
                found.problems.push(Problem { page: Some(page), reason });
            }
        }
        Ok(())
    }

    /// Returns all pages in order: the `known` pages, the free pages and the damaged pages.
    fn with_the_others(
        &self,
        mut known: BTreeMap<PageId, PageEntry>,
        damaged: &BTreeMap<PageId, usize>,
        walk: &Walk<'_>,
    ) -> Vec<PageEntry> {
        let mut pages = Vec::with_capacity(known.len());
        let mut id = 0;
        while id < self.pages() {
            let page = known.remove(&id).unwrap_or_else(|| match walk.is_used(id) {
                true => self.damaged_entry(id, damaged.get(&id).copied()),
                false => free_entry(id),
            });
            id += 1 + page.overflow;
            pages.push(page);
        }
        pages
    }

    fn damaged_entry(&self, id: PageId, bucket: Option<usize>) -> PageEntry {
        let header = self.pager.read_run(PageRun { first: id, count: 1 });
        let header = header.map(|bytes| PageHeader::parse(&bytes));
        let kind = header.as_ref().map_or(PageKind::Unknown, |it| PageKind::of_flags(it.flags));
        let count = header.map_or(0, |header| u64::from(header.count));
        PageEntry { id, kind, count, overflow: 0, bucket, depth: 0, used_bytes: 0 }
    }
}

fn free_entry(id: PageId) -> PageEntry {
    let kind = PageKind::Free;
    PageEntry { id, kind, count: 0, overflow: 0, bucket: None, depth: 0, used_bytes: 0 }
}

fn meta_entry(id: PageId, meta: Option<&MetaPage>) -> PageEntry {
    let trailer = if meta.is_some_and(|meta| meta.table.is_some()) { TRAILER_BYTES } else { 0 };
    let used_bytes = (PAGE_HEADER_BYTES + META_BYTES + trailer) as u64;
    let kind = PageKind::Meta;
    PageEntry { id, kind, count: 0, overflow: 0, bucket: None, depth: 0, used_bytes }
}

/// The results of the walk so far.
#[derive(Debug)]
struct Found {
    pages: BTreeMap<PageId, PageEntry>,
    buckets: Vec<BucketEntry>,
    problems: Vec<Problem>,
    /// Damaged pages, each with the index of the bucket that contains it.
    damaged: BTreeMap<PageId, usize>,
    /// The indexes of the buckets that the walk is inside, from the outermost to the innermost.
    path: Vec<usize>,
}

impl Found {
    fn new(root: PageId) -> Found {
        let stats = TreeStats::default();
        let root = BucketEntry { path: Vec::new(), root: Some(root), leaf: 0, sequence: 0, stats };
        Found {
            pages: BTreeMap::new(),
            buckets: vec![root],
            problems: Vec::new(),
            damaged: BTreeMap::new(),
            path: vec![0],
        }
    }

    fn add(&mut self, page: PageEntry) {
        self.pages.insert(page.id, page);
    }

    fn current(&self) -> usize {
        *self.path.last().expect("the root is never left")
    }

    fn stats(&mut self) -> &mut TreeStats {
        let current = self.current();
        &mut self.buckets[current].stats
    }
}

impl Visit for Found {
    type Stop = Error;

    fn damaged(&mut self, page: PageId, error: Error) -> Result<()> {
        let current = self.current();
        self.damaged.entry(page).or_insert(current);
        self.problems.push(Problem { page: Some(page), reason: reason_of(error, page) });
        Ok(())
    }

    fn page(&mut self, page: &Page, depth: usize) {
        let overflow = u64::from(PageHeader::parse(page.bytes()).overflow);
        let used_bytes = page.used_bytes() as u64;
        let stats = self.stats();
        stats.depth = stats.depth.max(depth + 1);
        let kind = match page.is_leaf() {
            true => {
                stats.leaf_pages += 1;
                stats.leaf_overflow += overflow;
                stats.leaf_used_bytes += used_bytes;
                PageKind::Leaf
            }
            false => {
                stats.branch_pages += 1;
                stats.branch_overflow += overflow;
                stats.branch_used_bytes += used_bytes;
                PageKind::Branch
            }
        };
        let (id, count, bucket) = (page.id(), page.count() as u64, Some(self.current()));
        self.add(PageEntry { id, kind, count, overflow, bucket, depth, used_bytes });
    }

    fn record(&mut self, leaf: &Page, index: usize) -> Result<()> {
        let stats = self.stats();
        stats.records += 1;
        stats.record_bytes += (leaf.key(index).len() + leaf.value(index).len()) as u64;
        Ok(())
    }

    fn begin_bucket(&mut self, leaf: &Page, index: usize, head: &BucketHead) -> Result<bool> {
        let mut path = self.buckets[self.current()].path.clone();
        // The name is copied, because a slice would keep the whole page in memory.
        path.push(Bytes::copy_from_slice(leaf.key(index)));
        let above = self.stats();
        above.buckets += 1;
        let mut stats = TreeStats::default();
        let root = match &head.root {
            BucketRoot::Stored(root) => Some(*root),
            BucketRoot::Inline(page) => {
                above.inline_buckets += 1;
                stats.depth = 1;
                stats.inline_used_bytes = page.used_bytes() as u64;
                None
            }
        };
        self.path.push(self.buckets.len());
        let (leaf, sequence) = (leaf.id(), head.sequence);
        self.buckets.push(BucketEntry { path, root, leaf, sequence, stats });
        Ok(true)
    }

    fn end_bucket(&mut self) -> Result<()> {
        self.path.pop();
        Ok(())
    }
}
