//! Measures the response to a range. The index knows the lengths of most records. [Other
//! records](clearlane_mvcc::key_index::EncodedLen) are read to measure them.

use std::ops::ControlFlow;

use clearlane_contention::YieldPoints;
use clearlane_mvcc::{RangeOptions, ReadTxn, Result, Revision, Version};
use clearlane_proto::etcdserverpb::RangeRequest;
use clearlane_proto::mvccpb::KeyValue;
use clearlane_replica::apply::KeySpan;
use clearlane_replica::apply::range::{is_filtered, matches_filters, store_limit};
use clearlane_replica::walk_steps;
use prost::Message;

/// The cost of visiting a key in the index, expressed in bytes read.
pub(super) const VERSION_COST_BYTES: usize = 64;
/// Maximum number of names that are collected before the records with these names are read. A
/// record's name is its revision.
pub(super) const NAMES_MAX: usize = 256;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RangeSize {
    /// Number of records in the response.
    pub(super) records: u64,
    /// Bytes of the records in the response, including their tags and lengths.
    pub(super) encoded_bytes: u64,
    /// Number of keys that pass the filters. If more keys than the limit pass, this may be any
    /// number above the limit.
    pub(super) matched: u64,
    /// Number of keys in the range.
    pub(super) count: u64,
}

impl RangeSize {
    /// Measures a range in key order.
    pub(super) fn measure(read_txn: &dyn ReadTxn, request: &RangeRequest) -> Result<RangeSize> {
        let span = KeySpan::new(&request.key, &request.range_end);
        let limit = u64::try_from(request.limit).ok().filter(|limit| *limit > 0);
        let (mut size, mut unread) = (RangeSize::default(), Vec::new());
        let mut steps = YieldPoints::default();
        size.count = walk_steps::visit_versions(
            read_txn,
            span.range(),
            walk_options(request),
            &mut |key, version| {
                steps.advance(VERSION_COST_BYTES);
                if !is_wanted(request, version) {
                    return Ok(ControlFlow::Continue(()));
                }
                size.matched += 1;
                if limit.is_some_and(|limit| size.matched > limit) {
                    return Ok(ControlFlow::Break(()));
                }
                match known_len(request, key, version) {
                    Some(length) => size.add(length),
                    None => unread.push(version.modified),
                }
                if unread.len() == NAMES_MAX {
                    size.add_unread(read_txn, &mut unread)?;
                }
                Ok(ControlFlow::Continue(()))
            },
        )?;
        size.add_unread(read_txn, &mut unread)?;
        if !is_filtered(request) {
            size.matched = size.count;
        }
        Ok(size)
    }

    pub(super) fn add(&mut self, record: usize) {
        self.records += 1;
        self.encoded_bytes += field_len(record);
    }

    fn add_unread(&mut self, read_txn: &dyn ReadTxn, names: &mut Vec<Revision>) -> Result<()> {
        let mut steps = YieldPoints::default();
        read_txn.visit_named_records(names, &mut |record| {
            steps.advance(record.len());
            self.add(record.len());
            ControlFlow::Continue(())
        })?;
        names.clear();
        Ok(())
    }
}

/// Returns the options for a walk over the keys of a range, as far as they must be visited.
pub(super) fn walk_options(request: &RangeRequest) -> RangeOptions {
    let RangeRequest { revision, count_only, .. } = *request;
    RangeOptions { revision, limit: store_limit(request), count_only, skip_count: false }
}

pub(super) fn is_wanted(request: &RangeRequest, version: Version) -> bool {
    matches_filters(request, version.modified.main, version.created)
}

/// Returns the length of a key's record in the response, or `None` if the record must be read.
pub(super) fn known_len(request: &RangeRequest, key: &[u8], version: Version) -> Option<usize> {
    if request.keys_only { Some(keys_only_len(key, version)) } else { version.record_len() }
}

/// Returns a record with the fields that the index knows. It has no lease: see
/// [`without_value`](clearlane_replica::apply::range::without_value).
pub(crate) fn keys_only_record(key: &[u8], version: Version) -> KeyValue {
    KeyValue { key: key.to_vec().into(), ..numbers_of(version) }
}

fn keys_only_len(key: &[u8], version: Version) -> usize {
    field_len(key.len()) as usize + numbers_of(version).encoded_len()
}

fn numbers_of(version: Version) -> KeyValue {
    let Version { modified, created, version, .. } = version;
    let (create_revision, mod_revision) = (created, modified.main);
    KeyValue { create_revision, mod_revision, version, ..KeyValue::default() }
}

/// Returns the number of bytes that a record takes in a response, or a key in a record: tag, length
/// and content.
pub(super) fn field_len(length: usize) -> u64 {
    (1 + prost::length_delimiter_len(length) + length) as u64
}
