//! The compares of a transaction.
//!
//! A compare has a key, a target, a relation and a given number or value. For example, the compare
//! `version of a GREATER 1` holds if the version of key `a` in the store is greater than 1.
//!
//! * With a `range_end`, the compare must hold for every key of the range.
//! * For a missing key, or a range without keys, the number in the store is taken to be zero.
//! * If the target is the value, no compare holds for a missing key or a range without keys, not
//!   even NOT_EQUAL.
//! * If the number or value is given for another target than the compare's target, zero is used
//!   instead, or the empty value if the target is the value.
//! * As in etcd, an unknown target compares as equal, and an unknown relation holds: all members
//!   must make the same decision.
//!
//! A span of keys is walked at most twice, whatever the number of its compares: once for all
//! compares whose numbers are in the index (versions and revisions), and once for all compares that
//! need records (values and leases). A walk ends at the first key for which one of its compares
//! does not hold. Later entries wait during the walks, unless the compares [were evaluated
//! before](super::evaluated_compares).

use std::cmp::Ordering;
use std::ops::ControlFlow;

use clearlane_contention::YieldPoints;
use clearlane_engine::KeyRange;
use clearlane_mvcc::{RangeOptions, ReadTxn, Version};
use clearlane_proto::etcdserverpb::Compare;
use clearlane_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use super::key_span::KeySpan;
use super::rejection::ApplyError;
use crate::error::Error;

/// The cost of visiting a key, expressed in bytes read.
const WALK_COST_BYTES: usize = 64;

pub(crate) fn all_hold(
    read: &(dyn ReadTxn + '_),
    compares: &[Compare],
) -> Result<bool, ApplyError> {
    for compares in SortedCompares::new(compares).by_walk() {
        if !compares.hold(read, &mut |_| {})? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The compares in evaluation order, without any that another compare makes redundant.
pub(super) struct SortedCompares<'r>(Vec<&'r Compare>);

impl<'r> SortedCompares<'r> {
    pub(super) fn new(compares: &'r [Compare]) -> SortedCompares<'r> {
        let mut sorted: Vec<&Compare> = compares.iter().collect();
        if compares.len() > 1 {
            sorted.sort_by(|a, b| order_of(a).cmp(&order_of(b)));
            sorted.dedup_by(is_decided_by);
        }
        SortedCompares(sorted)
    }

    pub(super) fn by_walk(&self) -> impl Iterator<Item = SpanCompares<'_>> {
        self.0.chunk_by(|a, b| walk_of(a) == walk_of(b)).filter_map(SpanCompares::new)
    }
}

/// Compares that share a walk: they have the same span, and either all or none of them need
/// records.
pub(super) struct SpanCompares<'s> {
    compares: &'s [&'s Compare],
    needs_records: bool,
    span: KeySpan<'s>,
}

impl<'s> SpanCompares<'s> {
    fn new(compares: &'s [&'s Compare]) -> Option<SpanCompares<'s>> {
        let first = compares.first()?;
        let span = KeySpan::new(&first.key, &first.range_end);
        Some(SpanCompares { compares, needs_records: needs_record(first), span })
    }

    pub(super) fn range(&self) -> KeyRange<'_> {
        self.span.range()
    }

    /// Returns whether the walk must read records. Otherwise it only needs the index.
    pub(super) fn needs_records(&self) -> bool {
        self.needs_records
    }

    /// Returns whether all compares hold. If one does not hold for some key, the walk stops and
    /// `failed` is called with that key. If the span has no keys, `failed` is not called.
    pub(super) fn hold(
        &self,
        read: &(dyn ReadTxn + '_),
        failed: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, ApplyError> {
        let hold = self.hold_in(read, self.span.range(), failed)?;
        Ok(hold.unwrap_or_else(|| self.hold_without_keys()))
    }

    /// Like `hold`, but for a part of the span. Returns `None` if the part has no keys.
    pub(super) fn hold_in(
        &self,
        read: &(dyn ReadTxn + '_),
        part: KeyRange<'_>,
        failed: &mut dyn FnMut(&[u8]),
    ) -> Result<Option<bool>, ApplyError> {
        let (mut hold, mut steps) = (None, YieldPoints::default());
        let mut visit = |key: &[u8], found: &KeyValue| {
            steps.advance(WALK_COST_BYTES + found.value.len());
            if self.compares.iter().all(|compare| holds_for(compare, found)) {
                hold = Some(true);
                return ControlFlow::Continue(());
            }
            hold = Some(false);
            failed(key);
            ControlFlow::Break(())
        };
        let options = RangeOptions { skip_count: true, ..RangeOptions::default() };
        let mut walked = None;
        if !self.needs_records {
            walked = read.visit_versions(part, options, &mut |key, version| {
                visit(key, &numbers_of(version))
            })?;
        }
        if walked.is_none() {
            let mut damage = None;
            read.visit_records(part, options, &mut |record| match KeyValue::decode(record) {
                Ok(record) => visit(&record.key, &record),
                Err(error) => {
                    damage = Some(Error::damaged("a record", error.to_string()));
                    ControlFlow::Break(())
                }
            })?;
            if let Some(damage) = damage {
                return Err(damage.into());
            }
        }
        Ok(hold)
    }

    pub(super) fn hold_without_keys(&self) -> bool {
        self.compares.iter().all(|compare| holds_without_key(compare))
    }

    /// Returns the number of keys in the span. In the default era the index returns this number
    /// without a walk.
    pub(super) fn key_count(&self, read: &(dyn ReadTxn + '_)) -> Result<u64, ApplyError> {
        let options = RangeOptions { count_only: true, ..RangeOptions::default() };
        Ok(read.visit_records(self.span.range(), options, &mut |_| ControlFlow::Break(()))?)
    }
}

/// Returns the sort key of the compare's walk. Walks that cost little come first, because the other
/// walks are unnecessary if a compare of an earlier walk does not hold.
fn walk_of(compare: &Compare) -> (bool, bool, &[u8], &[u8]) {
    (!compare.range_end.is_empty(), needs_record(compare), &compare.key, &compare.range_end)
}

fn order_of(compare: &Compare) -> impl Ord {
    (walk_of(compare), compare.target, compare.result, given_number(compare))
}

/// Returns whether one of two adjacent compares in the evaluation order implies the other, so that
/// one of them is redundant. If so, stores the stricter compare in `kept`.
fn is_decided_by<'r>(compare: &mut &'r Compare, kept: &mut &'r Compare) -> bool {
    let question = |of: &'r Compare| (walk_of(of), of.target, of.result);
    if question(compare) != question(kept) {
        return false;
    }
    match CompareResult::try_from(compare.result) {
        // The given numbers ascend. So the later compare is the stricter one for `Greater`, and the
        // earlier one for `Less`.
        Ok(CompareResult::Greater) if !needs_record(compare) => *kept = *compare,
        Ok(CompareResult::Less) if !needs_record(compare) => {}
        _ => return compare == kept,
    }
    true
}

/// Returns whether the target is only in the record, and not in the index.
fn needs_record(compare: &Compare) -> bool {
    [CompareTarget::Value as i32, CompareTarget::Lease as i32].contains(&compare.target)
}

/// Returns the fields of a record that are also in the index.
fn numbers_of(version: Version) -> KeyValue {
    let Version { modified, created, version, .. } = version;
    let (create_revision, mod_revision) = (created, modified.main);
    KeyValue { create_revision, mod_revision, version, ..KeyValue::default() }
}

fn holds_without_key(compare: &Compare) -> bool {
    let is_value = compare.target == CompareTarget::Value as i32;
    !is_value && holds_for(compare, &KeyValue::default())
}

fn holds_for(compare: &Compare, record: &KeyValue) -> bool {
    let relation = relation(compare, record);
    match CompareResult::try_from(compare.result) {
        Ok(CompareResult::Equal) => relation.is_eq(),
        Ok(CompareResult::NotEqual) => relation.is_ne(),
        Ok(CompareResult::Greater) => relation.is_gt(),
        Ok(CompareResult::Less) => relation.is_lt(),
        Err(_) => true,
    }
}

fn relation(compare: &Compare, record: &KeyValue) -> Ordering {
    let number = given_number(compare);
    match CompareTarget::try_from(compare.target) {
        Ok(CompareTarget::Value) => match &compare.target_union {
            Some(TargetUnion::Value(value)) => record.value.cmp(value),
            _ => record.value[..].cmp(&[]),
        },
        Ok(CompareTarget::Version) => record.version.cmp(&number),
        Ok(CompareTarget::Create) => record.create_revision.cmp(&number),
        Ok(CompareTarget::Mod) => record.mod_revision.cmp(&number),
        Ok(CompareTarget::Lease) => record.lease.cmp(&number),
        Err(_) => Ordering::Equal,
    }
}

/// Returns the given number, or 0 if the compare has none for its target.
fn given_number(compare: &Compare) -> i64 {
    use TargetUnion as Given;
    match (CompareTarget::try_from(compare.target), &compare.target_union) {
        (Ok(CompareTarget::Version), Some(Given::Version(number)))
        | (Ok(CompareTarget::Create), Some(Given::CreateRevision(number)))
        | (Ok(CompareTarget::Mod), Some(Given::ModRevision(number)))
        | (Ok(CompareTarget::Lease), Some(Given::Lease(number))) => *number,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use bytes::Bytes;
    use clearlane_backend::RangeVisitor;
    use clearlane_engine::Bucket;
    use clearlane_mvcc::{EncodedLen, RecordVisitor, Result as StoreResult, Revision};
    use clearlane_mvcc::{KeyIndex, VersionVisitor};

    use super::*;

    /// A read transaction with a thousand keys. It counts the visited versions and records.
    #[derive(Default)]
    struct CountedKeys {
        versions: Cell<u32>,
        records: Cell<u32>,
    }

    const KEYS: u32 = 1000;

    impl ReadTxn for CountedKeys {
        fn revision(&self) -> i64 {
            i64::from(KEYS)
        }

        fn compact_revision(&self) -> i64 {
            -1
        }

        fn visit_records(
            &self,
            _range: KeyRange<'_>,
            _options: RangeOptions,
            visit: &mut RecordVisitor<'_>,
        ) -> StoreResult<u64> {
            for version in 1..=KEYS {
                self.records.set(self.records.get() + 1);
                let record = KeyValue { version: i64::from(version), ..KeyValue::default() };
                if visit(record.encode_to_vec().into()).is_break() {
                    break;
                }
            }
            Ok(0)
        }

        fn visit_named_records(
            &self,
            _names: &[Revision],
            _visit: &mut RecordVisitor<'_>,
        ) -> StoreResult<()> {
            Ok(())
        }

        fn visit_versions(
            &self,
            _range: KeyRange<'_>,
            _options: RangeOptions,
            visit: &mut VersionVisitor<'_>,
        ) -> StoreResult<Option<u64>> {
            for number in 1..=KEYS {
                self.versions.set(self.versions.get() + 1);
                let modified = Revision::new(i64::from(number), 0);
                let version = KeyIndex::new(modified, EncodedLen::UNKNOWN).current();
                if version.is_some_and(|version| visit(b"k", version).is_break()) {
                    break;
                }
            }
            Ok(Some(0))
        }

        fn visit_changed_keys(
            &self,
            _after: i64,
            _visit: &mut dyn FnMut(&[u8], usize) -> ControlFlow<()>,
        ) -> StoreResult<bool> {
            Ok(false)
        }

        fn get(&self, _bucket: Bucket, _key: &[u8]) -> StoreResult<Option<Bytes>> {
            Ok(None)
        }

        fn scan(&self, _bucket: Bucket, _visit: &mut RangeVisitor<'_>) -> StoreResult<()> {
            Ok(())
        }
    }

    fn compare(target: CompareTarget, result: CompareResult, given: TargetUnion) -> Compare {
        Compare {
            target: target as i32,
            result: result as i32,
            target_union: Some(given),
            key: "a".into(),
            range_end: "z".into(),
        }
    }

    #[test]
    fn a_span_is_walked_once_and_to_the_first_key_that_decides() {
        let mod_below = |revision: i64| {
            let given = TargetUnion::ModRevision(revision);
            compare(CompareTarget::Mod, CompareResult::Less, given)
        };
        let lease_is = |lease: i64| {
            compare(CompareTarget::Lease, CompareResult::Equal, TargetUnion::Lease(lease))
        };
        for (compares, holds, versions, records) in [
            (vec![mod_below(2000); 10], true, KEYS, 0),
            (vec![mod_below(2000), mod_below(8), mod_below(3000)], false, 8, 0),
            (vec![lease_is(0), mod_below(2000), lease_is(0)], true, KEYS, KEYS),
            // The compare that needs only the index is evaluated first.
            (vec![lease_is(0), mod_below(8)], false, 8, 0),
            (vec![lease_is(1), mod_below(2000)], false, KEYS, 1),
            (vec![], true, 0, 0),
        ] {
            let keys = CountedKeys::default();
            assert_eq!(all_hold(&keys, &compares).ok(), Some(holds), "{compares:?}");
            assert_eq!((keys.versions.get(), keys.records.get()), (versions, records));
        }
    }

    #[test]
    fn compares_that_others_decide_change_nothing() {
        let mut compares = Vec::new();
        for (target, results) in [(CompareTarget::Version, 0..5), (CompareTarget::Lease, 0..4)] {
            for (result, number) in
                results.flat_map(|result| [-1, 0, 1, 999].map(|it| (result, it)))
            {
                let given = match target {
                    CompareTarget::Version => TargetUnion::ModRevision(number),
                    _ => TargetUnion::Lease(number),
                };
                for given in [given, TargetUnion::Version(number)] {
                    compares
                        .push(Compare { result, ..compare(target, CompareResult::Equal, given) });
                }
            }
        }
        let keys = CountedKeys::default();
        let alone: Vec<bool> = compares
            .iter()
            .map(|compare| all_hold(&keys, std::slice::from_ref(compare)).unwrap())
            .collect();
        for (a, a_holds) in compares.iter().zip(&alone) {
            for (b, b_holds) in compares.iter().zip(&alone) {
                let both = all_hold(&keys, &[a.clone(), b.clone()]).unwrap();
                assert_eq!(both, *a_holds && *b_holds, "{a:?} {b:?}");
            }
        }
    }
}
