//! A snapshot of one committed state. The snapshot keeps the last leaf that a get in bucket `key`
//! has read, except a leaf of more than 16 KiB. A get in bucket `key` tries to lock this leaf, but
//! never waits for the lock. A get takes only two other kinds of locks: the locks of the page cache
//! and, if a page is not in the cache, the pager's lock `sums` shared. It waits for `sums` while a
//! commit sets checksums.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::image::Image;
use super::page::Page;
use super::store::{BoltStore, Committed};
use super::tree::{self, TreePage};
use crate::bucket::Bucket;
use crate::error::Result;
use crate::interface::{KeyRange, Read, Snapshot, Visitor};

/// Maximum size of a page that is kept as the last leaf.
const LAST_LEAF_BYTES_MAX: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct BoltSnapshot {
    pub(super) committed: Arc<Committed>,
    /// The last leaf of bucket `key` that a get has read and that was not too large. A range of
    /// etcd's keys gets its records one by one, and records that were written together are often on
    /// the same leaf. So the next get often finds its record here. A thread searches the tree from
    /// the root if another thread holds this lock.
    last_leaf: Mutex<Option<Page>>,
    pub(super) store: Arc<BoltStore>,
}

impl BoltSnapshot {
    pub(super) fn new(store: &Arc<BoltStore>) -> BoltSnapshot {
        let (committed, last_leaf) = (store.open_snapshot(), Mutex::default());
        BoltSnapshot { committed, last_leaf, store: Arc::clone(store) }
    }

    /// If the key belongs to the last leaf, returns the result of the get: the value, or `None` if
    /// the key does not exist. Returns the outer `None` if no leaf is kept, if the key does not
    /// belong to the kept leaf, or if another thread holds the lock.
    fn get_near(&self, key: &[u8]) -> Option<Option<Bytes>> {
        let last_leaf = self.last_leaf.try_lock()?;
        let leaf = last_leaf.as_ref()?;
        let last = leaf.count().checked_sub(1)?;
        let has_place = leaf.key(0) <= key && key <= leaf.key(last);
        has_place.then(|| tree::value_of(leaf, key))
    }

    fn keep_leaf(&self, leaf: Page) {
        if leaf.bytes().len() <= LAST_LEAF_BYTES_MAX
            && let Some(mut last_leaf) = self.last_leaf.try_lock()
        {
            *last_leaf = Some(leaf);
        }
    }

    /// Returns the root of a bucket's tree, or `None` if there is no such bucket.
    fn root(&self, bucket: Bucket) -> Option<TreePage<'static>> {
        self.committed.buckets[bucket.index()].root.clone().map(TreePage::Committed)
    }
}

impl Drop for BoltSnapshot {
    fn drop(&mut self) {
        self.store.close_snapshot(self.committed.meta.txid);
    }
}

impl Read for BoltSnapshot {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        let Some(root) = &self.committed.buckets[bucket.index()].root else { return Ok(None) };
        if bucket == Bucket::Key
            && let Some(found) = self.get_near(key)
        {
            return Ok(found);
        }
        let (found, leaf) = tree::get_committed(root, key, &self.store.pager)?;
        if bucket == Bucket::Key {
            self.keep_leaf(leaf);
        }
        Ok(found)
    }

    fn scan(&self, bucket: Bucket, range: KeyRange<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        match self.root(bucket) {
            Some(root) if !range.is_empty() => tree::scan(root, range, &self.store.pager, visit),
            _ => Ok(()),
        }
    }

    fn last_key(&self, bucket: Bucket) -> Result<Option<Bytes>> {
        let Some(root) = self.root(bucket) else { return Ok(None) };
        tree::last_key(&root, &self.store.pager)
    }
}

impl Snapshot for BoltSnapshot {
    fn image(self: Arc<Self>) -> Result<Option<Image>> {
        Image::of_state(self).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use crate::bolt::simulated_disk::SimulatedDisk;
    use crate::bolt::simulated_file::create_with;
    use crate::durable::DurableStore;
    use crate::writer_lock::WriterLock;
    use crate::{Bucket, Snapshot, WriteTxn};

    fn key(number: u32) -> [u8; 4] {
        number.to_be_bytes()
    }

    /// Puts the even numbers below 1,000, with values that consist of `byte`.
    fn put_even(txn: &mut dyn WriteTxn, byte: u8) {
        for number in (0..1_000).step_by(2) {
            // Some leaves are too large to be kept as the last leaf.
            let bytes = if number % 100 == 0 { 20_000 } else { 60 };
            txn.put(Bucket::Key, &key(number), &vec![byte; bytes]).unwrap();
        }
        txn.put(Bucket::Lease, &key(1), &[byte]).unwrap();
    }

    fn check_all(snapshot: &dyn Snapshot, byte: u8) {
        // The keys are read in ascending order, in descending order, and each far from the previous
        // key.
        let numbers = (0..1_001).chain((0..1_001).rev()).chain((0..1_001).map(|n| n * 617 % 1_001));
        for number in numbers {
            let found = snapshot.get(Bucket::Key, &key(number)).unwrap();
            let is_there = number % 2 == 0 && number < 1_000;
            assert_eq!(found.map(|value| value[0]), is_there.then_some(byte), "{number}");
            let lease = snapshot.get(Bucket::Lease, &key(number)).unwrap();
            assert_eq!(lease.map(|value| value[0]), (number == 1).then_some(byte), "{number}");
        }
    }

    #[test]
    fn a_get_near_the_last_one_is_as_any_other() {
        let disk = SimulatedDisk::with_contents(Vec::new());
        let store = create_with(&disk, 4096).unwrap();
        let lock = Arc::new(WriterLock::default());
        let commit = |byte| {
            let mut txn = store.begin_write(lock.acquire().unwrap()).unwrap();
            put_even(&mut *txn, byte);
            txn.commit().unwrap();
        };
        commit(1);
        let old = store.snapshot().unwrap();
        check_all(&*old, 1);
        // These commits reuse the pages of states that no snapshot shows.
        (2..6).for_each(commit);
        let new = store.snapshot().unwrap();
        thread::scope(|scope| {
            for (snapshot, byte) in [(&old, 1), (&old, 1), (&new, 5), (&new, 5)] {
                scope.spawn(move || check_all(&**snapshot, byte));
            }
        });
    }
}
