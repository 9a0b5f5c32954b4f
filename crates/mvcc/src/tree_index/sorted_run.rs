//! Restoring the index: from records in the order of revisions to keys in their order.
//!
//! ```text
//!   records 2.0 b, 3.0 a, 4.0 c      builder ──▶ run  a: 3.0         │ b: 2.0   c: 4.0
//!   records 5.0 a, 6.0 b, 7.0 a (t)  builder ──▶ run  a: 5.0 7.0t    │ b: 6.0
//!   joined                                            a: 3.0 5.0 7.0t│ b: 2.0 6.0  c: 4.0
//! ```
//!
//! Each worker makes a run, sorted by key, of a part of the records. Then all runs are cut at the
//! same keys, found by a sample, and each worker joins what they have between two cuts. A part fits
//! in the processor's cache, and its pieces of the runs are freed when it is joined: the sorted
//! records and the index are not in memory side by side for all keys. Versions count from the first
//! record of a key, for a compaction may have taken what was before; a tombstone without a put
//! before it says nothing, and a key that has nothing else does not come into the index.

use std::cmp::Ordering;

use super::key::Key;
use crate::key_index::{KeyIndex, Version};
use crate::revision::Revision;
use crate::workers::{self, Workers};

/// Number of keys that a part is to have, about: two megabytes.
pub(super) const PART_KEYS: usize = 1 << 15;
/// More parts than that would be many small pieces.
const PARTS_MAX: usize = 256;
/// Number of keys that are sampled for each part, to find where it ends.
const SAMPLES_PER_PART: usize = 16;

/// Keys that rise, each with its history.
pub(super) type SortedKeys = Vec<(Key, KeyIndex)>;

/// Takes the records of a part, in the order of their revisions.
#[derive(Debug, Default)]
pub struct SortedRunBuilder {
    records: SortedKeys,
    newest: Revision,
}

impl SortedRunBuilder {
    /// The record of a put, which has all that a version has.
    pub fn put(&mut self, key: &[u8], version: Version) {
        self.newest = version.modified;
        self.records.push((Key::new(key), KeyIndex::from_version(version)));
    }

    /// A tombstone.
    pub fn tombstone(&mut self, key: &[u8], revision: Revision) {
        self.newest = revision;
        self.records.push((Key::new(key), KeyIndex::from_tombstone(revision)));
    }

    /// Sorts by key, and joins what belongs to the same one.
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
        self.records.shrink_to_fit();
        SortedRun { keys: self.records, newest: self.newest }
    }
}

/// The histories of a part of the revisions, in key order.
#[derive(Debug, Default)]
pub struct SortedRun {
    keys: SortedKeys,
    newest: Revision,
}

impl SortedRun {
    /// How many keys it has.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether it has no key.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The newest revision of all its records.
    pub(super) fn newest(&self) -> Revision {
        self.newest
    }

    /// Joins runs that come in the order of their revisions: in parts of about `part_keys` keys
    /// that follow each other in the order of keys. What comes back is what `finish` has made of
    /// each part; keys that have nothing but a tombstone were left out.
    pub(super) fn merge<T: Send>(
        runs: Vec<SortedRun>,
        part_keys: usize,
        workers: &dyn Workers,
        finish: impl Fn(SortedKeys) -> T + Sync,
    ) -> Vec<T> {
        let cuts = part_boundaries(&runs, part_keys);
        let pieces = workers::map(workers, runs, |run| split_at_boundaries(run.keys, &cuts));
        let mut parts: Vec<Vec<SortedKeys>> = Vec::new();
        parts.resize_with(cuts.len() + 1, Vec::new);
        for run in pieces {
            parts.iter_mut().zip(run).for_each(|(part, piece)| part.push(piece));
        }
        workers::map(workers, parts, |part| {
            let mut histories = merge_all(part);
            histories.retain(|(_, history)| !history.is_lone_tombstone());
            finish(histories)
        })
    }
}

/// The first keys of all parts but the first.
fn part_boundaries(runs: &[SortedRun], part_keys: usize) -> Vec<Key> {
    let keys: usize = runs.iter().map(SortedRun::len).sum();
    let parts = keys.div_ceil(part_keys).clamp(1, PARTS_MAX);
    let every = (keys / (parts * SAMPLES_PER_PART)).max(1);
    let all = runs.iter().flat_map(|run| &run.keys);
    let mut sample: Vec<&Key> = all.step_by(every).map(|(key, _)| key).collect();
    sample.sort_unstable();
    (1..parts).map(|part| sample[part * sample.len() / parts].clone()).collect()
}

/// What lies before the first cut, between each two, and after the last.
fn split_at_boundaries(mut histories: SortedKeys, cuts: &[Key]) -> Vec<SortedKeys> {
    let mut pieces = Vec::with_capacity(cuts.len() + 1);
    for cut in cuts.iter().rev() {
        let at = histories.partition_point(|(key, _)| key < cut);
        pieces.push(histories.split_off(at));
    }
    histories.shrink_to_fit();
    pieces.push(histories);
    pieces.reverse();
    pieces
}

/// All as one, neighbours first.
fn merge_all(mut all: Vec<SortedKeys>) -> SortedKeys {
    while all.len() > 1 {
        let mut rest = all.into_iter();
        let next_two = || Some(merge_two(rest.next()?, rest.next().unwrap_or_default()));
        all = std::iter::from_fn(next_two).collect();
    }
    all.pop().unwrap_or_default()
}

/// Both as one; `later` has the later revisions.
fn merge_two(earlier: SortedKeys, later: SortedKeys) -> SortedKeys {
    if earlier.is_empty() || later.is_empty() {
        return if later.is_empty() { earlier } else { later };
    }
    let mut joined = Vec::with_capacity(earlier.len() + later.len());
    let mut later = later.into_iter().peekable();
    for (key, mut history) in earlier {
        while let Some((other, _)) = later.peek() {
            match other.cmp(&key) {
                Ordering::Less => joined.extend(later.next()),
                Ordering::Equal => {
                    later.next().iter().for_each(|(_, later)| history.append(later));
                }
                Ordering::Greater => break,
            }
        }
        joined.push((key, history));
    }
    joined.extend(later);
    joined
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::key_index::EncodedLen;
    use crate::workers::SerialWorkers;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn parts_are_what_one_part_would_be(
            // A key, and whether it is put. Few keys, so that most are in several runs.
            changes in prop::collection::vec((0..60_u8, prop::bool::weighted(0.8)), 0..300),
            run_len in 1..100_usize,
            part_keys in 1..70_usize,
        ) {
            let runs = || -> Vec<SortedRun> {
                let changes: Vec<_> = changes.iter().zip(1..).collect();
                changes.chunks(run_len).map(run).collect()
            };
            let join = |part_keys| -> Vec<SortedKeys> {
                SortedRun::merge(runs(), part_keys, &SerialWorkers, |part| part)
            };
            let (whole, parts) = (join(usize::MAX), join(part_keys));
            prop_assert_eq!(whole.len(), 1);
            prop_assert!(whole[0].windows(2).all(|pair| pair[0].0 < pair[1].0));
            prop_assert_eq!(&parts.concat(), &whole[0]);
        }
    }

    fn run(changes: &[(&(u8, bool), i64)]) -> SortedRun {
        let mut builder = SortedRunBuilder::default();
        for ((number, is_put), main) in changes {
            let (key, modified) = (vec![b'k'; usize::from(*number)], Revision::new(*main, 0));
            match is_put {
                true => builder.put(
                    &key,
                    Version {
                        modified,
                        created: *main,
                        version: 1,
                        encoded_len: EncodedLen::UNKNOWN,
                    },
                ),
                false => builder.tombstone(&key, modified),
            }
        }
        builder.finish()
    }

    #[test]
    fn parts_are_about_as_large() {
        let changes: Vec<_> =
            (0..3_000_u64).map(|number| number.wrapping_mul(0x9e37_79b9)).collect();
        let mut builder = SortedRunBuilder::default();
        for (number, main) in changes.iter().zip(1..) {
            let modified = Revision::new(main, 0);
            builder.put(
                &number.to_le_bytes(),
                Version { modified, created: main, version: 1, encoded_len: EncodedLen::UNKNOWN },
            );
        }
        let parts =
            SortedRun::merge(vec![builder.finish()], 300, &SerialWorkers, |part| part.len());
        assert_eq!(parts.len(), 10);
        assert!(parts.iter().all(|keys| (200..400).contains(keys)), "{parts:?}");
    }
}
