//! The walk over all trees at opening: which pages are in use, and is the file whole?
//!
//! etcd writes no list of free pages, so a program that opens its file walks the trees. What the
//! walk reads anyway is checked: sums, layouts, the order of keys across pages, that no page is
//! reached twice, and that all leaves of a tree are equally deep. It runs before the store is
//! there, and takes no lock.

use bytes::Bytes;

use super::page::{FREELIST_FLAG, PAGE_HEADER_BYTES, Page, PageHeader, PageId, PageRun, u64_at};
use super::pager::Pager;
use super::tree::{BucketHead, BucketRoot, DEPTH_MAX};
use crate::bucket::Bucket;
use crate::error::Result;
use crate::interface::KeyRange;

/// Trees that grow by some levels while the store is open can still be read.
const WALK_DEPTH_MAX: usize = DEPTH_MAX / 2;

#[derive(Debug)]
pub(super) struct Walk<'w> {
    pager: &'w Pager,
    high_water: PageId,
    /// Whether the pager has the sums, or they are made here.
    has_sums: bool,
    used: PageSet,
    /// Bytes of the records in etcd's buckets.
    pub(super) size_in_use: u64,
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

impl Walk<'_> {
    pub(super) fn new(pager: &Pager, high_water: PageId, has_sums: bool) -> Walk<'_> {
        let used = PageSet::new(high_water);
        Walk { pager, high_water, has_sums, used, size_in_use: 0, foreign_buckets: Vec::new() }
    }

    /// Walks everything below the root of the buckets.
    pub(super) fn walk(&mut self, root: PageId) -> Result<()> {
        self.walk_page(root, KeyRange::ALL, Level::Root, 0).map(|_| ())
    }

    /// Notes pages as used that no tree reaches.
    pub(super) fn claim(&mut self, run: PageRun) -> Result<()> {
        if run.ids().end > self.high_water {
            return Err(self.pager.damaged(run.first, "lies behind the last page"));
        }
        match run.ids().find(|id| !self.used.insert(*id)) {
            Some(id) => Err(self.pager.damaged(id, "is used twice")),
            None => Ok(()),
        }
    }

    /// Reads a freelist, and checks that no page in use is on it. Called after the walk. Returns
    /// where it lies.
    pub(super) fn check_freelist(&mut self, id: PageId) -> Result<PageRun> {
        let bytes = self.pager.read(id)?;
        let header = PageHeader::parse(&bytes);
        if header.id != id || header.flags != FREELIST_FLAG {
            return Err(self.pager.damaged(id, "is not a freelist"));
        }
        // A count that does not fit stands in front of the ids.
        let (first, count) = match header.count {
            0xFFFF => (PAGE_HEADER_BYTES + 8, u64_at(&bytes, PAGE_HEADER_BYTES)),
            count => (PAGE_HEADER_BYTES, u64::from(count)),
        };
        let ids = bytes[first..].chunks_exact(8).map(|id| u64_at(id, 0));
        if count > ids.len() as u64 {
            return Err(self.pager.damaged(id, format!("a freelist of {count} pages")));
        }
        let mut ids = ids.take(count as usize);
        if let Some(free) = ids.find(|free| *free >= self.high_water || self.used.contains(*free)) {
            return Err(self.pager.damaged(id, format!("page {free} is in use or lies outside")));
        }
        let run = PageRun { first: id, count: 1 + u64::from(header.overflow) };
        self.claim(run)?;
        Ok(run)
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

    /// Returns how many levels lie below the page.
    fn walk_page(
        &mut self,
        id: PageId,
        range: KeyRange<'_>,
        level: Level,
        depth: usize,
    ) -> Result<usize> {
        if depth == WALK_DEPTH_MAX {
            return Err(self.pager.damaged(id, format!("lies below {WALK_DEPTH_MAX} others")));
        }
        let page = self.read(id)?;
        let ends = [0, page.count().saturating_sub(1)];
        if page.count() > 0 && ends.into_iter().any(|index| !range.contains(page.key(index))) {
            return Err(self.pager.damaged(id, "has a key that belongs on another page"));
        }
        if page.is_leaf() {
            self.walk_leaf(&page, level, depth)?;
            return Ok(0);
        }
        let mut levels = None;
        for index in 0..page.count() {
            let is_last = index + 1 == page.count();
            let to = if is_last { range.to } else { Some(page.key(index + 1)) };
            let range = KeyRange { from: page.key(index), to };
            let child = page.child(index);
            let below = self.walk_page(child, range, level, depth + 1)?;
            // Such pages cannot be merged.
            if *levels.get_or_insert(below) != below {
                return Err(self.pager.damaged(child, "has not as many levels as its neighbour"));
            }
        }
        self.pager.keep(page);
        Ok(1 + levels.unwrap_or_default())
    }

    fn walk_leaf(&mut self, page: &Page, level: Level, depth: usize) -> Result<()> {
        for index in 0..page.count() {
            if page.is_bucket(index) {
                self.walk_bucket(page.key(index), &page.shared_value(index), level, depth)?;
            } else {
                match level {
                    Level::Root => {
                        return Err(self.pager.damaged(page.id(), "a record among the buckets"));
                    }
                    Level::Bucket => {
                        self.size_in_use += (page.key(index).len() + page.value(index).len()) as u64
                    }
                    Level::Foreign => {}
                }
            }
        }
        Ok(())
    }

    fn walk_bucket(
        &mut self,
        name: &[u8],
        value: &Bytes,
        level: Level,
        depth: usize,
    ) -> Result<()> {
        let is_ours = Bucket::ALL.into_iter().any(|bucket| bucket.name().as_bytes() == name);
        let below = if level == Level::Root && is_ours { Level::Bucket } else { Level::Foreign };
        if below == Level::Foreign && level != Level::Foreign {
            self.foreign_buckets.push(String::from_utf8_lossy(name).into_owned());
        }
        let head = BucketHead::parse(value);
        match head.map_err(|damage| damage.in_file(self.pager.path()))?.root {
            BucketRoot::Stored(root) => {
                self.walk_page(root, KeyRange::ALL, below, depth + 1).map(|_| ())
            }
            BucketRoot::Inline(page) => self.walk_leaf(&page, below, depth + 1),
        }
    }

    fn read(&mut self, id: PageId) -> Result<Page> {
        if id >= self.high_water {
            return Err(self.pager.damaged(id, "lies behind the last page"));
        }
        let page = match self.has_sums {
            true => self.pager.read_checked(id)?,
            false => self.pager.read_unchecked(id)?,
        };
        let overflow = PageHeader::parse(page.bytes()).overflow;
        self.claim(PageRun { first: id, count: 1 + u64::from(overflow) })?;
        Ok(page)
    }
}

/// One bit per page.
#[derive(Debug)]
struct PageSet {
    words: Vec<u64>,
}

impl PageSet {
    fn new(pages: PageId) -> PageSet {
        PageSet { words: vec![0; pages.div_ceil(64) as usize] }
    }

    /// Returns whether it is new.
    fn insert(&mut self, id: PageId) -> bool {
        let word = &mut self.words[id as usize / 64];
        let bit = 1 << (id % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    fn contains(&self, id: PageId) -> bool {
        self.words[id as usize / 64] & (1 << (id % 64)) != 0
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use crate::bolt::meta::{Meta, NO_FREELIST, encode_meta_page};
    use crate::bolt::page::{BranchElement, LeafElement, PageId, encode_branch, encode_leaf};
    use crate::bolt::simulated_file::{open_image, refused};
    use crate::{Bucket, Read as _};

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
        let store = open_image(chain(super::WALK_DEPTH_MAX as u64 - 2)).unwrap();
        let snapshot = crate::bolt::BoltSnapshot::new(&store);
        assert_eq!(snapshot.get(Bucket::Key, b"a").unwrap().unwrap(), &b"value"[..]);
        assert!(refused(chain(super::WALK_DEPTH_MAX as u64 - 1)).ends_with("others"));
    }
}
