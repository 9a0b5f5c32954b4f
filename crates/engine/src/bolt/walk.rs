//! The walk over all trees: which pages are in use, and is the file whole?
//!
//! etcd writes no list of free pages, so a program that opens its file walks the trees. What the
//! walk reads anyway is checked: sums, layouts, the order of keys across pages, that no page is
//! reached twice, and that all leaves of a tree are equally deep. It runs before the store is
//! there, and takes no lock.
//!
//! What is done with what it finds, and with what is damaged, is a [`Visit`]: opening stops at the
//! first damage; a [survey](super::inspect) goes on with what is whole.

use bytes::Bytes;

use super::page::{FREELIST_FLAG, PAGE_HEADER_BYTES, Page, PageHeader, PageId, PageRun, u64_at};
use super::pager::Pager;
use super::tree::{BucketHead, BucketRoot, DEPTH_MAX};
use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::interface::KeyRange;

/// So many levels a tree may have beyond those of one whose branches have two children each. A
/// tree with fewer does not come to have more, since a level is added to full pages only: what was
/// opened is opened again.
const LEVELS_TO_SPARE: usize = 8;

#[derive(Debug)]
pub(super) struct Walk<'w> {
    pager: &'w Pager,
    high_water: PageId,
    /// Whether the pager has the sums, or they are made here.
    has_sums: bool,
    used: PageSet,
}

/// What is done with what a walk finds.
pub(super) trait Visit {
    /// Why a walk ends early.
    type Stop: From<Error>;

    /// Something is wrong with a page. If this returns `Ok`, the walk goes on with the rest.
    fn damaged(&mut self, page: PageId, error: Error) -> std::result::Result<(), Self::Stop>;

    /// A page of a tree, before what is on it and below it. The root has the depth 0.
    fn page(&mut self, _page: &Page, _depth: usize) {}

    fn record(&mut self, _leaf: &Page, _index: usize) -> std::result::Result<(), Self::Stop> {
        Ok(())
    }

    /// A bucket's record on a leaf. Returns whether to walk the bucket's tree.
    fn begin_bucket(
        &mut self,
        leaf: &Page,
        index: usize,
        head: &BucketHead,
    ) -> std::result::Result<bool, Self::Stop>;

    /// The walk leaves a tree that it was told to walk.
    fn end_bucket(&mut self) -> std::result::Result<(), Self::Stop> {
        Ok(())
    }
}

/// Where a page is that the walk comes to.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// In the tree of the buckets, in which there are no records.
    is_root: bool,
    /// Below the root of its own tree.
    depth: usize,
    /// Below the first page of the walk.
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

    /// Walks everything below the root of the buckets.
    pub(super) fn walk<V: Visit>(
        &mut self,
        root: PageId,
        visit: &mut V,
    ) -> std::result::Result<(), V::Stop> {
        let place = Place { is_root: true, depth: 0, depth_of_all: 0 };
        self.walk_page(root, KeyRange::ALL, place, visit).map(|_| ())
    }

    /// Walks the tree of one bucket, and those below it.
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

    /// Notes pages as used that no tree reaches.
    pub(super) fn claim(&mut self, run: PageRun) -> Result<()> {
        if run.ids().end > self.high_water {
            return Err(self.pager.damaged(run.first, "lies behind the last page"));
        }
        match run.ids().find(|id| !self.used.insert(*id)) {
            Some(id) if id == run.first => Err(self.pager.damaged(id, "is used twice")),
            Some(id) => {
                let reason = format!("its overflow reaches page {id}, which is used already");
                Err(self.pager.damaged(run.first, reason))
            }
            None => Ok(()),
        }
    }

    /// Reads a freelist, and checks that no page in use is on it. Called after the walk. Returns
    /// where it lies.
    pub(super) fn check_freelist(&mut self, id: PageId) -> Result<PageRun> {
        let (run, ids) = read_freelist(self.pager, id)?;
        let is_wrong = |free: &PageId| *free >= self.high_water || self.used.contains(*free);
        if let Some(free) = ids.into_iter().find(is_wrong) {
            return Err(self.pager.damaged(id, format!("page {free} is in use or lies outside")));
        }
        self.claim(run)?;
        Ok(run)
    }

    /// `id` is below the high-water mark.
    pub(super) fn is_used(&self, id: PageId) -> bool {
        self.used.contains(id)
    }

    /// The runs of pages that are not in use.
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

    /// Returns how many levels lie below the page, if that is known.
    fn walk_page<V: Visit>(
        &mut self,
        id: PageId,
        range: KeyRange<'_>,
        place: Place,
        visit: &mut V,
    ) -> std::result::Result<Option<usize>, V::Stop> {
        if place.depth_of_all == DEPTH_MAX {
            let error = self.pager.damaged(id, format!("lies below {DEPTH_MAX} others"));
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
            // Such pages cannot be merged.
            if below.is_some_and(|below| *levels.get_or_insert(below) != below) {
                let error = self.pager.damaged(child, "has not as many levels as its neighbour");
                visit.damaged(child, error)?;
            }
        }
        let levels = levels.map(|levels| levels + 1);
        let levels_max = LEVELS_TO_SPARE + self.high_water.ilog2() as usize;
        if let Some(levels) = levels.filter(|levels| *levels > levels_max) {
            let error = self.pager.damaged(id, format!("lies above {levels} levels, too many"));
            visit.damaged(id, error)?;
        }
        // A survey goes on behind a wrong sum, and such a page must not be found in the cache.
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

    /// `None` if the page is damaged and the walk goes on without it.
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

    /// A page is claimed before its overflow is read, so that nothing is read twice.
    fn claim_and_read(&mut self, id: PageId) -> Result<Bytes> {
        if id >= self.high_water {
            return Err(self.pager.damaged(id, "lies behind the last page"));
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

/// Where a freelist lies, and the pages on it.
pub(super) fn read_freelist(pager: &Pager, id: PageId) -> Result<(PageRun, Vec<PageId>)> {
    let bytes = pager.read(id)?;
    let header = PageHeader::parse(&bytes);
    if header.id != id || header.flags != FREELIST_FLAG {
        return Err(pager.damaged(id, "is not a freelist"));
    }
    let (count, ids) = freelist_entries(&bytes);
    if count > ids.len() as u64 {
        return Err(pager.damaged(id, format!("a freelist of {count} pages")));
    }
    let run = PageRun { first: id, count: 1 + u64::from(header.overflow) };
    Ok((run, ids.take(count as usize).collect()))
}

/// How many pages a freelist says that it has, and all that it has room for.
pub(super) fn freelist_entries(bytes: &[u8]) -> (u64, impl ExactSizeIterator<Item = PageId>) {
    // A count that does not fit stands in front of the ids.
    let (first, count) = match PageHeader::parse(bytes).count {
        0xFFFF => (PAGE_HEADER_BYTES + 8, u64_at(bytes, PAGE_HEADER_BYTES)),
        count => (PAGE_HEADER_BYTES, u64::from(count)),
    };
    (count, bytes[first..].chunks_exact(8).map(|id| u64_at(id, 0)))
}

/// What opening takes from a walk. It stops at the first damage.
#[derive(Debug)]
pub(super) struct InUse {
    /// Of the trees from the root to the one that is walked.
    levels: Vec<Level>,
    /// Bytes of the records in etcd's buckets.
    pub(super) size: u64,
    /// Buckets that are not etcd's.
    pub(super) foreign_buckets: Vec<String>,
}

/// In which tree a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    /// That of the buckets.
    Root,
    /// That of one of the ten.
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

/// One bit per page.
#[derive(Debug)]
pub(super) struct PageSet {
    words: Vec<u64>,
}

impl PageSet {
    pub(super) fn new(pages: PageId) -> PageSet {
        PageSet { words: vec![0; pages.div_ceil(64) as usize] }
    }

    /// Returns whether it is new.
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

    /// A file whose bucket `key` has these pages, from page 3 on; the first is the root.
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
        assert!(line.ends_with("page 5: has not as many levels as its neighbour"), "{line}");
    }

    #[test]
    fn a_tree_that_is_too_deep_is_refused() {
        let chain = |levels: u64| {
            let mut pages: Vec<Bytes> =
                (3..3 + levels).map(|id| branch(id, &[("a", id + 1)])).collect();
            pages.push(leaf(3 + levels, "a"));
            file(&pages)
        };
        // What is just not too deep may grow.
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
        // 8 to spare, and 4 for less than 32 pages.
        let line = refused(chain(13));
        assert!(line.ends_with("page 3: lies above 13 levels, too many"), "{line}");
        assert!(refused(chain(80)).ends_with("lies below 64 others"));
    }
}
