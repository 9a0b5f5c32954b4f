//! Restores the index by turning records in revision order into keys in key order.
//!
//! ```text
//!   records 2.0 b, 3.0 a, 4.0 c      builder ──▶ run  a: 3.0           b: 2.0      c: 4.0
//!   records 5.0 a, 6.0 b, 7.0 a (t)  builder ──▶ run  a: 5.0 7.0t      b: 6.0
//!   merged                                            a: 3.0 5.0 7.0t  b: 2.0 6.0  c: 4.0
//! ```
//!
//! A run is stored in chunks. Each chunk is freed when the merge has taken its last key, so the
//! memory never holds all keys twice, in the runs and in the index. The version of a key's first
//! record is taken from the record, because a compaction may have removed earlier records. The
//! versions of the later records are counted from this version. A tombstone without an earlier put
//! changes no read, and a key that has only tombstones is not added to the index.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::key::Key;
use crate::key_index::{KeyIndex, Version};
use crate::revision::Revision;

/// Number of keys in a chunk of a run. With 64 bytes per key, a chunk takes about 64 KiB.
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
        // The sort is stable: the records of a key stay in the order of their revisions.
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

/// The histories of the keys of some records, in key order.
#[derive(Debug, Default)]
pub struct SortedRun {
    chunks: Vec<Vec<(Key, KeyIndex)>>,
    /// The newest revision of all its records.
    pub(super) newest: Revision,
}

impl SortedRun {
    /// Merges runs, which must be in the order of their revisions. Returns each key once, in key
    /// order. Keys that have only a tombstone are omitted.
    pub(super) fn merge(runs: Vec<SortedRun>) -> impl Iterator<Item = (Key, KeyIndex)> {
        let runs = runs.into_iter().map(|run| run.chunks.into_iter().flatten().peekable());
        let mut runs: Vec<_> = runs.collect();
        // The top of the heap has the lowest key. If several runs have this key, the top is the run
        // with the earliest revisions.
        let mut heads = BinaryHeap::with_capacity(runs.len());
        for (number, run) in runs.iter_mut().enumerate() {
            heads.extend(run.peek().map(|(key, _)| Reverse((key.clone(), number))));
        }
        // Takes the key on top of the heap, and puts the next key of its run into the heap. If a
        // key is wanted and another key is on top, takes nothing.
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
