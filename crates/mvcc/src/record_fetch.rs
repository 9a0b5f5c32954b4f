//! Fetches records that the index has named: one by one, or neighbours with one scan.
//!
//! Keys that were loaded in order have their records on the same pages. If they were fetched one by
//! one, each fetch would descend to the same page. So the names (revisions) of some records are
//! collected before the first fetch. Where revisions rise with small gaps, the records are scanned;
//! all others are looked up:
//!
//! ```text
//!   named by the index    4.0 5.0 6.0 7.0   31.0   9.0   12.0 13.0 15.0 16.0
//!                         └─── one scan ──┘  get   get   └──── one scan ───┘
//! ```
//!
//! Invariants: records are visited in the order of their names. No record is read after `visit` has
//! returned `Break`. Except for records in the gaps of a scan, only named records are read. If a
//! named record is missing, the store is damaged, and the call fails.

use std::ops::ControlFlow;

use bytes::Bytes;
use clearlane_backend::ReadTx;
use clearlane_engine::{Bucket, KeyRange};

use crate::error::{Error, Result};
use crate::interface::RecordVisitor;
use crate::revision::Revision;

/// The number of names that are collected before the first fetch, and the maximum number before a
/// later fetch. The first number is small, so that a reader that stops early has not walked further
/// than necessary.
const BATCH_SIZES: (usize, usize) = (16, 256);
/// Minimum number of records in a scan. Starting a scan costs about as much as two lookups.
const SCAN_MIN: usize = 4;
/// Maximum difference between the main revisions of two successive names in a scan. Skipping a
/// record is cheaper than a new descent.
const REVISION_GAP_MAX: i64 = 2;
/// Maximum number of records that a scan skips in a row. Without this limit, a scan could skip a
/// million tombstones of one transaction.
const SKIPPED_RECORDS_MAX: usize = 4;

pub(crate) struct RecordFetcher<'f, 'v> {
    tx: &'f dyn ReadTx,
    visit: &'f mut RecordVisitor<'v>,
    requested: Vec<Revision>,
    batch_size: usize,
}

impl<'f, 'v> RecordFetcher<'f, 'v> {
    pub(crate) fn new(
        tx: &'f dyn ReadTx,
        visit: &'f mut RecordVisitor<'v>,
    ) -> RecordFetcher<'f, 'v> {
        RecordFetcher { tx, visit, requested: Vec::new(), batch_size: BATCH_SIZES.0 }
    }

    /// Requests a record. `visit` may be called only later, when several requested records are
    /// fetched together. Returns `Break` if `visit` has broken.
    pub(crate) fn request(&mut self, modified: Revision) -> Result<ControlFlow<()>> {
        self.requested.push(modified);
        if self.requested.len() < self.batch_size {
            return Ok(ControlFlow::Continue(()));
        }
        self.batch_size = (2 * self.batch_size).min(BATCH_SIZES.1);
        self.fetch_requested()
    }

    pub(crate) fn fetch_requested(&mut self) -> Result<ControlFlow<()>> {
        let mut names = std::mem::take(&mut self.requested);
        let flow = self.fetch(&names)?;
        names.clear();
        self.requested = names;
        Ok(flow)
    }

    pub(crate) fn fetch(&mut self, names: &[Revision]) -> Result<ControlFlow<()>> {
        let mut left = names;
        while !left.is_empty() {
            let (side_by_side, rest) = left.split_at(scan_len(left));
            let flow = match side_by_side {
                [one] => (self.visit)(get_record(self.tx, *one)?),
                many => self.scan(many)?,
            };
            if flow.is_break() {
                return Ok(flow);
            }
            left = rest;
        }
        Ok(ControlFlow::Continue(()))
    }

    fn scan(&mut self, wanted: &[Revision]) -> Result<ControlFlow<()>> {
        let [first, .., last] = wanted else { return Ok(ControlFlow::Continue(())) };
        // The range does not include its end `to`, but it includes the last put: the tombstone key
        // of a revision is the put key with one more byte.
        let (from, to) = (first.put_key(), last.tombstone_key());
        let mut next = wanted.iter().map(|revision| revision.put_key()).peekable();
        let (mut flow, mut skipped) = (ControlFlow::Continue(()), 0);
        self.tx.range(Bucket::Key, KeyRange::new(&from, &to), &mut |key, value| {
            match next.peek() {
                None => return ControlFlow::Break(()),
                Some(wanted) if **wanted > *key && skipped < SKIPPED_RECORDS_MAX => {
                    skipped += 1;
                    return ControlFlow::Continue(());
                }
                // The wanted record is far away or missing. It is looked up after this scan.
                Some(wanted) if **wanted != *key => return ControlFlow::Break(()),
                Some(_) => {}
            }
            skipped = 0;
            next.next();
            flow = (self.visit)(value.to_bytes());
            flow
        })?;
        let left = wanted.len() - next.len();
        for revision in &wanted[left..] {
            if flow.is_break() {
                break;
            }
            flow = (self.visit)(get_record(self.tx, *revision)?);
        }
        Ok(flow)
    }
}

/// Returns how many of the first names belong to neighbouring records, or 1 if they are too few for
/// a scan.
fn scan_len(named: &[Revision]) -> usize {
    let follows = |pair: &[Revision]| {
        let (one, next) = (pair[0], pair[1]);
        one < next && next.main - one.main <= REVISION_GAP_MAX
    };
    // The length is limited: a list of names may be long while `visit` wants only a few records.
    let pairs = named.windows(2).take(BATCH_SIZES.1 - 1);
    let length = 1 + pairs.take_while(|pair| follows(pair)).count();
    if length < SCAN_MIN { 1 } else { length }
}

/// Returns the stored record that the index has named. A state has every record that its index
/// names, so the call fails with [`Error::Damaged`] if the record is missing.
pub(crate) fn get_record(tx: &dyn ReadTx, modified: Revision) -> Result<Bytes> {
    let bytes = tx.get(Bucket::Key, &modified.put_key())?;
    bytes.ok_or_else(|| Error::Damaged(format!("no record of revision {modified}")))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use clearlane_backend::{RangeVisitor, Result as Backend, Value};

    use super::*;

    #[derive(Default)]
    struct CountedRecords {
        records: BTreeMap<Vec<u8>, Bytes>,
        reads: Cell<usize>,
    }

    impl CountedRecords {
        fn put(&mut self, main: i64, sub: i64) {
            let name = Bytes::from(format!("{main}.{sub}"));
            self.records.insert(Revision::new(main, sub).put_key().to_vec(), name);
        }

        fn fetched(&self, named: &[Revision], count: usize) -> Result<Vec<String>> {
            self.reads.set(0);
            let mut found = Vec::new();
            let mut visit = |record: Bytes| {
                found.push(String::from_utf8_lossy(&record).into_owned());
                if found.len() == count {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            let mut fetch = RecordFetcher::new(self, &mut visit);
            for revision in named {
                if fetch.request(*revision)?.is_break() {
                    return Ok(found);
                }
            }
            let _ = fetch.fetch_requested()?;
            Ok(found)
        }
    }

    impl ReadTx for CountedRecords {
        fn get(&self, _bucket: Bucket, key: &[u8]) -> Backend<Option<Bytes>> {
            self.reads.set(self.reads.get() + 1);
            Ok(self.records.get(key).cloned())
        }

        fn range(
            &self,
            _bucket: Bucket,
            range: KeyRange<'_>,
            visit: &mut RangeVisitor<'_>,
        ) -> Backend<()> {
            for (key, value) in self.records.range(range.from.to_vec()..) {
                self.reads.set(self.reads.get() + 1);
                if !range.contains(key) || visit(key, Value::Shared(value)).is_break() {
                    break;
                }
            }
            Ok(())
        }
    }

    fn revisions(mains: &[i64]) -> Vec<Revision> {
        mains.iter().map(|main| Revision::new(*main, 0)).collect()
    }

    #[test]
    fn only_what_rises_with_small_steps_lies_side_by_side() {
        for (mains, expected) in [
            (&[7][..], 1),
            (&[7, 8, 9], 1),
            (&[7, 8, 9, 10], 4),
            (&[7, 8, 9, 11, 13, 16, 17], 5),
            (&[7, 8, 9, 10, 3], 4),
            (&[7, 6, 5, 4, 3], 1),
        ] {
            assert_eq!(scan_len(&revisions(mains)), expected, "{mains:?}");
        }
        let in_one_transaction: Vec<_> = (0..9).map(|sub| Revision::new(4, sub)).collect();
        assert_eq!(scan_len(&in_one_transaction), 9);
        let long: Vec<_> = (1..=5000).collect();
        assert_eq!(scan_len(&revisions(&long)), BATCH_SIZES.1);
    }

    #[test]
    fn records_come_in_the_order_of_their_names() {
        let mut records = CountedRecords::default();
        (1..=2000).for_each(|main| records.put(main, 0));
        let mut mains: Vec<i64> = (1..=600).chain([1500, 700, 702, 704, 705, 3]).collect();
        mains.extend((1000..1400).rev());
        let all = records.fetched(&revisions(&mains), usize::MAX).unwrap();
        assert_eq!(all, mains.iter().map(|main| format!("{main}.0")).collect::<Vec<_>>());
        assert_eq!(records.fetched(&revisions(&mains), 300).unwrap(), all[..300]);
        assert!(records.reads.get() < 300 + 10, "{}", records.reads.get());
    }

    #[test]
    fn a_long_gap_is_not_walked_through() {
        let mut records = CountedRecords::default();
        [1, 2, 4, 5, 6].into_iter().for_each(|main| records.put(main, 0));
        for sub in 0..100_000 {
            let tombstone = Revision::new(3, sub).tombstone_key().to_vec();
            records.records.insert(tombstone, Bytes::new());
        }
        let found = records.fetched(&revisions(&[1, 2, 4, 5, 6]), usize::MAX).unwrap();
        assert_eq!(found, ["1.0", "2.0", "4.0", "5.0", "6.0"]);
        assert!(records.reads.get() < 20, "{}", records.reads.get());
    }

    #[test]
    fn what_is_missing_is_damage() {
        let mut records = CountedRecords::default();
        [1, 2, 3, 5, 6, 7].into_iter().for_each(|main| records.put(main, 0));
        for mains in [&[1, 2, 3, 4, 5, 6][..], &[4], &[4, 5, 6, 7], &[1, 2, 3, 4], &[5, 6, 7, 8]] {
            let missing = records.fetched(&revisions(mains), usize::MAX).unwrap_err();
            assert!(missing.to_string().contains("no record of revision"), "{mains:?}: {missing}");
        }
    }
}
