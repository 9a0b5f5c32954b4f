//! A range: selects and sorts the store's records as the client requested.
//!
//! ```text
//!   store ─ records in key order ─▶ filters ─▶ sort ─▶ limit ─▶ keys only ─▶ response
//!     └──── count: keys of the range, before all of these steps ────────────▶
//! ```
//!
//! This code serves ranges in an old era, ranges that a transaction neither defers nor streams,
//! later pages of a stream, single keys with an order or a filter, and short ranges sorted by
//! value. The crate `server` reads all other ranges without decoding their records, with the same
//! results. Records that cannot be in the response are dropped while the store is being read.
//! `more` means that the limit cut off records that had passed the filters.
//!
//! * The revision in the header is the current one, even for a read at a past revision.
//! * The sort is stable: ties are in the order of the keys, in both directions. In etcd, the order
//!   of ties among more than twelve records depends on the release of Go.
//! * If a request has a sort target and no direction, the records are sorted in ascending order, as
//!   in etcd. With a limit and without filters, only the first `limit + 1` records in key order are
//!   read and sorted.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use bytes::Bytes;
use clearlane_contention::YieldPoints;
use clearlane_engine::KeyRange;
use clearlane_mvcc::{RangeOptions, RangeRecords, ReadTxn, WriteTxn};
use clearlane_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use clearlane_proto::etcdserverpb::{RangeRequest, RangeResponse};
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use super::header;
use super::key_span::KeySpan;
use super::rejection::{ApplyError, RequestRejection, split_error};
use crate::applied_position::AppliedPosition;
use crate::walk_steps;

/// The cost of finding and decoding a record, expressed in bytes read.
const RECORD_COST_BYTES: usize = 64;
/// The cost of comparing two records, expressed in bytes read.
const COMPARE_COST_BYTES: usize = 32;

/// The common interface of read transactions and write transactions.
pub trait RecordSource {
    fn revision(&self) -> i64;

    /// Calls `visit` for each record of a range, in key order. Returns the number of keys in the
    /// range.
    fn visit(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
        visit: &mut dyn FnMut(KeyValue),
    ) -> clearlane_mvcc::Result<u64>;

    fn records(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
    ) -> clearlane_mvcc::Result<RangeRecords> {
        let mut records = Vec::new();
        let count = self.visit(range, options, &mut |record| records.push(record))?;
        Ok(RangeRecords { records, count })
    }
}

impl RecordSource for dyn ReadTxn + '_ {
    fn revision(&self) -> i64 {
        self.revision()
    }

    /// This method has yield points, because a visit may take a long time in the read pool.
    fn visit(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
        visit: &mut dyn FnMut(KeyValue),
    ) -> clearlane_mvcc::Result<u64> {
        let (mut steps, mut decoded) = (YieldPoints::default(), Ok(()));
        let count = walk_steps::visit_records(self, range, options, &mut |record| {
            steps.advance(record.len() + RECORD_COST_BYTES);
            match KeyValue::decode(record) {
                Ok(record) => visit(record),
                Err(error) => {
                    decoded = Err(clearlane_mvcc::Error::Damaged(format!("a record: {error}")));
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
        decoded.map(|()| count)
    }
}

impl RecordSource for dyn WriteTxn<AppliedPosition> + '_ {
    fn revision(&self) -> i64 {
        self.revision()
    }

    fn visit(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
        visit: &mut dyn FnMut(KeyValue),
    ) -> clearlane_mvcc::Result<u64> {
        let RangeRecords { records, count } = self.range(range, options)?;
        records.into_iter().for_each(visit);
        Ok(count)
    }

    fn records(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
    ) -> clearlane_mvcc::Result<RangeRecords> {
        self.range(range, options)
    }
}

/// Serves a range. The request must have passed [`check::range`](super::check::range).
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

pub fn execute_range(
    source: &(impl RecordSource + ?Sized),
    request: &RangeRequest,
) -> Result<RangeResponse, ApplyError> {
    let options = RangeOptions {
        revision: request.revision,
        limit: store_limit(request),
        count_only: request.count_only,
        skip_count: false,
    };
    let span = KeySpan::new(&request.key, &request.range_end);
    let mut selection = Selection::new(request);
    let count = source.visit(span.range(), options, &mut |record| selection.add(record))?;
    let (kvs, more) = selection.finish(count);
    Ok(RangeResponse { header: Some(header(source.revision())), kvs, more, count: count as i64 })
}

/// Returns the first records of a range in key order, up to the request's limit. The keys of the
/// range are not counted. The request must have no filter and no sort order.
pub fn first_records(
    read: &(dyn ReadTxn + '_),
    request: &RangeRequest,
) -> Result<Vec<KeyValue>, ApplyError> {
    let RangeRequest { revision, limit, .. } = *request;
    let options = RangeOptions { revision, limit, count_only: false, skip_count: true };
    let span = KeySpan::new(&request.key, &request.range_end);
    let mut selection = Selection::new(request);
    read.visit(span.range(), options, &mut |record| selection.add(record))?;
    Ok(selection.records)
}

/// Returns the maximum number of keys that the store must visit; 0 means all.
#[inline]
pub fn store_limit(request: &RangeRequest) -> i64 {
    match RecordOrder::of(request) {
        _ if request.limit <= 0 || is_filtered(request) => 0,
        None => request.limit,
        // One more than the limit, as in etcd: the sort decides which record is cut off.
        Some(_) if request.sort_order() == SortOrder::None => request.limit.saturating_add(1),
        Some(_) => 0,
    }
}

/// Returns whether the response has the store's records unchanged and in key order.
#[inline]
pub fn is_plain(request: &RangeRequest) -> bool {
    !request.keys_only && has_first_keys(request)
}

/// Returns whether the response has the keys of the range, in their order, up to the limit.
#[inline]
pub fn has_first_keys(request: &RangeRequest) -> bool {
    !is_filtered(request) && !has_order(request)
}

#[inline]
pub fn is_filtered(request: &RangeRequest) -> bool {
    let bounds = [
        request.min_mod_revision,
        request.max_mod_revision,
        request.min_create_revision,
        request.max_create_revision,
    ];
    bounds.iter().any(|bound| *bound != 0)
}

pub fn has_order(request: &RangeRequest) -> bool {
    RecordOrder::of(request).is_some()
}

/// A sort order other than ascending by key, which is the order of the store.
#[derive(Clone, Copy, Debug)]
pub struct RecordOrder {
    pub target: SortTarget,
    pub descends: bool,
}

impl RecordOrder {
    pub fn of(request: &RangeRequest) -> Option<RecordOrder> {
        match (request.sort_target(), request.sort_order()) {
            (SortTarget::Key, SortOrder::None | SortOrder::Ascend) => None,
            (target, order) => Some(RecordOrder { target, descends: order == SortOrder::Descend }),
        }
    }

    /// Compares two records. Ties are decided by ascending key, whatever the direction, so no two
    /// records of a range are equal.
    fn compare(self, a: &KeyValue, b: &KeyValue) -> Ordering {
        let order = match self.target {
            SortTarget::Key => a.key.cmp(&b.key),
            SortTarget::Version => a.version.cmp(&b.version),
            SortTarget::Create => a.create_revision.cmp(&b.create_revision),
            SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
            SortTarget::Value => a.value.cmp(&b.value),
        };
        let order = if self.descends { order.reverse() } else { order };
        order.then_with(|| a.key.cmp(&b.key))
    }
}

/// The visited records that may still be in the response. With a limit, their number is at most
/// twice the limit.
struct Selection<'r> {
    request: &'r RangeRequest,
    order: Option<RecordOrder>,
    limit: Option<usize>,
    records: Vec<KeyValue>,
    /// Number of records that have passed the filters.
    matched: u64,
    /// If true, `cut` has run. `records[..limit]` are the records that it has kept, and the record
    /// at index `limit - 1` is the last of these in the sort order. A record that sorts after it is
    /// not in the response.
    is_cut: bool,
    steps: YieldPoints,
}

impl<'r> Selection<'r> {
    fn new(request: &'r RangeRequest) -> Selection<'r> {
        Selection {
            request,
            order: RecordOrder::of(request),
            limit: usize::try_from(request.limit).ok().filter(|limit| *limit > 0),
            records: Vec::new(),
            matched: 0,
            is_cut: false,
            steps: YieldPoints::default(),
        }
    }

    fn add(&mut self, record: KeyValue) {
        let KeyValue { mod_revision, create_revision, .. } = record;
        if !matches_filters(self.request, mod_revision, create_revision) {
            return;
        }
        self.matched += 1;
        if !self.may_be_within_limit(&record) {
            return;
        }
        let is_sorted_by_value = self.order.is_some_and(|it| it.target == SortTarget::Value);
        let record = match self.request.keys_only && !is_sorted_by_value {
            true => without_value(record, false),
            false => record,
        };
        self.records.push(record);
        if let Some(limit) = self.limit
            && self.records.len() >= limit.saturating_mul(2)
        {
            self.cut(limit);
        }
    }

    fn may_be_within_limit(&self, record: &KeyValue) -> bool {
        match (self.limit, self.order) {
            (None, _) => true,
            (Some(limit), None) => self.records.len() < limit,
            (Some(limit), Some(order)) => {
                !self.is_cut || order.compare(record, &self.records[limit - 1]).is_lt()
            }
        }
    }

    /// Keeps the first `limit` records in the sort order. Only the last of them is at its final
    /// position; the others are not sorted.
    fn cut(&mut self, limit: usize) {
        if let Some(order) = self.order
            && self.records.len() > limit
        {
            let steps = &mut self.steps;
            self.records.select_nth_unstable_by(limit - 1, |a, b| {
                steps.advance(COMPARE_COST_BYTES);
                order.compare(a, b)
            });
            self.is_cut = true;
        }
        self.records.truncate(limit);
    }

    /// Returns the records of the response, and whether the limit has cut off records.
    fn finish(mut self, count: u64) -> (Vec<KeyValue>, bool) {
        if let Some(limit) = self.limit {
            self.cut(limit);
        }
        let Selection { request, order, limit, mut records, matched, mut steps, .. } = self;
        if let Some(order) = order {
            records.sort_unstable_by(|a, b| {
                steps.advance(COMPARE_COST_BYTES);
                order.compare(a, b)
            });
            if request.keys_only && order.target == SortTarget::Value {
                let emptied = records.into_iter().map(|record| without_value(record, true));
                records = emptied.collect();
            }
        }
        let left = if is_filtered(request) { matched } else { count };
        let is_cut_off = |limit| !request.count_only && left > limit as u64;
        (records, limit.is_some_and(is_cut_off))
    }
}

#[inline]
pub fn matches_filters(request: &RangeRequest, mod_revision: i64, create_revision: i64) -> bool {
    let within = |revision: i64, min: i64, max: i64| {
        (min == 0 || revision >= min) && (max == 0 || revision <= max)
    };
    within(mod_revision, request.min_mod_revision, request.max_mod_revision)
        && within(create_revision, request.min_create_revision, request.max_create_revision)
}

/// Removes the value from a record, and also the lease unless `keeps_lease` is true. If a request
/// wants keys only, etcd 3.7 reads its index, which has no leases. If the request also sorts by
/// value, etcd reads the records, and so the response has leases.
pub fn without_value(record: KeyValue, keeps_lease: bool) -> KeyValue {
    // The key is a slice of the record's bytes, so it would keep the value in memory.
    let key = Bytes::copy_from_slice(&record.key);
    let lease = if keeps_lease { record.lease } else { 0 };
    KeyValue { key, value: Bytes::new(), lease, ..record }
}

#[cfg(test)]
mod tests;
