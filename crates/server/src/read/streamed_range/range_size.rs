//! How long the answer to a range is. The index knows it, but for some
//! [records](clearlane_mvcc::key_index::EncodedLen), which are read.

use std::ops::ControlFlow;

use clearlane_mvcc::{RangeOptions, ReadTxn, Result, Revision, Version};
use clearlane_net::sched::YieldPoints;
use clearlane_proto::etcdserverpb::RangeRequest;
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use crate::apply::KeySpan;
use crate::apply::range::{is_filtered, matches_filters, store_limit};
use crate::walk_steps;

/// The cost of a look at a key in the index, in bytes read.
pub(super) const VERSION_COST_BYTES: usize = 64;
/// Number of records that are named before they are fetched.
pub(super) const NAMES_MAX: usize = 256;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RangeSize {
    /// In the answer.
    pub(super) records: u64,
    /// In the answer, with the tags and lengths of the records.
    pub(super) encoded_bytes: u64,
    /// Number of keys that pass the filters, or a number above the limit.
    pub(super) matched: u64,
    /// Number of keys in the range.
    pub(super) count: u64,
}

impl RangeSize {
    /// Of a range in the order of its keys.
    pub(super) fn measure(view: &dyn ReadTxn, request: &RangeRequest) -> Result<RangeSize> {
        let span = KeySpan::new(&request.key, &request.range_end);
        let limit = u64::try_from(request.limit).ok().filter(|limit| *limit > 0);
        let (mut size, mut unread) = (RangeSize::default(), Vec::new());
        let mut steps = YieldPoints::default();
        size.count = walk_steps::visit_versions(
            view,
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
                    size.add_unread(view, &mut unread)?;
                }
                Ok(ControlFlow::Continue(()))
            },
        )?;
        size.add_unread(view, &mut unread)?;
        if !is_filtered(request) {
            size.matched = size.count;
        }
        Ok(size)
    }

    pub(super) fn add(&mut self, record: usize) {
        self.records += 1;
        self.encoded_bytes += field_len(record);
    }

    fn add_unread(&mut self, view: &dyn ReadTxn, names: &mut Vec<Revision>) -> Result<()> {
        let mut steps = YieldPoints::default();
        view.visit_named_records(names, &mut |record| {
            steps.advance(record.len());
            self.add(record.len());
            ControlFlow::Continue(())
        })?;
        names.clear();
        Ok(())
    }
}

/// For a walk over the keys of a range, as far as they are to be looked at.
pub(super) fn walk_options(request: &RangeRequest) -> RangeOptions {
    let RangeRequest { revision, count_only, .. } = *request;
    RangeOptions { revision, limit: store_limit(request), count_only, skip_count: false }
}

pub(super) fn is_wanted(request: &RangeRequest, version: Version) -> bool {
    matches_filters(request, version.modified.main, version.created)
}

/// The length of a key's record in the answer; `None` if the record has to be read.
pub(super) fn known_len(request: &RangeRequest, key: &[u8], version: Version) -> Option<usize> {
    if request.keys_only { Some(keys_only_len(key, version)) } else { version.record_len() }
}

/// What the index knows of a record. It has no lease: see
/// [`without_value`](crate::apply::range::without_value).
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

/// A record in an answer, or a key in a record: tag, length, and what it is.
pub(super) fn field_len(length: usize) -> u64 {
    (1 + prost::length_delimiter_len(length) + length) as u64
}
