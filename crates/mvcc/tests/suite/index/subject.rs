//! The subjects of scripts and random operations: both tree indexes and the model, behind one
//! trait.

use std::fmt::Debug;
use std::ops::ControlFlow;

use clearlane_contention::Registry;
use clearlane_engine::KeyRange;
use clearlane_mvcc::{
    CompactionLock, EncodedLen, IndexSnapshot, KeySelection, LockedIndex, PersistentIndex,
    Revision, SortedRun, SortedRunBuilder, TreeIndex, Version,
};

use crate::index::plain::PlainIndex;

#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) key: Vec<u8>,
    pub(crate) revision: Revision,
    /// The version of a put. `None` for a tombstone, because its record has only the key.
    pub(crate) version: Option<Version>,
}

pub(crate) type VersionsByKey = Vec<(Vec<u8>, Version)>;

pub(crate) trait TestedSnapshot: Debug {
    fn get(&self, key: &[u8], at: i64) -> Option<Version>;
    fn walk(&self, range: KeyRange<'_>, at: i64, stop_after: usize) -> VersionsByKey;
    fn count(&self, range: KeyRange<'_>, at: i64) -> u64;
    fn page(&self, range: KeyRange<'_>, at: i64, limit: u64) -> (VersionsByKey, u64);
    fn keep(&self, at: i64, keys_max: usize) -> Vec<Revision>;
}

pub(crate) trait TestedIndex {
    fn snapshot(&self) -> Box<dyn TestedSnapshot>;
    fn put(&mut self, key: &[u8], revision: Revision) -> Version;
    fn tombstone(&mut self, key: &[u8], revision: Revision) -> Option<Version>;
    /// Deletes the keys. Returns the keys that had a value.
    fn tombstone_all(&mut self, keys: KeySelection<'_>, first: Revision) -> Vec<Vec<u8>>;
    /// Compacts the index. Calls `between` between the steps, if there are several. Returns the
    /// kept revisions.
    fn compact(
        &mut self,
        at: i64,
        keys_max: usize,
        between: &mut dyn FnMut(&mut dyn TestedIndex),
    ) -> Vec<Revision>;
    fn rebuild(&self, records: &[Record], runs: usize) -> Box<dyn TestedIndex>;
}

/// Returns both tree indexes, `locked` with both ways to compact, and the model.
pub(crate) fn all() -> Vec<(&'static str, Box<dyn TestedIndex>)> {
    let locked = |lock| Box::new(RealIndex(LockedIndex::new(&Registry::new(), lock)));
    vec![
        ("locked, compacted in one walk", locked(CompactionLock::WholeWalk)),
        ("locked, compacted by key", locked(CompactionLock::PerKey)),
        ("persistent", Box::new(RealIndex(PersistentIndex::default()))),
        ("model", Box::new(PlainIndex::default())),
    ]
}

struct RealIndex<I>(I);

/// An index that can create an empty index of the same type.
trait NewIndex: TreeIndex + 'static {
    fn new_index(&self) -> Self;
}

impl NewIndex for PersistentIndex {
    fn new_index(&self) -> Self {
        PersistentIndex::default()
    }
}

impl NewIndex for LockedIndex {
    fn new_index(&self) -> Self {
        LockedIndex::new(&Registry::new(), CompactionLock::PerKey)
    }
}

impl<I: NewIndex> TestedIndex for RealIndex<I> {
    fn snapshot(&self) -> Box<dyn TestedSnapshot> {
        Box::new(RealSnapshot(self.0.snapshot()))
    }

    fn put(&mut self, key: &[u8], revision: Revision) -> Version {
        self.0.put(key, revision, EncodedLen::UNKNOWN)
    }

    fn tombstone(&mut self, key: &[u8], revision: Revision) -> Option<Version> {
        self.0.tombstone(key, revision)
    }

    fn tombstone_all(&mut self, keys: KeySelection<'_>, first: Revision) -> Vec<Vec<u8>> {
        if let KeySelection::Range(range) = keys
            && let Some(deleted) = self.0.mark_deleted(range, first)
        {
            assert_eq!(
                (deleted.count(), deleted.first_revision()),
                (deleted.keys().count() as u64, first)
            );
            return deleted.keys().map(|key| key.to_vec()).collect();
        }
        let mut deleted = Vec::new();
        self.0.tombstone_all(keys, first, &mut |key| deleted.push(key.to_vec()));
        deleted
    }

    fn compact(
        &mut self,
        at: i64,
        keys_max: usize,
        between: &mut dyn FnMut(&mut dyn TestedIndex),
    ) -> Vec<Revision> {
        let mut compaction = self.0.begin_compaction(at);
        while !self.0.compact_step(&mut compaction, keys_max) {
            between(self);
        }
        compaction.into_kept()
    }

    fn rebuild(&self, records: &[Record], runs: usize) -> Box<dyn TestedIndex> {
        let mut index = self.0.new_index();
        let runs = records.chunks(records.len().div_ceil(runs).max(1)).map(run).collect();
        index.restore(runs);
        Box::new(RealIndex(index))
    }
}

fn run(records: &[Record]) -> SortedRun {
    let mut builder = SortedRunBuilder::default();
    for record in records {
        match record.version {
            Some(version) => builder.put(&record.key, version),
            None => builder.tombstone(&record.key, record.revision),
        }
    }
    builder.finish()
}

#[derive(Debug)]
struct RealSnapshot<V>(V);

impl<V: IndexSnapshot> TestedSnapshot for RealSnapshot<V> {
    fn get(&self, key: &[u8], at: i64) -> Option<Version> {
        self.0.get(key, at)
    }

    fn walk(&self, range: KeyRange<'_>, at: i64, stop_after: usize) -> VersionsByKey {
        let mut found = Vec::new();
        self.0.walk(range, at, &mut |key, version| {
            found.push((key.to_vec(), version));
            if found.len() == stop_after {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        found
    }

    fn count(&self, range: KeyRange<'_>, at: i64) -> u64 {
        self.0.count(range, at)
    }

    fn page(&self, range: KeyRange<'_>, at: i64, limit: u64) -> (VersionsByKey, u64) {
        let mut found = Vec::new();
        let count = self.0.revisions(range, at, limit, &mut |key, version| {
            found.push((key.to_vec(), version));
            ControlFlow::Continue(())
        });
        (found, count)
    }

    fn keep(&self, at: i64, keys_max: usize) -> Vec<Revision> {
        let mut kept = Vec::new();
        let mut next = Some(Vec::new());
        while let Some(from) = next {
            next = self.0.keep(at, &from, keys_max, &mut kept);
        }
        kept
    }
}

impl TestedSnapshot for PlainIndex {
    fn get(&self, key: &[u8], at: i64) -> Option<Version> {
        self.0.get(key)?.at(at)
    }

    fn walk(&self, range: KeyRange<'_>, at: i64, stop_after: usize) -> VersionsByKey {
        let mut found = self.versions(range, at);
        found.truncate(stop_after);
        found
    }

    fn count(&self, range: KeyRange<'_>, at: i64) -> u64 {
        self.versions(range, at).len() as u64
    }

    fn page(&self, range: KeyRange<'_>, at: i64, limit: u64) -> (VersionsByKey, u64) {
        (self.walk(range, at, limit as usize), self.count(range, at))
    }

    fn keep(&self, at: i64, _keys_max: usize) -> Vec<Revision> {
        self.0.values().filter_map(|history| history.kept_by_hash(at)).collect()
    }
}

impl TestedIndex for PlainIndex {
    fn snapshot(&self) -> Box<dyn TestedSnapshot> {
        Box::new(self.clone())
    }

    fn put(&mut self, key: &[u8], revision: Revision) -> Version {
        self.0.entry(key.to_vec()).or_default().put(revision)
    }

    fn tombstone(&mut self, key: &[u8], revision: Revision) -> Option<Version> {
        self.0.get_mut(key)?.tombstone(revision)
    }

    fn tombstone_all(&mut self, keys: KeySelection<'_>, first: Revision) -> Vec<Vec<u8>> {
        let keys: Vec<Vec<u8>> = match keys {
            KeySelection::Range(range) => {
                self.versions(range, first.main).into_iter().map(|(key, _)| key).collect()
            }
            KeySelection::Sorted(keys) => keys.iter().map(|key| key.to_vec()).collect(),
        };
        let mut revision = first;
        let mut tombstone = |key: &Vec<u8>| {
            let had_value = self.tombstone(key, revision).is_some();
            revision.sub += i64::from(had_value);
            had_value
        };
        keys.into_iter().filter(|key| tombstone(key)).collect()
    }

    fn compact(
        &mut self,
        at: i64,
        _keys_max: usize,
        _between: &mut dyn FnMut(&mut dyn TestedIndex),
    ) -> Vec<Revision> {
        PlainIndex::compact(self, at)
    }

    /// The model has kept all changes, so a restore changes nothing visible. One exception: as in
    /// etcd, a key that has only a tombstone is not restored.
    fn rebuild(&self, _records: &[Record], _runs: usize) -> Box<dyn TestedIndex> {
        let mut restored = self.clone();
        restored.0.retain(|_, history| !history.is_lone_tombstone());
        Box::new(restored)
    }
}
