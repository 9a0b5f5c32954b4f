//! Keeps pages in memory, up to a number of bytes.
//!
//! The cache is divided into shards, and the id of a page determines its shard. Each shard has a
//! lock. The lock is held during an insertion, or during a lookup and the search in the found page.
//! It is never held while the file is read. Eviction gives each page a second chance: the oldest
//! page is evicted unless it was used since it was last considered.
//!
//! A committed page does not change while a reader can reach it. When a page id is used again, the
//! writer inserts the new page, which replaces the old one.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use parking_lot::Mutex;

use super::page::{Page, PageId};

const SHARDS: usize = 16;
/// The bytes that an entry needs in addition to the page's bytes.
const ENTRY_BYTES: usize = 128;

#[derive(Debug)]
pub(super) struct PageCache {
    shards: [Mutex<Shard>; SHARDS],
    shard_bytes_max: usize,
}

#[derive(Debug, Default)]
struct Shard {
    pages: HashMap<PageId, CachedPage, BuildHasherDefault<PageIdHasher>>,
    /// The ids of all entries of `pages`, each exactly once. The next candidate for eviction is at
    /// the front.
    order: VecDeque<PageId>,
    bytes: usize,
}

#[derive(Debug)]
struct CachedPage {
    page: Page,
    was_used: bool,
}

impl PageCache {
    pub(super) fn new(bytes_max: usize) -> PageCache {
        PageCache { shards: Default::default(), shard_bytes_max: bytes_max / SHARDS }
    }

    pub(super) fn get(&self, id: PageId) -> Option<Page> {
        self.with(id, Page::clone)
    }

    /// Calls `look` with a cached page, or returns `None` if the page is not cached. The shard's
    /// lock is held during the call.
    pub(super) fn with<T>(&self, id: PageId, look: impl FnOnce(&Page) -> T) -> Option<T> {
        let mut shard = self.shard(id).lock();
        let cached = shard.pages.get_mut(&id)?;
        cached.was_used = true;
        Some(look(&cached.page))
    }

    pub(super) fn insert(&self, page: Page) {
        let mut shard = self.shard(page.id()).lock();
        if cost(&page) > self.shard_bytes_max {
            // Keeping this page would evict all other pages of the shard and then the page itself.
            // An old version of the page must not stay, because it would be outdated.
            shard.remove(page.id());
            return;
        }
        shard.insert(page);
        while shard.bytes > self.shard_bytes_max {
            shard.evict_one();
        }
    }

    fn shard(&self, id: PageId) -> &Mutex<Shard> {
        &self.shards[id as usize % SHARDS]
    }
}

impl Shard {
    fn insert(&mut self, page: Page) {
        let id = page.id();
        self.bytes += cost(&page);
        match self.pages.insert(id, CachedPage { page, was_used: false }) {
            Some(old) => self.bytes -= cost(&old.page),
            None => self.order.push_back(id),
        }
    }

    fn remove(&mut self, id: PageId) {
        if let Some(old) = self.pages.remove(&id) {
            self.bytes -= cost(&old.page);
            self.order.retain(|other| *other != id);
        }
    }

    fn evict_one(&mut self) {
        let Some(id) = self.order.pop_front() else { return };
        let cached = self.pages.get_mut(&id).expect("an id in order has its page");
        if cached.was_used {
            cached.was_used = false;
            self.order.push_back(id);
            return;
        }
        let removed = self.pages.remove(&id);
        self.bytes -= removed.map_or(0, |cached| cost(&cached.page));
    }
}

fn cost(page: &Page) -> usize {
    page.bytes().len() + ENTRY_BYTES
}

/// A hasher for page ids. Page ids are small and consecutive, so one multiplication spreads them
/// well.
#[derive(Debug, Default)]
struct PageIdHasher {
    hash: u64,
}

impl Hasher for PageIdHasher {
    fn finish(&self) -> u64 {
        self.hash
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.hash = (self.hash ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_right(29);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bolt::page::encode_leaf;

    fn page(id: PageId) -> Page {
        Page::parse(encode_leaf(id, 1024, 1024, &[]), id).unwrap()
    }

    /// Ids that all belong to the same shard.
    fn ids(count: u64) -> impl Iterator<Item = PageId> {
        (1..=count).map(|number| number * SHARDS as u64)
    }

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let cache = PageCache::new(SHARDS * 4 * (1024 + ENTRY_BYTES));
        cache.insert(page(SHARDS as u64));
        for id in ids(100) {
            cache.insert(page(id));
            assert_eq!(cache.get(SHARDS as u64).unwrap().id(), SHARDS as u64);
        }
        let kept = ids(100).filter(|id| cache.get(*id).is_some()).count();
        assert_eq!(kept, 4);
        assert!(cache.get(100 * SHARDS as u64).is_some(), "the newest");
    }

    #[test]
    fn a_page_that_is_too_large_takes_the_place_of_its_old_self_and_of_no_other() {
        let cache = PageCache::new(SHARDS * 2 * (1024 + ENTRY_BYTES));
        cache.insert(page(32));
        cache.insert(page(48));
        let large = |id| Page::parse(encode_leaf(id, 1024, 4096, &[]), id).unwrap();
        cache.insert(large(64));
        assert!([32, 48].iter().all(|id| cache.get(*id).is_some()), "put out for nothing");
        cache.insert(large(32));
        assert!(cache.get(32).is_none());
        assert!(cache.get(48).is_some());
        cache.insert(page(64));
        cache.insert(page(80));
        assert!(cache.get(80).is_some());
    }
}
