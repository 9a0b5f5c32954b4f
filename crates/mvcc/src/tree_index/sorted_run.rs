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

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::iter::Flatten;

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
        let mut heads = BinaryHeap::with_capacity(runs.len());
        for (run, number) in runs.into_iter().zip(0..) {
            let mut rest = run.chunks.into_iter().flatten();
            if let Some((key, history)) = rest.next() {
                heads.push(RunHead { key, history, run: number, rest: Box::new(rest) });
            }
        }
        let merged = std::iter::from_fn(move || next_key(&mut heads));
        merged.filter(|(_, history)| !history.is_lone_tombstone())
    }
}

type RunRest = Flatten<std::vec::IntoIter<Vec<(Key, KeyIndex)>>>;

/// A run that is being merged: its first key, and those after it.
struct RunHead {
    key: Key,
    history: KeyIndex,
    /// Its place in the order of revisions.
    run: usize,
    rest: Box<RunRest>,
}

/// The heap has the greatest one on top, so the lowest key, and of the same keys the one with the
/// earliest revisions, is the greatest.
impl Ord for RunHead {
    fn cmp(&self, other: &RunHead) -> Ordering {
        Reverse((&self.key, self.run)).cmp(&Reverse((&other.key, other.run)))
    }
}

impl PartialOrd for RunHead {
    fn partial_cmp(&self, other: &RunHead) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for RunHead {
    fn eq(&self, other: &RunHead) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for RunHead {}

/// Takes the lowest key, with what every run has of it.
fn next_key(heads: &mut BinaryHeap<RunHead>) -> Option<(Key, KeyIndex)> {
    let (key, mut history) = take_first(heads.peek_mut()?);
    while let Some(head) = heads.peek_mut() {
        if head.key != key {
            break;
        }
        history.append(&take_first(head).1);
    }
    Some((key, history))
}

/// Takes the first key of a run, which goes on with its next one; a run without another is dropped.
fn take_first(mut head: PeekMut<'_, RunHead>) -> (Key, KeyIndex) {
    match head.rest.next() {
        Some((key, history)) => {
            (std::mem::replace(&mut head.key, key), std::mem::replace(&mut head.history, history))
        }
        None => {
            let head = PeekMut::pop(head);
            (head.key, head.history)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::key_index::EncodedLen;

    #[test]
    fn runs_of_several_chunks_are_merged() {
        let numbers = || (0..3_000_u64).map(|number| number.wrapping_mul(0x9e37_79b9) % 2_000);
        let changes: Vec<_> = numbers().zip(1_i64..).collect();
        let runs = changes.chunks(1_500).map(|changes| {
            let mut builder = SortedRunBuilder::default();
            for (number, main) in changes {
                let version = Version::first(Revision::new(*main, 0), EncodedLen::UNKNOWN);
                builder.put(&number.to_be_bytes(), version);
            }
            builder.finish()
        });
        let merged = SortedRun::merge(runs.collect());
        let newest = |(key, history): (Key, KeyIndex)| {
            (key.to_vec(), history.current().map(|version| version.modified.main))
        };
        let expected: BTreeMap<u64, i64> = changes.iter().copied().collect();
        let expected =
            expected.into_iter().map(|(key, main)| (key.to_be_bytes().to_vec(), Some(main)));
        assert!(merged.map(newest).eq(expected));
    }
}
