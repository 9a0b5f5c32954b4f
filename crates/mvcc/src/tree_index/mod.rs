//! The index over all keys: every key in memory, in order, each with its
//! [history](crate::key_index).
//!
//! There are two implementations. [`locked`] is etcd's tree under the lock `treeIndex`: a walk and
//! a put wait for each other. In [`persistent`], a walk uses a snapshot, so walks and puts do not
//! wait for each other. [`TreeIndex`] is the writer's side. It returns the readers' side,
//! [`IndexSnapshot`], which any number of threads may use. The caller checks revisions against the
//! current revision and the compact revision.
//!
//! Invariants of both:
//! * Revisions only rise. The result of a snapshot for a revision `at` that the index has reached
//!   is changed only by a compaction above `at`. A compaction at `at` changes no result for `at` or
//!   later.
//! * A key without any history is not in the tree.
//!
//! A snapshot of [`persistent`] also survives compactions, and contains no later put. A snapshot of
//! [`locked`] is a handle on the shared tree. In etcd: `treeIndex`. See `docs/mvcc.md`.

mod deleted_range;
mod key;
mod sorted_run;
pub mod locked;
pub mod persistent;

use std::fmt::Debug;
use std::ops::ControlFlow;

use bytes::Bytes;
use clearlane_engine::KeyRange;

pub use self::deleted_range::DeletedRange;
pub(crate) use self::key::Key;
pub use self::sorted_run::{SortedRun, SortedRunBuilder};
use crate::key_index::{EncodedLen, Version};
use crate::revision::{RecordKind, Revision};

pub type VersionVisitor<'v> = dyn FnMut(&[u8], Version) -> ControlFlow<()> + 'v;

pub type ChangeVisitor<'v> = dyn FnMut(Revision, RecordKind) -> ControlFlow<()> + 'v;

pub type KeyVisitor<'v> = dyn FnMut(&[u8]) + 'v;

/// The keys to delete.
#[derive(Clone, Copy, Debug)]
pub enum KeySelection<'k> {
    Range(KeyRange<'k>),
    /// Single keys in ascending order, without duplicates. A key may have no value.
    Sorted(&'k [Bytes]),
}

impl KeySelection<'_> {
    fn is_empty(&self) -> bool {
        match self {
            KeySelection::Range(range) => range.is_empty(),
            KeySelection::Sorted(keys) => keys.is_empty(),
        }
    }
}

/// The readers' side of the index. `at` is a main revision, and all changes of this revision are
/// included.
pub trait IndexSnapshot: Clone + Debug + Send + Sync {
    /// If true, this is a handle on a tree that still changes, and each change waits for running
    /// walks. So a visitor should take little time.
    const IS_LIVE: bool;

    fn get(&self, key: &[u8], at: i64) -> Option<Version>;

    /// Calls `visit` in key order for each key that has a value at `at`, until `visit` breaks.
    fn walk(&self, range: KeyRange<'_>, at: i64, visit: &mut VersionVisitor<'_>);

    fn count(&self, range: KeyRange<'_>, at: i64) -> u64 {
        self.revisions(range, at, 0, &mut |_, _| ControlFlow::Break(()))
    }

    /// Calls `visit` for the first `limit` keys of `range` that have a value at `at`. Returns the
    /// number of all such keys, even if `visit` breaks.
    fn revisions(
        &self,
        range: KeyRange<'_>,
        at: i64,
        limit: u64,
        visit: &mut VersionVisitor<'_>,
    ) -> u64;

    /// Returns the key that follows the first `keys` keys of `range`. Keys without a value are
    /// counted as well. Returns `None` if there is no such key. A live index always returns `None`,
    /// because its walks are not split.
    fn key_after(&self, _range: KeyRange<'_>, _keys: usize) -> Option<Vec<u8>> {
        None
    }

    /// Calls `visit` for every change at the main revision `since` or later of any key in `range`,
    /// until `visit` breaks. The order is by key, and the newest change of a key comes first.
    fn changes_since(&self, range: KeyRange<'_>, since: i64, visit: &mut ChangeVisitor<'_>);

    /// Returns true if a compaction above `at` has started. The caller checks this after a walk at
    /// `at`: if it is true, the walk may have missed versions. An immutable snapshot (`IS_LIVE` is
    /// false) always returns false, because no compaction changes it.
    fn is_compacted_above(&self, at: i64) -> bool;

    /// Collects the revisions of the records that `HashKV` at `at` must include although they are
    /// at or below the compact revision. It appends the revision of each key's version at `at`, but
    /// no tombstone. It starts at the key `from`, or at the first key if `from` is empty, and
    /// visits up to `keys_max` keys. An index under a lock visits all keys. Returns the key to
    /// continue from, or `None` at the end. The revisions are in the order of keys, so they are not
    /// sorted.
    fn keep(
        &self,
        at: i64,
        from: &[u8],
        keys_max: usize,
        kept: &mut Vec<Revision>,
    ) -> Option<Vec<u8>>;
}

/// The writer's side of the index.
///
/// ```
/// use std::ops::ControlFlow;
/// use clearlane_engine::KeyRange;
/// use clearlane_mvcc::{EncodedLen, IndexSnapshot, PersistentIndex, Revision, TreeIndex};
///
/// let mut index = PersistentIndex::default();
/// index.put(b"a", Revision::new(2, 0), EncodedLen::of(7));
/// index.put(b"b", Revision::new(3, 0), EncodedLen::of(7));
/// index.tombstone(b"a", Revision::new(4, 0));
///
/// let snapshot = index.snapshot();
/// assert_eq!(snapshot.count(KeyRange::ALL, 3), 2);
/// assert_eq!(snapshot.count(KeyRange::ALL, 4), 1);
/// snapshot.walk(KeyRange::ALL, 4, &mut |key, version| {
///     assert_eq!((key, version.modified), (&b"b"[..], Revision::new(3, 0)));
///     ControlFlow::Continue(())
/// });
/// ```
pub trait TreeIndex: Debug + Send + Sync + Sized + 'static {
    type Snapshot: IndexSnapshot + 'static;

    fn snapshot(&self) -> Self::Snapshot;

    /// Adds a put at `revision`. `encoded_len` is the length of the record without the three
    /// numbers that the index stores. Returns the version that the record must have.
    fn put(&mut self, key: &[u8], revision: Revision, encoded_len: EncodedLen) -> Version;

    /// Adds a tombstone at `revision`. Returns the version that ended. If the key has no value,
    /// returns `None` and changes nothing: then the caller must not write a tombstone.
    fn tombstone(&mut self, key: &[u8], revision: Revision) -> Option<Version>;

    /// Returns how many keys of a range have a value, or `None` if the index would have to walk
    /// over the range to count them.
    fn live_count(&self, _range: KeyRange<'_>) -> Option<u64> {
        None
    }

    /// Adds a tombstone to each selected key that has a value, in key order. The first tombstone is
    /// at `first`, and each following one at the next sub revision. Calls `visit` for each of these
    /// keys.
    fn tombstone_all(
        &mut self,
        keys: KeySelection<'_>,
        first: Revision,
        visit: &mut KeyVisitor<'_>,
    );

    /// Like [`tombstone_all`](TreeIndex::tombstone_all) for a range, but without visiting its keys:
    /// the deleted keys can be read from the returned value. An index that cannot do this returns
    /// `None` and changes nothing.
    fn mark_deleted(&mut self, _range: KeyRange<'_>, _first: Revision) -> Option<DeletedRange> {
        None
    }

    /// Fills an empty index with the records of a store: see [`SortedRun`]. The runs are in the
    /// order of their revisions.
    fn restore(&mut self, runs: Vec<SortedRun>);

    /// Prepares a compaction, which drops everything that reads at `at` or later do not need.
    fn begin_compaction(&self, at: i64) -> IndexCompaction;

    /// Continues a compaction by up to `keys_max` keys. An index that compacts under one lock does
    /// everything in one step. Returns true if the compaction is done. Between two steps, puts and
    /// tombstones above the compact revision may be added.
    fn compact_step(&mut self, compaction: &mut IndexCompaction, keys_max: usize) -> bool;
}

/// A compaction in progress. When it is done, the caller may remove the records at or below its
/// revision that are not in the kept revisions.
#[derive(Debug)]
pub struct IndexCompaction {
    at: i64,
    /// The clone of the tree over which the index `locked` walks if it takes the lock for each key.
    /// `None` in all other cases.
    clone: Option<locked::Tree>,
    /// The key to continue from. `None` at the end.
    next: Option<Vec<u8>>,
    kept: Vec<Revision>,
}

impl IndexCompaction {
    fn new(at: i64, clone: Option<locked::Tree>) -> IndexCompaction {
        IndexCompaction { at, clone, next: Some(Vec::new()), kept: Vec::new() }
    }

    pub fn is_done(&self) -> bool {
        self.next.is_none()
    }

    /// Returns the revisions at or below the compact revision whose records must be kept, sorted.
    /// The compaction must be done.
    pub fn into_kept(mut self) -> Vec<Revision> {
        assert!(self.is_done(), "the compaction is not done");
        self.kept.sort_unstable();
        self.kept
    }
}
