//! A range: from the records that the store finds to what the client asked for.
//!
//! ```text
//!   store ─ records in key order ─▶ filters ─▶ sort ─▶ limit ─▶ keys only ─▶ answer
//!     └──── count: keys of the range, before all of that ──────────────────▶
//! ```
//!
//! A plain range reads no record that is not in the answer; behind a filter or another order all
//! are read. `more` says that the limit cut something off behind the filters.
//!
//! * The revision in the header is the current one, also for a read of the past.
//! * The sort is stable: ties come in the order of the keys, in both directions. etcd's ties, above
//!   twelve records, depend on the release of Go.
//! * A target without an order sorts ascending what the limit has left, and one more, as in etcd.

use std::cmp::Ordering;

use bytes::Bytes;
use clearlane_engine::{Bucket, KeyRange};
use clearlane_mvcc::{RangeOptions, RangeRecords, ReadTxn, WriteTxn};
use clearlane_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use clearlane_proto::etcdserverpb::{RangeRequest, RangeResponse};
use clearlane_proto::mvccpb::KeyValue;

use super::header;
use super::key_span::KeySpan;
use super::rejection::{ApplyError, RequestRejection, split_error};
use crate::applied_position::AppliedPosition;

/// What a read and a write transaction have in common.
pub(crate) trait RecordSource {
    fn revision(&self) -> i64;

    /// A value of another bucket than the store's own.
    fn value(&self, bucket: Bucket, key: &[u8]) -> clearlane_mvcc::Result<Option<Bytes>>;

    fn records(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
    ) -> clearlane_mvcc::Result<RangeRecords>;
}

impl RecordSource for dyn ReadTxn + '_ {
    fn revision(&self) -> i64 {
        self.revision()
    }

    fn value(&self, bucket: Bucket, key: &[u8]) -> clearlane_mvcc::Result<Option<Bytes>> {
        self.get(bucket, key)
    }

    fn records(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
    ) -> clearlane_mvcc::Result<RangeRecords> {
        self.range(range, options)
    }
}

impl RecordSource for dyn WriteTxn<AppliedPosition> + '_ {
    fn revision(&self) -> i64 {
        self.revision()
    }

    fn value(&self, bucket: Bucket, key: &[u8]) -> clearlane_mvcc::Result<Option<Bytes>> {
        self.get(bucket, key)
    }

    fn records(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
    ) -> clearlane_mvcc::Result<RangeRecords> {
        self.range(range, options)
    }
}

/// The request has passed [`check::range`](super::check::range).
pub fn range(
    read: &(dyn ReadTxn + '_),
    request: &RangeRequest,
) -> crate::Result<Result<RangeResponse, RequestRejection>> {
    split_error(execute_range(read, request))
}

pub(crate) fn get_record(
    source: &(impl RecordSource + ?Sized),
    key: &[u8],
) -> clearlane_mvcc::Result<Option<KeyValue>> {
    let answer = source.records(KeySpan::one_key(key).range(), RangeOptions::default())?;
    Ok(answer.records.into_iter().next())
}

pub(crate) fn execute_range(
    source: &(impl RecordSource + ?Sized),
    request: &RangeRequest,
) -> Result<RangeResponse, ApplyError> {
    let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0);
    let options = RangeOptions {
        revision: request.revision,
        limit: store_limit(request),
        count_only: request.count_only,
        skip_count: false,
    };
    let span = KeySpan::new(&request.key, &request.range_end);
    let RangeRecords { mut records, count } = source.records(span.range(), options)?;
    let more = assemble(&mut records, request, count, limit);
    Ok(RangeResponse {
        header: Some(header(source.revision())),
        kvs: records,
        more,
        count: count as i64,
    })
}

/// 0 is all.
fn store_limit(request: &RangeRequest) -> i64 {
    match order(request) {
        _ if request.limit <= 0 || is_filtered(request) => 0,
        None => request.limit,
        // One more: the sort decides which record is cut off.
        Some(_) if request.sort_order() == SortOrder::None => request.limit.saturating_add(1),
        Some(_) => 0,
    }
}

/// Whether the answer has the store's records unchanged and in key order.
pub(crate) fn is_plain(request: &RangeRequest) -> bool {
    !request.keys_only && !is_filtered(request) && order(request).is_none()
}

pub(super) fn is_filtered(request: &RangeRequest) -> bool {
    let bounds = [
        request.min_mod_revision,
        request.max_mod_revision,
        request.min_create_revision,
        request.max_create_revision,
    ];
    bounds.iter().any(|bound| *bound != 0)
}

pub(crate) fn has_order(request: &RangeRequest) -> bool {
    order(request).is_some()
}

/// `None` for the order in which the store reads.
fn order(request: &RangeRequest) -> Option<(SortTarget, SortOrder)> {
    match (request.sort_target(), request.sort_order()) {
        (SortTarget::Key, SortOrder::None | SortOrder::Ascend) => None,
        (target, SortOrder::None) => Some((target, SortOrder::Ascend)),
        (target, order) => Some((target, order)),
    }
}

/// Turns the store's records into the answer's. Returns whether the limit has cut some off.
fn assemble(
    records: &mut Vec<KeyValue>,
    request: &RangeRequest,
    count: u64,
    limit: Option<usize>,
) -> bool {
    if request.count_only {
        return false;
    }
    let mut left = count;
    if is_filtered(request) {
        records.retain(|record| matches_filters(request, record));
        left = records.len() as u64;
    }
    if let Some((target, direction)) = order(request) {
        sort(records, target, direction);
    }
    if let Some(limit) = limit {
        records.truncate(limit);
    }
    if request.keys_only {
        let keeps_lease = request.sort_target() == SortTarget::Value;
        records.iter_mut().for_each(|record| clear_value(record, keeps_lease));
    }
    limit.is_some_and(|limit| left > limit as u64)
}

fn matches_filters(request: &RangeRequest, record: &KeyValue) -> bool {
    let within = |revision: i64, min: i64, max: i64| {
        (min == 0 || revision >= min) && (max == 0 || revision <= max)
    };
    within(record.mod_revision, request.min_mod_revision, request.max_mod_revision)
        && within(record.create_revision, request.min_create_revision, request.max_create_revision)
}

fn sort(records: &mut [KeyValue], target: SortTarget, direction: SortOrder) {
    let compare = |a: &KeyValue, b: &KeyValue| -> Ordering {
        match target {
            SortTarget::Key => a.key.cmp(&b.key),
            SortTarget::Version => a.version.cmp(&b.version),
            SortTarget::Create => a.create_revision.cmp(&b.create_revision),
            SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
            SortTarget::Value => a.value.cmp(&b.value),
        }
    };
    match direction {
        SortOrder::Descend => records.sort_by(|a, b| compare(b, a)),
        SortOrder::Ascend | SortOrder::None => records.sort_by(compare),
    }
}

/// Drops the value. etcd 3.7 answers such a range from its index, which does not have leases,
/// unless it sorts by value.
fn clear_value(record: &mut KeyValue, keeps_lease: bool) {
    record.value = Bytes::new();
    // The key is a slice of the record's bytes, and would keep the value in memory.
    record.key = Bytes::copy_from_slice(&record.key);
    if !keeps_lease {
        record.lease = 0;
    }
}
