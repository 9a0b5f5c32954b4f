//! Restoring the index: from records in the order of revisions to keys in their order.
//!
//! ```text
//!   records 2.0 b, 3.0 a, 4.0 c      builder ──▶ run  a: 3.0         │ b: 2.0   c: 4.0
//!   records 5.0 a, 6.0 b, 7.0 a (t)  builder ──▶ run  a: 5.0 7.0t    │ b: 6.0
//!   merged                                            a: 3.0 5.0 7.0t│ b: 2.0 6.0  c: 4.0
//! ```
//!
//! A run is kept in chunks, and each chunk is freed when the merge has taken its last key: the runs
//! and the index are not in memory side by side for all keys. Versions count from the first record
//! of a key, for a compaction may have taken what was before; a tombstone without a put before it
//! says nothing, and a key that has nothing else does not come into the index.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::key::Key;
use crate::key_index::{KeyIndex, Version};
use crate::revision::Revision;

/// Number of keys in a chunk of a run: some tens of kilobytes.
const CHUNK_KEYS: usize = 1 << 10;

/// Takes the records of a run, in the order of their revisions.
#[derive(Debug, Default)]
pub struct SortedRunBuilder {
    records: Vec<(Key, KeyIndex)>,
    newest: Revision,
}

impl SortedRunBuilder {
    pub fn put(&mut self, key: &[u8], version: Version) {
        self.newest = version.modified;
        self.records.push((Key::new(key), KeyIndex::from_version(version)));
    }

    pub fn tombstone(&mut self, key: &[u8], revision: Revision) {
        self.newest = revision;
        self.records.push((Key::new(key), KeyIndex::from_tombstone(revision)));
    }

    pub fn finish(mut self) -> SortedRun {
        // A stable sort: the records of a key stay in the order of their revisions.
        self.records.sort_by(|a, b| a.0.cmp(&b.0));
        self.records.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            if same {
                earlier.1.append(&later.1);
            }
            same
        });
        let mut keys = self.records.into_iter();
        let chunk = || {
            let chunk: Vec<_> = keys.by_ref().take(CHUNK_KEYS).collect();
            (!chunk.is_empty()).then_some(chunk)
        };
        SortedRun { chunks: std::iter::from_fn(chunk).collect(), newest: self.newest }
    }
}

/// The histories that some records make, in key order.
#[derive(Debug, Default)]
pub struct SortedRun {
    chunks: Vec<Vec<(Key, KeyIndex)>>,
    /// Of all its records.
    pub(super) newest: Revision,
}

impl SortedRun {
    /// Merges runs that come in the order of their revisions: each key once, in the order of keys.
    /// Keys that have nothing but a tombstone are left out.
    pub(super) fn merge(runs: Vec<SortedRun>) -> impl Iterator<Item = (Key, KeyIndex)> {
        let runs = runs.into_iter().map(|run| run.chunks.into_iter().flatten().peekable());
        let mut runs: Vec<_> = runs.collect();
        // On top is the lowest key, and of the same keys the one with the earliest revisions.
        let mut heads = BinaryHeap::with_capacity(runs.len());
        for (number, run) in runs.iter_mut().enumerate() {
            heads.extend(run.peek().map(|(key, _)| Reverse((key.clone(), number))));
        }
        // Takes the key on top, if it is the wanted one; its run goes on with the next.
        let mut take = move |wanted: Option<&Key>| {
            let mut head = heads.peek_mut()?;
            if wanted.is_some_and(|wanted| *wanted != head.0.0) {
                return None;
            }
            let run = &mut runs[head.0.1];
            let first = run.next();
            match run.peek() {
                Some((next, _)) => head.0.0 = next.clone(),
                None => drop(PeekMut::pop(head)),
            }
            first
        };
        let merged = std::iter::from_fn(move || {
            let (key, mut history) = take(None)?;
            while let Some((_, later)) = take(Some(&key)) {
                history.append(&later);
            }
            Some((key, history))
        });
        merged.filter(|(_, history)| !history.is_lone_tombstone())
    }
}
