//! Restoring the index: records in the order of revisions, keys in the order of keys.
//!
//! At start the store reads its records, in the order in which they were written. The index wants
//! them by key. Putting them in one after the other would search the tree once per record. It is
//! faster to sort first and then to build the tree from left to right, and sorting is work that
//! many threads can share:
//!
//! ```text
//!   records 2.0 b, 3.0 a, 4.0 b      RunBuilder ──▶ Run {a: 3.0, b: 2.0 4.0} ──┐
//!   records 5.0 c, 6.0 b tombstone   RunBuilder ──▶ Run {b: 6.0t, c: 5.0} ─────┴─▶ restore
//! ```
//!
//! The caller cuts the records into as many stretches as it has threads, and each thread makes a
//! run of one. Runs are put together in the order of their revisions.
//!
//! The first record of a key says which version it is and which revision created the key: a
//! compaction may have taken what was before. The later ones are counted from there. A tombstone
//! with no put before it says nothing (a compaction at its revision has left it), and a key that
//! has nothing else does not come into the index.

use std::cmp::Ordering;

use super::key::Key;
use crate::key_history::{KeyHistory, Version};
use crate::revision::Revision;

/// Takes the records of a stretch, in the order of their revisions.
#[derive(Debug, Default)]
pub struct RunBuilder {
    records: Vec<(Key, KeyHistory)>,
}

impl RunBuilder {
    /// With room for so many records.
    pub fn with_capacity(records: usize) -> RunBuilder {
        RunBuilder { records: Vec::with_capacity(records) }
    }

    /// The record of a put, which says all that a version has.
    pub fn put(&mut self, key: &[u8], version: Version) {
        self.records.push((Key::new(key), KeyHistory::restored(version)));
    }

    /// A tombstone.
    pub fn tombstone(&mut self, key: &[u8], revision: Revision) {
        self.records.push((Key::new(key), KeyHistory::deleted(revision)));
    }

    /// Sorts by key, and joins what belongs to the same one.
    pub fn finish(mut self) -> Run {
        // A stable sort: the records of a key stay in the order of their revisions.
        self.records.sort_by(|a, b| a.0.cmp(&b.0));
        self.records.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            if same {
                earlier.1.append(&later.1);
            }
            same
        });
        Run { histories: self.records }
    }
}

/// The histories of a stretch of revisions, in key order.
#[derive(Debug, Default)]
pub struct Run {
    histories: Vec<(Key, KeyHistory)>,
}

impl Run {
    /// Both runs as one; `later` has the later revisions.
    pub fn followed_by(self, later: Run) -> Run {
        let mut histories = Vec::with_capacity(self.histories.len() + later.histories.len());
        let mut later = later.histories.into_iter().peekable();
        for (key, mut history) in self.histories {
            while let Some((other, _)) = later.peek() {
                match other.cmp(&key) {
                    Ordering::Less => histories.extend(later.next()),
                    Ordering::Equal => {
                        later.next().iter().for_each(|(_, later)| history.append(later));
                    }
                    Ordering::Greater => break,
                }
            }
            histories.push((key, history));
        }
        histories.extend(later);
        Run { histories }
    }

    /// All runs as one, neighbours first.
    pub(super) fn join(mut runs: Vec<Run>) -> Run {
        while runs.len() > 1 {
            let mut rest = runs.into_iter();
            runs = std::iter::from_fn(|| {
                let run = rest.next()?;
                Some(run.followed_by(rest.next().unwrap_or_default()))
            })
            .collect();
        }
        runs.pop().unwrap_or_default()
    }

    /// How many keys it has.
    pub fn len(&self) -> usize {
        self.histories.len()
    }

    /// Whether it has no key.
    pub fn is_empty(&self) -> bool {
        self.histories.is_empty()
    }

    /// The newest revision of all keys.
    pub(super) fn newest(&self) -> Option<Revision> {
        self.histories.iter().map(|(_, history)| history.newest_revision()).max()
    }

    /// The keys that come into the index.
    pub(super) fn into_histories(self) -> impl Iterator<Item = (Key, KeyHistory)> {
        self.histories.into_iter().filter(|(_, history)| !history.is_lone_tombstone())
    }
}
