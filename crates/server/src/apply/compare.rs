//! The compares of a transaction.
//!
//! ```text
//!   version of a  GREATER  1      what the store has of `a`, GREATER, what is given
//! ```
//!
//! * With a `range_end`, the compare must hold for every key of the range.
//! * A key that is missing, and a range without keys, compare as zero.
//! * As a value they do not compare at all: neither EQUAL nor NOT_EQUAL holds, whatever is given.
//! * A value given for another target than the compared one does not count: zero is compared.
//! * As in etcd, an unknown target compares as equal, and an unknown relation holds: all members
//!   must decide alike.

use std::cmp::Ordering;

use clearlane_mvcc::RangeOptions;
use clearlane_proto::etcdserverpb::Compare;
use clearlane_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use clearlane_proto::mvccpb::KeyValue;

use super::key_span::KeySpan;
use super::range::RecordSource;
use super::rejection::ApplyError;

pub(crate) fn all_hold(
    source: &(impl RecordSource + ?Sized),
    compares: &[Compare],
) -> Result<bool, ApplyError> {
    for compare in compares {
        if !holds(source, compare)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn holds(source: &(impl RecordSource + ?Sized), compare: &Compare) -> Result<bool, ApplyError> {
    let span = KeySpan::new(&compare.key, &compare.range_end);
    let found = source.records(span.range(), RangeOptions::default())?.records;
    if found.is_empty() {
        let has_value = compare.target == CompareTarget::Value as i32;
        return Ok(!has_value && holds_for(compare, &KeyValue::default()));
    }
    Ok(found.iter().all(|record| holds_for(compare, record)))
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
    use TargetUnion as Given;
    let given = compare.target_union.as_ref();
    match (CompareTarget::try_from(compare.target), given) {
        (Ok(CompareTarget::Value), Some(Given::Value(value))) => record.value.cmp(value),
        (Ok(CompareTarget::Value), _) => record.value[..].cmp(&[]),
        (Ok(CompareTarget::Version), Some(Given::Version(number))) => record.version.cmp(number),
        (Ok(CompareTarget::Version), _) => record.version.cmp(&0),
        (Ok(CompareTarget::Create), Some(Given::CreateRevision(number))) => {
            record.create_revision.cmp(number)
        }
        (Ok(CompareTarget::Create), _) => record.create_revision.cmp(&0),
        (Ok(CompareTarget::Mod), Some(Given::ModRevision(number))) => {
            record.mod_revision.cmp(number)
        }
        (Ok(CompareTarget::Mod), _) => record.mod_revision.cmp(&0),
        (Ok(CompareTarget::Lease), Some(Given::Lease(number))) => record.lease.cmp(number),
        (Ok(CompareTarget::Lease), _) => record.lease.cmp(&0),
        (Err(_), _) => Ordering::Equal,
    }
}
