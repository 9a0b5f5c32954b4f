//! Walks all trees to learn which pages are in use and whether the file is undamaged.
//!
//! etcd writes no list of free pages, so a program that opens its file must walk the trees. The
//! walk also checks everything that it reads: checksums, layouts and the order of keys across
//! pages. No page may be reached twice, and all leaves of a tree must have the same depth. The walk
//! runs before the store exists, or on a file that is only read. So no other thread waits for the
//! locks of the pager and of its cache.
//!
//! A [`Visit`] decides what happens with each page and with damage. Opening a store stops at the
//! first damage. A [survey](super::inspect) continues with the undamaged pages.

use bytes::Bytes;

use super::page::{FREELIST_FLAG, PAGE_HEADER_BYTES, Page, PageHeader, PageId, PageRun, u64_at};
use super::pager::Pager;
use super::tree::{BucketHead, BucketRoot, DEPTH_MAX};
use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::interface::KeyRange;

/// Number of levels that a tree may have in addition to log2 of the high-water mark, which is one
/// more than the largest page id ever used. A tree whose branches have two children each needs only
/// log2 levels. A tree within the limit never grows beyond it, because a level is added only above
/// full pages. So a store that was opened once can be opened again.
const LEVELS_TO_SPARE: usize = 8;

#[derive(Debug)]
pub(super) struct Walk<'w> {
    pager: &'w Pager,
    high_water: PageId,
    /// If true, the pager has the checksums. If false, the walk computes them.
    has_sums: bool,
    used: PageSet,
}

/// The actions of a walk: a walk calls these methods for everything it finds.
pub(super) trait Visit {
    /// The reason why a walk ends early.
    type Stop: From<Error>;

    /// Called for a damaged page. If it returns `Ok`, the walk continues, and it also visits this
    /// page if the page can be read and parsed.
    fn damaged(&mut self, page: PageId, error: Error) -> std::result::Result<(), Self::Stop>;

    /// Called for a page of a tree, before its elements and the pages below it. The root has the
    /// depth 0.
    fn page(&mut self, _page: &Page, _depth: usize) {}

    fn record(&mut self, _leaf: &Page, _index: usize) -> std::result::Result<(), Self::Stop> {
        Ok(())
    }

    /// Called for a leaf element that contains a bucket. Returns whether the walk must enter the
    /// bucket's tree.
    fn begin_bucket(
        &mut self,
        leaf: &Page,
        index: usize,
        head: &BucketHead,
    ) -> std::result::Result<bool, Self::Stop>;

    /// Called when the walk leaves a tree that it has entered.
    fn end_bucket(&mut self) -> std::result::Result<(), Self::Stop> {
        Ok(())
    }
}

/// The position of a page in the trees.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// If true, the page belongs to the tree of the buckets, which contains no records.
    is_root: bool,
    /// Number of levels from the root of the page's own tree down to the page.
    depth: usize,
    /// Number of levels from the page where the walk started down to this page. This number
    /// includes the trees of the buckets above.
    depth_of_all: usize,
}

impl Place {
    fn below(self) -> Place {
        Place { depth: self.depth + 1, depth_of_all: self.depth_of_all + 1, ..self }
    }

    fn bucket(self) -> Place {
        Place { is_root: false, depth: 0, depth_of_all: self.depth_of_all + 1 }
    }
}

impl Walk<'_> {
    pub(super) fn new(pager: &Pager, high_water: PageId, has_sums: bool) -> Walk<'_> {
        Walk { pager, high_water, has_sums, used: PageSet::new(high_water) }
    }

    /// Walks the tree of the buckets and every tree below it.
    pub(super) fn walk<V: Visit>(
        &mut self,
        root: PageId,
        visit: &mut V,
    ) -> std::result::Result<(), V::Stop> {
        let place = Place { is_root: true, depth: 0, depth_of_all: 0 };
        self.walk_page(root, KeyRange::ALL, place, visit).map(|_| ())
    }

    /// Walks the tree of one bucket and the trees of the buckets in it.
    pub(super) fn walk_tree<V: Visit>(
        &mut self,
        root: &BucketRoot,
        visit: &mut V,
    ) -> std::result::Result<(), V::Stop> {
        let place = Place { is_root: false, depth: 0, depth_of_all: 0 };
        match root {
            BucketRoot::Stored(root) => {
                self.walk_page(*root, KeyRange::ALL, place, visit).map(|_| ())
            }
            BucketRoot::Inline(page) => self.walk_leaf(page, place, visit),
        }
    }

    /// Marks pages as used. Fails if a page is already used or is after the last page.
    pub(super) fn claim(&mut self, run: PageRun) -> Result<()> {
        if run.ids().end > self.high_water {
            return Err(self.pager.damaged(run.first, "is after the last page"));
        }
        match run.ids().find(|id| !self.used.insert(*id)) {
            Some(id) if id == run.first => Err(self.pager.damaged(id, "is used twice")),
            Some(id) => {
                let reason = format!("its overflow reaches page {id}, which is already used");
                Err(self.pager.damaged(run.first, reason))
            }
            None => Ok(()),
        }
    }

    /// Reads a freelist and checks that it lists no page that is in use or outside the file. Must
    /// be called after the walk. Returns the pages that the freelist occupies.
    pub(super) fn check_freelist(&mut self, id: PageId) -> Result<PageRun> {
        let (run, ids) = read_freelist(self.pager, id)?;
        let is_wrong = |free: &PageId| *free >= self.high_water || self.used.contains(*free);
        if let Some(free) = ids.into_iter().find(is_wrong) {
            return Err(self.pager.damaged(
                id,
                format!("page {free} is listed as free, but is in use or outside the file"),
            ));
        }
        self.claim(run)?;
        Ok(run)
    }

    /// Returns whether page `id` is in use. `id` must be below the high-water mark.
    pub(super) fn is_used(&self, id: PageId) -> bool {
        self.used.contains(id)
    }

    /// Returns the runs of pages that are not in use.
    pub(super) fn unused(&self) -> Vec<PageRun> {
        let mut runs: Vec<PageRun> = Vec::new();
        for id in (2..self.high_water).filter(|id| !self.used.contains(*id)) {
            match runs.last_mut() {
                Some(run) if run.ids().end == id => run.count += 1,
                _ => runs.push(PageRun { first: id, count: 1 }),
            }
        }
        runs
    }

    /// Walks a page and everything below it. Returns the number of levels below the page, or `None`
    /// if this number is unknown because of damage.
    fn walk_page<V: Visit>(
        &mut self,
        id: PageId,
        range: KeyRange<'_>,
        place: Place,
        visit: &mut V,
    ) -> std::result::Result<Option<usize>, V::Stop> {
        if place.depth_of_all == DEPTH_MAX {
            let error = self.pager.damaged(id, format!("is deeper than {DEPTH_MAX} levels"));
            return visit.damaged(id, error).map(|()| None);
        }
        let Some(page) = self.read(id, visit)? else { return Ok(None) };
        let ends = [0, page.count().saturating_sub(1)];
        if page.count() > 0 && ends.into_iter().any(|index| !range.contains(page.key(index))) {
            let error = self.pager.damaged(id, "has a key that belongs on another page");
            visit.damaged(id, error)?;
        }
        visit.page(&page, place.depth);
        if page.is_leaf() {
            self.walk_leaf(&page, place, visit)?;
            return Ok(Some(0));
        }
        let mut levels = None;
        for index in 0..page.count() {
            let is_last = index + 1 == page.count();
            let to = if is_last { range.to } else { Some(page.key(index + 1)) };
            let range = KeyRange { from: page.key(index), to };
            let child = page.child(index);
            let below = self.walk_page(child, range, place.below(), visit)?;
            // Neighbours with different numbers of levels could not be merged later.
            if below.is_some_and(|below| *levels.get_or_insert(below) != below) {
                let error = self
                    .pager
                    .damaged(child, "has a different number of levels than its neighbour");
                visit.damaged(child, error)?;
            }
        }
        let levels = levels.map(|levels| levels + 1);
        let levels_max = LEVELS_TO_SPARE + self.high_water.ilog2() as usize;
        if let Some(levels) = levels.filter(|levels| *levels > levels_max) {
            let error = self.pager.damaged(id, format!("has {levels} levels below it, too many"));
            visit.damaged(id, error)?;
        }
        // A survey continues after a wrong checksum, but such a page must not get into the cache.
        if !self.has_sums || self.pager.check_sum(id, page.bytes()).is_ok() {
            self.pager.keep(page);
        }
        Ok(levels)
    }

    fn walk_leaf<V: Visit>(
        &mut self,
        page: &Page,
        place: Place,
        visit: &mut V,
    ) -> std::result::Result<(), V::Stop> {
        for index in 0..page.count() {
            if page.is_bucket(index) {
                self.walk_bucket(page, index, place, visit)?;
            } else if place.is_root {
                let error = self.pager.damaged(page.id(), "a record among the buckets");
                visit.damaged(page.id(), error)?;
            } else {
                visit.record(page, index)?;
            }
        }
        Ok(())
    }

    fn walk_bucket<V: Visit>(
        &mut self,
        leaf: &Page,
        index: usize,
        place: Place,
        visit: &mut V,
    ) -> std::result::Result<(), V::Stop> {
        let head = match BucketHead::parse(&leaf.shared_value(index)) {
            Ok(head) => head,
            Err(damage) => {
                let reason = format!("element {index}: {}", damage.reason);
                return visit.damaged(leaf.id(), self.pager.damaged(leaf.id(), reason));
            }
        };
        if !visit.begin_bucket(leaf, index, &head)? {
            return Ok(());
        }
        match &head.root {
            BucketRoot::Stored(root) => {
                self.walk_page(*root, KeyRange::ALL, place.bucket(), visit)?;
            }
            BucketRoot::Inline(page) => self.walk_leaf(page, place.bucket(), visit)?,
        }
        visit.end_bucket()
    }

    /// Reads one page. Returns `None` if it is damaged and the walk continues without it.
    fn read<V: Visit>(
        &mut self,
        id: PageId,
        visit: &mut V,
    ) -> std::result::Result<Option<Page>, V::Stop> {
        let bytes = match self.claim_and_read(id) {
            Ok(bytes) => bytes,
            Err(error) => return visit.damaged(id, error).map(|()| None),
        };
        if !self.has_sums {
            self.pager.set_sums(&[(id, crc32c::crc32c(&bytes))]);
        } else if let Err(error) = self.pager.check_sum(id, &bytes) {
            visit.damaged(id, error)?;
        }
        match self.pager.parse(bytes, id) {
            Ok(page) => Ok(Some(page)),
            Err(error) => visit.damaged(id, error).map(|()| None),
        }
    }

    /// Claims a page with its overflow, and then reads the overflow. In this order, no overflow is
    /// read twice.
    fn claim_and_read(&mut self, id: PageId) -> Result<Bytes> {
        if id >= self.high_water {
            return Err(self.pager.damaged(id, "is after the last page"));
        }
        if self.used.contains(id) {
            return Err(self.pager.damaged(id, "is used twice"));
        }
        let (first, run) = self.pager.read_first(id).inspect_err(|_| {
            self.used.insert(id);
        })?;
        self.claim(run).inspect_err(|_| {
            self.used.insert(id);
        })?;
        self.pager.read_rest(first, run)
    }
}

/// Returns the pages that a freelist occupies, and the free pages that it lists.
pub(super) fn read_freelist(pager: &Pager, id: PageId) -> Result<(PageRun, Vec<PageId>)> {
    let bytes = pager.read(id)?;
    let header = PageHeader::parse(&bytes);
    if header.id != id || header.flags != FREELIST_FLAG {
        return Err(pager.damaged(id, "is not a freelist"));
    }
    let (count, ids) = freelist_entries(&bytes);
    if count > ids.len() as u64 {
        return Err(pager.damaged(id, format!("a freelist of {count} pages, more than fit")));
    }
    let run = PageRun { first: id, count: 1 + u64::from(header.overflow) };
    Ok((run, ids.take(count as usize).collect()))
}

/// Returns the number of pages that a freelist claims to list, and an iterator over all ids for
/// which it has space.
pub(super) fn freelist_entries(bytes: &[u8]) -> (u64, impl ExactSizeIterator<Item = PageId>) {
    // A count that does not fit into the header is stored before the ids.
    let (first, count) = match PageHeader::parse(bytes).count {
        0xFFFF => (PAGE_HEADER_BYTES + 8, u64_at(bytes, PAGE_HEADER_BYTES)),
        count => (PAGE_HEADER_BYTES, u64::from(count)),
    };
    (count, bytes[first..].chunks_exact(8).map(|id| u64_at(id, 0)))
}

/// The result of the walk that opens a store. This walk stops at the first damage.
#[derive(Debug)]
pub(super) struct InUse {
    /// The kinds of the trees from the root to the tree that is being walked.
    levels: Vec<Level>,
    /// Number of bytes of the keys and values in etcd's buckets.
    pub(super) size: u64,
    /// The names of buckets that etcd does not have.
    pub(super) foreign_buckets: Vec<String>,
}

/// The kind of tree that contains a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    /// The tree of the buckets.
    Root,
    /// The tree of one of the ten buckets.
    Bucket,
    Foreign,
}

impl InUse {
    pub(super) fn new() -> InUse {
        InUse { levels: vec![Level::Root], size: 0, foreign_buckets: Vec::new() }
    }

    fn level(&self) -> Level {
        *self.levels.last().expect("the root is never left")
    }
}

impl Visit for InUse {
    type Stop = Error;

    fn damaged(&mut self, _page: PageId, error: Error) -> Result<()> {
        Err(error)
    }

    fn record(&mut self, leaf: &Page, index: usize) -> Result<()> {
        if self.level() == Level::Bucket {
            self.size += (leaf.key(index).len() + leaf.value(index).len()) as u64;
        }
        Ok(())
    }

    fn begin_bucket(&mut self, leaf: &Page, index: usize, _head: &BucketHead) -> Result<bool> {
        let (name, level) = (leaf.key(index), self.level());
        let is_ours = Bucket::ALL.into_iter().any(|bucket| bucket.name().as_bytes() == name);
        let below = if level == Level::Root && is_ours { Level::Bucket } else { Level::Foreign };
        if below == Level::Foreign && level != Level::Foreign {
            self.foreign_buckets.push(String::from_utf8_lossy(name).into_owned());
        }
        self.levels.push(below);
        Ok(true)
    }

    fn end_bucket(&mut self) -> Result<()> {
        self.levels.pop();
        Ok(())
    }
}

/// A set of pages, with one bit for each page.
#[derive(Debug)]
pub(super) struct PageSet {
    words: Vec<u64>,
}

impl PageSet {
    pub(super) fn new(pages: PageId) -> PageSet {
        PageSet { words: vec![0; pages.div_ceil(64) as usize] }
    }

    /// Adds a page. Returns false if the set already had it.
    pub(super) fn insert(&mut self, id: PageId) -> bool {
        let word = &mut self.words[id as usize / 64];
        let bit = 1 << (id % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    pub(super) fn contains(&self, id: PageId) -> bool {
        self.words[id as usize / 64] & (1 << (id % 64)) != 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use crate::Bucket;
    use crate::bolt::meta::{Meta, NO_FREELIST, encode_meta_page};
    use crate::bolt::page::{BranchElement, LeafElement, PageId, encode_branch, encode_leaf};
    use crate::bolt::simulated_disk::SimulatedDisk;
    use crate::bolt::simulated_file::{open, refused};
    use crate::durable::DurableStore as _;
    use crate::writer_lock::WriterLock;

    const PAGE: usize = 1024;

    fn leaf(id: PageId, key: &str) -> Bytes {
        let record = Bytes::from(format!("{key}value"));
        encode_leaf(id, PAGE, PAGE, &[LeafElement::new(record, key.len(), false)])
    }

    fn branch(id: PageId, children: &[(&'static str, PageId)]) -> Bytes {
        let element =
            |&(key, child): &(&'static str, PageId)| BranchElement { key: key.into(), child };
        let elements: Vec<BranchElement> = children.iter().map(element).collect();
        encode_branch(id, PAGE, PAGE, &elements)
    }

    /// Returns a file whose bucket `key` consists of `pages`, starting at page 3. The first of
    /// these pages is the root.
    fn file(pages: &[Bytes]) -> Vec<u8> {
        let high_water = 3 + pages.len() as PageId;
        let (page_size, root, freelist) = (PAGE as u32, 2, NO_FREELIST);
        let meta = |txid| Meta { page_size, root, sequence: 0, freelist, high_water, txid };
        let record = [&b"key"[..], &3_u64.to_le_bytes(), &[0; 8]].concat();
        let bucket = LeafElement::new(record.into(), 3, true);
        let mut file: Vec<u8> =
            [0, 1].into_iter().flat_map(|txid| encode_meta_page(&meta(txid), None)).collect();
        file.extend_from_slice(&encode_leaf(2, PAGE, PAGE, &[bucket]));
        pages.iter().for_each(|page| file.extend_from_slice(page));
        file
    }

    #[test]
    fn a_tree_with_leaves_at_two_depths_is_refused() {
        let pages = [
            branch(3, &[("a", 4), ("m", 5)]),
            leaf(4, "a"),
            branch(5, &[("m", 6), ("p", 7)]),
            leaf(6, "m"),
            leaf(7, "p"),
        ];
        let line = refused(file(&pages));
        assert!(
            line.ends_with("page 5: has a different number of levels than its neighbour"),
            "{line}"
        );
    }

    #[test]
    fn a_tree_that_is_too_deep_is_refused() {
        let chain = |levels: u64| {
            let mut pages: Vec<Bytes> =
                (3..3 + levels).map(|id| branch(id, &[("a", id + 1)])).collect();
            pages.push(leaf(3 + levels, "a"));
            file(&pages)
        };
        // A tree with exactly the maximum depth opens, and opens again after commits have added
        // records.
        let disk = SimulatedDisk::with_contents(chain(12));
        for round in 0..5 {
            let store = open(&disk).unwrap();
            let found = store.snapshot().unwrap().get(Bucket::Key, b"a").unwrap();
            assert_eq!(found.unwrap(), &b"value"[..]);
            let lock = Arc::<WriterLock>::default();
            let mut txn = store.begin_write(lock.acquire().unwrap()).unwrap();
            for number in 0..300_u32 {
                let key = [&b"b"[..], &[round; 200], &number.to_be_bytes()].concat();
                txn.put(Bucket::Key, &key, &[1; 200]).unwrap();
            }
            txn.commit().unwrap();
        }
        // The limit is 12: 8 levels to spare, and 4 because log2 of 16 to 31 pages is 4.
        let line = refused(chain(13));
        assert!(line.ends_with("page 3: has 13 levels below it, too many"), "{line}");
        assert!(refused(chain(80)).ends_with("is deeper than 64 levels"));
    }
}
