//! The index over all keys: every key in memory, in order, each with its
//! [history](crate::key_index).
//!
//! Two implementations: in [`locked`], etcd's tree under the lock `treeIndex`, a walk and a put
//! wait for each other; in [`persistent`] a walk goes over a snapshot, and neither waits for the
//! other. [`TreeIndex`] is the writer's side. It hands out the readers' side, [`IndexSnapshot`], to
//! any number of threads. Which revision is current, and which are compacted, the caller knows.
//!
//! Invariants of both:
//! * Revisions only rise: what a snapshot says about revision `at` is changed by nothing but a
//!   compaction above `at`. A compaction at `at` changes no answer for `at` or later.
//! * A key without any history left is not in the tree.
//!
//! A snapshot of [`persistent`] also outlasts compactions, and has nothing that was put after it.
//! One of [`locked`] is a handle on the one tree. In etcd: `treeIndex`. See `docs/mvcc.md`.

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

/// Which keys are to be deleted.
#[derive(Clone, Copy, Debug)]
pub enum KeySelection<'k> {
    Range(KeyRange<'k>),
    /// Single keys, each above the one before. They may have no value.
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

/// A reader's side of the index. `at` is a main revision, all of whose changes count.
pub trait IndexSnapshot: Clone + Debug + Send + Sync {
    /// Whether this is a handle on a tree that goes on changing, and a walk holds up each change.
    /// Then a visitor should not do what takes long.
    const IS_LIVE: bool;

    fn get(&self, key: &[u8], at: i64) -> Option<Version>;

    /// Calls `visit` in key order for each key that has a value at `at`, until it breaks.
    fn walk(&self, range: KeyRange<'_>, at: i64, visit: &mut VersionVisitor<'_>);

    fn count(&self, range: KeyRange<'_>, at: i64) -> u64 {
        self.revisions(range, at, 0, &mut |_, _| ControlFlow::Break(()))
    }

    /// Calls `visit` for the first `limit` keys of `range` that have a value at `at`, and returns
    /// how many there are in all. A visitor that breaks gets no more keys; the count stays whole.
    fn revisions(
        &self,
        range: KeyRange<'_>,
        at: i64,
        limit: u64,
        visit: &mut VersionVisitor<'_>,
    ) -> u64;

    /// The key that follows the first `keys` keys of `range`, with or without a value. A live index
    /// says `None`: its walks are not cut into parts.
    fn key_after(&self, _range: KeyRange<'_>, _keys: usize) -> Option<Vec<u8>> {
        None
    }

    /// Calls `visit` for every change at the main revision `since` or later of any key in `range`,
    /// until it breaks: key by key, and the newest change of a key first.
    fn changes_since(&self, range: KeyRange<'_>, since: i64, visit: &mut ChangeVisitor<'_>);

    /// Whether a compaction above `at` has begun to remove what this showed at `at`. To be asked
    /// after a walk, whose answer may lack versions if so. A snapshot that is not live says
    /// `false`.
    fn is_compacted_above(&self, at: i64) -> bool;

    /// What `HashKV` at `at` must not pass over below the compact revision: appends the revision
    /// of each key's version at `at`, but no tombstone. Starts at the key `from` (the
    /// empty key is the first of all), looks at `keys_max` keys or a few more, and returns the key
    /// to go on from; `None` when that was all. In key order, so not in order of revisions.
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
/// let view = index.snapshot();
/// assert_eq!(view.count(KeyRange::ALL, 3), 2);
/// assert_eq!(view.count(KeyRange::ALL, 4), 1);
/// view.walk(KeyRange::ALL, 4, &mut |key, version| {
///     assert_eq!((key, version.modified), (&b"b"[..], Revision::new(3, 0)));
///     ControlFlow::Continue(())
/// });
/// ```
pub trait TreeIndex: Debug + Send + Sync + Sized + 'static {
    type Snapshot: IndexSnapshot + 'static;

    fn snapshot(&self) -> Self::Snapshot;

    /// The key has a value from `revision` on; `encoded_len` is the length of its record without
    /// the numbers that the index knows. Returns the version, as the record must have it.
    fn put(&mut self, key: &[u8], revision: Revision, encoded_len: EncodedLen) -> Version;

    /// The key has no value from `revision` on. Returns the version that ended; `None` if there
    /// was none, and then nothing has changed and no tombstone is to be written.
    fn tombstone(&mut self, key: &[u8], revision: Revision) -> Option<Version>;

    /// How many keys of a range have a value, if it takes no walk to know.
    fn live_count(&self, _range: KeyRange<'_>) -> Option<u64> {
        None
    }

    /// None of these keys has a value any more. Those that had one get their tombstones in key
    /// order, the first of them at `first`, each other one at the next sub revision. Calls `visit`
    /// for each.
    fn tombstone_all(
        &mut self,
        keys: KeySelection<'_>,
        first: Revision,
        visit: &mut KeyVisitor<'_>,
    );

    /// As [`tombstone_all`](TreeIndex::tombstone_all) for a range, without a look at its keys: they
    /// are read from what this returns. `None` from an index that cannot do that, and then nothing
    /// has changed.
    fn mark_deleted(&mut self, _range: KeyRange<'_>, _first: Revision) -> Option<DeletedRange> {
        None
    }

    /// Fills the index, which is empty, with the records of a store: see [`SortedRun`]. The runs
    /// come in the order of their revisions.
    fn restore(&mut self, runs: Vec<SortedRun>);

    /// Prepares a compaction that leaves nothing that is not needed to read at `at` or later.
    fn begin_compaction(&self, at: i64) -> IndexCompaction;

    /// Goes on with a compaction, by `keys_max` keys or a few more where the index has steps.
    /// Returns whether that was all. Puts and tombstones above its revision may come in between.
    fn compact_step(&mut self, compaction: &mut IndexCompaction, keys_max: usize) -> bool;
}

/// A compaction under way. When it is done, the records at or below its revision that are not
/// among the kept ones may go.
#[derive(Debug)]
pub struct IndexCompaction {
    at: i64,
    /// What the index `locked` walks over, if it locks for each key.
    clone: Option<locked::Tree>,
    /// The key to go on from; `None` when there is none.
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

    /// The revisions to keep of those at or below the compact revision, sorted. Whole when done.
    pub fn into_kept(mut self) -> Vec<Revision> {
        assert!(self.is_done(), "a keep set is asked for before it is whole");
        self.kept.sort_unstable();
        self.kept
    }
}
