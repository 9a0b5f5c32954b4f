//! One state of a store, open for reading: how a range goes from keys to records.
//!
//! ```text
//!   (a..d, revision 7)  ──index──▶  4.0 6.1 7.0  ──backend──▶  the records
//! ```
//!
//! Every era reads in these two steps, on an index and records of the same state; how a store keeps
//! the two together is its own matter. A snapshot of the index is walked and the records are
//! fetched on the way, [a few names at a time](crate::record_fetch). The index under a lock is
//! walked first and the records are fetched after it, as etcd does: no put should wait for the disk
//! as well.

use std::ops::ControlFlow;

use clearlane_backend::ReadTx;
use clearlane_engine::KeyRange;
use clearlane_proto::mvccpb::KeyValue;

use crate::error::{Error, Result};
use crate::interface::{
    LengthVisitor, RangeOptions, RangeRecords, RecordVisitor, decode_record, decode_records,
};
use crate::key_index::Version;
use crate::record_fetch::{RecordFetcher, get_record};
use crate::revision::Revision;
use crate::tree_index::IndexSnapshot;

/// One state of a store: revisions, index and records that belong together.
pub(crate) trait Moment {
    type Index: IndexSnapshot;

    fn revision(&self) -> i64;
    fn compact_revision(&self) -> i64;
    fn index(&self) -> &Self::Index;
    fn tx(&self) -> &dyn ReadTx;
}

/// The revision that a request means, if it can be read. `current` is the state's own, or one more
/// inside a write transaction that has changed something.
pub(crate) fn revision_to_read(current: i64, compacted: i64, asked: i64) -> Result<i64> {
    match asked {
        ..=0 => Ok(current),
        asked if asked > current => Err(Error::FutureRevision),
        asked if asked < compacted => Err(Error::Compacted),
        asked => Ok(asked),
    }
}

/// The records of a range of keys as they are stored, one after the other until `visit` breaks.
pub(crate) fn visit_records<M: Moment>(
    read_txn: &M,
    range: KeyRange<'_>,
    options: RangeOptions,
    visit: &mut RecordVisitor<'_>,
) -> Result<u64> {
    let at = revision_to_read(read_txn.revision(), read_txn.compact_revision(), options.revision)?;
    visit_records_of(read_txn.index(), read_txn.tx(), range, at, options, visit)
}

/// The lengths of the records of a range, as far as a snapshot of the index knows them.
pub(crate) fn visit_record_lengths<M: Moment>(
    read_txn: &M,
    range: KeyRange<'_>,
    options: RangeOptions,
    visit: &mut LengthVisitor<'_>,
) -> Result<Option<u64>> {
    let at = revision_to_read(read_txn.revision(), read_txn.compact_revision(), options.revision)?;
    let limit = if options.limit > 0 { options.limit as u64 } else { u64::MAX };
    let (mut is_known, mut left) = (true, limit);
    read_txn.index().walk(range, at, &mut |_, version| {
        let length = version.record_len();
        is_known = length.is_some();
        left -= 1;
        match length.map_or(ControlFlow::Break(()), &mut *visit) {
            ControlFlow::Continue(()) if left > 0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    });
    Ok(is_known.then(|| match left {
        0 => read_txn.index().count(range, at),
        left => limit - left,
    }))
}

/// A range of keys, with its records decoded.
pub(crate) fn decoded_range<V: IndexSnapshot>(
    index: &V,
    tx: &dyn ReadTx,
    range: KeyRange<'_>,
    at: i64,
    options: RangeOptions,
) -> Result<RangeRecords> {
    decode_records(|visit| visit_records_of(index, tx, range, at, options, visit))
}

/// A range: the index names the records, the transaction has them.
fn visit_records_of<V: IndexSnapshot>(
    index: &V,
    tx: &dyn ReadTx,
    range: KeyRange<'_>,
    at: i64,
    options: RangeOptions,
    visit: &mut RecordVisitor<'_>,
) -> Result<u64> {
    if options.count_only {
        let count = index.count(range, at);
        return check_not_compacted(index, at).map(|()| count);
    }
    let limit = if options.limit > 0 { options.limit as u64 } else { u64::MAX };
    if V::IS_LIVE {
        let mut found = Vec::new();
        let count = index.revisions(range, at, limit, &mut |_, version| {
            found.push(version.modified);
            ControlFlow::Continue(())
        });
        check_not_compacted(index, at)?;
        for modified in found {
            if visit(get_record(tx, modified)?).is_break() {
                break;
            }
        }
        return Ok(count);
    }
    let mut fetch = RecordFetcher::new(tx, visit);
    let mut flow = Ok(ControlFlow::Continue(()));
    let mut name = |version: Version| {
        flow = fetch.request(version.modified);
        *flow.as_ref().unwrap_or(&ControlFlow::Break(()))
    };
    let count = if options.skip_count {
        let mut named = 0;
        index.walk(range, at, &mut |_, version| match name(version) {
            ControlFlow::Continue(()) if named + 1 < limit => {
                named += 1;
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Break(()),
        });
        0
    } else {
        index.revisions(range, at, limit, &mut |_, version| name(version))
    };
    if flow?.is_continue() {
        // If it breaks, it does so after the last record that was named.
        let _ = fetch.fetch_requested()?;
    }
    Ok(count)
}

/// Called after a walk: whether it saw all that there was at `at`, or a compaction was there first.
pub(crate) fn check_not_compacted(index: &impl IndexSnapshot, at: i64) -> Result<()> {
    if index.is_compacted_above(at) { Err(Error::Compacted) } else { Ok(()) }
}

/// The record that the index named.
pub(crate) fn get_key_value(tx: &dyn ReadTx, modified: Revision) -> Result<KeyValue> {
    decode_record(get_record(tx, modified)?)
}
