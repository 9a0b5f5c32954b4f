//! Walks over the index at a past revision, in steps.
//!
//! For the newest revision, the index can count the keys of a range without a walk, and a walk
//! visits only keys that exist. At an older revision a walk must check each key for a value at that
//! revision, and it must check all keys to count them. That takes 18 ms for a million keys. So in
//! the default era such a range is split into parts of [`STEP_KEYS`] keys, with a [yield
//! point](YieldPoints) after each part. The results of all parts fit together, because all parts
//! are read from the same snapshot, which does not change. In an old era, whose index has a lock,
//! the whole range is one part.

use std::ops::ControlFlow;

use clearlane_contention::YieldPoints;
use clearlane_engine::KeyRange;
use clearlane_mvcc::{RangeOptions, ReadTxn, RecordVisitor, Result, Version};

/// Number of keys that a walk checks in one step, which takes some tens of microseconds. A network
/// thread makes only walks of one step.
const STEP_KEYS: usize = 1024;

/// A [`VersionVisitor`](clearlane_mvcc::VersionVisitor) that may fail.
pub(crate) type TryVersionVisitor<'v> = dyn FnMut(&[u8], Version) -> Result<ControlFlow<()>> + 'v;

/// Returns whether a read of the range at this revision must check more keys than a network thread
/// may check.
pub fn is_long(read_txn: &(dyn ReadTxn + '_), range: KeyRange<'_>, revision: i64) -> bool {
    has_more_past_keys(read_txn, range, revision, STEP_KEYS)
}

/// Returns whether the revision is a past one and the index has more than `keys` keys in the range.
/// A read at a past revision must check each key. Always returns false in an old era.
pub fn has_more_past_keys(
    read_txn: &(dyn ReadTxn + '_),
    range: KeyRange<'_>,
    revision: i64,
    keys: usize,
) -> bool {
    is_past(read_txn, revision) && read_txn.key_after(range, keys).is_some()
}

/// Like [`ReadTxn::visit_records`], but in steps.
pub fn visit_records(
    read_txn: &(dyn ReadTxn + '_),
    range: KeyRange<'_>,
    options: RangeOptions,
    visit: &mut RecordVisitor<'_>,
) -> Result<u64> {
    visit_in_parts(read_txn, range, options, &mut |part, options, progress| {
        read_txn.visit_records(part, options, &mut |record| progress.advance(visit(record)))
    })
}

/// Like [`ReadTxn::visit_versions`], in steps, up to the first error of the visitor. The read
/// transaction must not be from an old era.
pub fn visit_versions(
    read_txn: &(dyn ReadTxn + '_),
    range: KeyRange<'_>,
    options: RangeOptions,
    visit: &mut TryVersionVisitor<'_>,
) -> Result<u64> {
    let mut outcome = Ok(());
    let count = visit_in_parts(read_txn, range, options, &mut |part, options, progress| {
        let count = read_txn.visit_versions(part, options, &mut |key, version| {
            progress.advance(visit(key, version).unwrap_or_else(|error| {
                outcome = Err(error);
                ControlFlow::Break(())
            }))
        })?;
        Ok(count.expect("only the index of an old era has a lock"))
    })?;
    outcome.map(|()| count)
}

/// The state of a walk after the parts that were visited so far.
struct Progress {
    left: i64,
    flow: ControlFlow<()>,
}

impl Progress {
    fn advance(&mut self, flow: ControlFlow<()>) -> ControlFlow<()> {
        self.left -= 1;
        self.flow = flow;
        flow
    }
}

fn visit_in_parts(
    read_txn: &(dyn ReadTxn + '_),
    range: KeyRange<'_>,
    options: RangeOptions,
    visit: &mut dyn FnMut(KeyRange<'_>, RangeOptions, &mut Progress) -> Result<u64>,
) -> Result<u64> {
    let left = if options.limit > 0 { options.limit } else { i64::MAX };
    let (mut count, mut progress) = (0, Progress { left, flow: ControlFlow::Continue(()) });
    visit_parts(read_txn, range, options.revision, &mut |part| {
        let is_over = progress.left == 0 || progress.flow.is_break();
        if is_over && options.skip_count {
            return Ok(ControlFlow::Break(()));
        }
        let count_only = options.count_only || is_over;
        let options = RangeOptions { limit: progress.left, count_only, ..options };
        count += visit(part, options, &mut progress)?;
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(count)
}

/// Calls `visit` for the parts of a range in order, until it breaks.
fn visit_parts(
    read_txn: &(dyn ReadTxn + '_),
    range: KeyRange<'_>,
    revision: i64,
    visit: &mut dyn FnMut(KeyRange<'_>) -> Result<ControlFlow<()>>,
) -> Result<()> {
    if !is_past(read_txn, revision) {
        return visit(range).map(drop);
    }
    let (mut from, mut steps) = (range.from.to_vec(), YieldPoints::default());
    loop {
        let rest = KeyRange { from: &from, to: range.to };
        let next = read_txn.key_after(rest, STEP_KEYS);
        let part = KeyRange { from: &from, to: next.as_deref().or(range.to) };
        let flow = visit(part)?;
        match next {
            Some(next) if flow.is_continue() => from = next,
            _ => return Ok(()),
        }
        steps.advance(YieldPoints::BYTES_PER_STEP);
    }
}

fn is_past(read_txn: &(dyn ReadTxn + '_), revision: i64) -> bool {
    revision > 0 && revision < read_txn.revision()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::Arc;

    use bytes::Bytes;
    use clearlane_backend::{Config, Era};
    use clearlane_engine::MemoryEngine;
    use clearlane_mvcc::{Store, StoreConfig};
    use clearlane_proto::mvccpb::KeyValue;
    use prost::Message;

    use super::*;
    use crate::applied_position::AppliedPosition;

    const KEYS: u32 = 3 * STEP_KEYS as u32 + 7;

    fn key(number: u32) -> Vec<u8> {
        format!("key/{number:06}").into_bytes()
    }

    /// Returns a store with 20 revisions. Each revision puts, overwrites or deletes every seventh
    /// key, and starts at a different key than the revision before.
    fn store() -> Box<dyn Store<AppliedPosition>> {
        let (applied, engine) = (AppliedPosition::default(), Arc::new(MemoryEngine::new()));
        let before = AppliedPosition::pre_commit();
        let config = StoreConfig::new(engine, Config::default(), before, applied.clone());
        let (store, _) = clearlane_mvcc::open(Era::Clearlane, config).unwrap();
        for revision in 0..20 {
            let mut txn = store.begin_write().unwrap();
            for number in (0..KEYS).filter(|number| number % 7 == revision % 7) {
                let (from, to) = (key(number), [key(number), vec![0]].concat());
                match revision {
                    7..14 if number % 3 == 0 => {
                        txn.delete_range(KeyRange::new(&from, &to)).unwrap();
                    }
                    _ => txn.put(&from, format!("{revision}").as_bytes(), 0).unwrap(),
                }
            }
            drop(txn.end(applied.clone()).unwrap());
        }
        store
    }

    type Read<'r> = dyn Fn(KeyRange<'_>, RangeOptions, &mut RecordVisitor<'_>) -> Result<u64> + 'r;

    /// Runs a read that stops after `wanted` records. Returns these records, and the count that the
    /// read has reported.
    fn found(
        read: &Read<'_>,
        range: KeyRange<'_>,
        options: RangeOptions,
        wanted: usize,
    ) -> (Vec<Bytes>, u64) {
        let mut records = Vec::new();
        let count = read(range, options, &mut |record| {
            records.push(record);
            if records.len() == wanted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        (records, count.unwrap())
    }

    type Numbers = (Vec<u8>, i64, i64);

    fn versions(
        read_txn: &dyn ReadTxn,
        range: KeyRange<'_>,
        options: RangeOptions,
        wanted: usize,
    ) -> (Vec<Numbers>, u64) {
        let mut found = Vec::new();
        let count = visit_versions(read_txn, range, options, &mut |key, version| {
            found.push((key.to_vec(), version.modified.main, version.version));
            let is_last = found.len() == wanted;
            Ok(if is_last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        });
        (found, count.unwrap())
    }

    #[test]
    fn in_steps_a_range_finds_what_it_finds_at_once() {
        let store = store();
        let read_txn = store.begin_read();
        let whole: &Read<'_> =
            &|range, options, visit| read_txn.visit_records(range, options, visit);
        let stepped: &Read<'_> =
            &|range, options, visit| visit_records(&*read_txn, range, options, visit);
        let step = STEP_KEYS as u32;
        let ends = [(0, KEYS + 9), (0, step), (5, step + 5), (5, step + 6), (900, 2900), (9, 2)];
        for (from, to) in ends {
            let (from, to) = (key(from), key(to));
            let revisions = [0, 1, 4, 9, 13, 20].into_iter();
            for (revision, limit) in revisions.flat_map(|at| [0, 1, 700, 2500].map(|max| (at, max)))
            {
                for wanted in [1, 600, usize::MAX] {
                    let options = RangeOptions { revision, limit, ..RangeOptions::default() };
                    let range = KeyRange::new(&from, &to);
                    let expected = found(whole, range, options, wanted);
                    assert_eq!(found(stepped, range, options, wanted), expected, "{options:?}");
                    let uncounted = RangeOptions { skip_count: true, ..options };
                    assert_eq!(found(stepped, range, uncounted, wanted).0, expected.0);
                    let read = |options| versions(&*read_txn, range, options, wanted);
                    let records = expected.0.iter().map(|record| KeyValue::decode(&record[..]));
                    let numbers = records
                        .map(|record| record.unwrap())
                        .map(|record| (record.key.to_vec(), record.mod_revision, record.version));
                    let numbers: Vec<_> = numbers.collect();
                    assert_eq!(read(options), (numbers.clone(), expected.1));
                    assert_eq!(read(uncounted).0, numbers);
                    let counted = RangeOptions { count_only: true, ..options };
                    assert_eq!(found(stepped, range, counted, wanted), (Vec::new(), expected.1));
                }
            }
        }
        let future = RangeOptions { revision: 22, ..RangeOptions::default() };
        assert!(
            visit_records(&*read_txn, KeyRange::ALL, future, &mut |_| panic!("a record")).is_err()
        );
    }

    #[test]
    fn long_is_what_has_many_keys_in_the_past() {
        let store = store();
        let read_txn = store.begin_read();
        let first = |keys: u32| is_long(&*read_txn, KeyRange::new(&[], &key(keys)), 2);
        assert!(!first(STEP_KEYS as u32) && first(STEP_KEYS as u32 + 1));
        assert!([0, -1, 21, 22].into_iter().all(|now| !is_long(&*read_txn, KeyRange::ALL, now)));
    }
}
