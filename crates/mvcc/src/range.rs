//! Range requests on an open read transaction: how they get from keys to records.
//!
//! ```text
//!   (a..d, revision 7)  ──index──▶  4.0 6.1 7.0  ──backend──▶  the records
//! ```
//!
//! Index and records belong to the same state. With a snapshot of the index, records are fetched
//! during the walk, [a few at a time](crate::record_fetch). An index under a lock is walked first,
//! and the records are fetched after the lock is released, as in etcd. So a put that waits for the
//! walk does not also wait for the disk.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_backend::{RangeVisitor, ReadTx};
use clearlane_engine::{Bucket, KeyRange};
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use crate::error::{Error, Result};
use crate::interface::{RangeOptions, ReadTxn, RecordVisitor, decode_record};
use crate::kv_hasher::try_range;
use crate::record_fetch::{RecordFetcher, get_record};
use crate::revision::Revision;
use crate::tree_index::{IndexSnapshot, VersionVisitor};

/// An open read. Each implementor is also a [`ReadTxn`].
pub(crate) trait IndexedRead {
    type Index: IndexSnapshot;

    /// Returns the current revision and the compact revision of this state.
    fn revisions(&self) -> (i64, i64);
    fn index(&self) -> &Self::Index;
    fn tx(&self) -> &dyn ReadTx;
}

impl<R: IndexedRead> IndexedRead for Arc<R> {
    type Index = R::Index;

    fn revisions(&self) -> (i64, i64) {
        (**self).revisions()
    }

    fn index(&self) -> &R::Index {
        (**self).index()
    }

    fn tx(&self) -> &dyn ReadTx {
        (**self).tx()
    }
}

impl<R: IndexedRead> ReadTxn for R {
    fn revision(&self) -> i64 {
        self.revisions().0
    }

    fn compact_revision(&self) -> i64 {
        self.revisions().1
    }

    fn visit_records(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
        visit: &mut RecordVisitor<'_>,
    ) -> Result<u64> {
        let (current, compacted) = self.revisions();
        let at = revision_to_read(current, compacted, options.revision)?;
        visit_records_of(self.index(), self.tx(), range, at, options, visit)
    }

    fn visit_named_records(&self, names: &[Revision], visit: &mut RecordVisitor<'_>) -> Result<()> {
        RecordFetcher::new(self.tx(), visit).fetch(names).map(drop)
    }

    fn visit_versions(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
        visit: &mut VersionVisitor<'_>,
    ) -> Result<Option<u64>> {
        if R::Index::IS_LIVE {
            return Ok(None);
        }
        let (current, compacted) = self.revisions();
        let at = revision_to_read(current, compacted, options.revision)?;
        Ok(Some(walk_versions(self.index(), range, at, options, visit)))
    }

    fn key_after(&self, range: KeyRange<'_>, keys: usize) -> Option<Vec<u8>> {
        self.index().key_after(range, keys)
    }

    fn visit_changed_keys(
        &self,
        after: i64,
        visit: &mut dyn FnMut(&[u8], usize) -> ControlFlow<()>,
    ) -> Result<bool> {
        if R::Index::IS_LIVE || self.revisions().1 > after {
            return Ok(false);
        }
        let first = Revision::new(after.saturating_add(1), 0).put_key();
        let mut record = KeyOfRecord::default();
        try_range(self.tx(), Bucket::Key, KeyRange::starting_at(&first), |_, value| {
            record.clear();
            let decoded = record.merge(&*value);
            decoded.map_err(|error| Error::Damaged(format!("a record: {error}")))?;
            Ok(visit(&record.key, value.len()))
        })?;
        Ok(true)
    }

    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.tx().get(bucket, key)?)
    }

    fn scan(&self, bucket: Bucket, visit: &mut RangeVisitor<'_>) -> Result<()> {
        Ok(self.tx().range(bucket, KeyRange::ALL, visit)?)
    }
}

/// A record, decoded only to get its key. The other fields are ignored, so the value, which may be
/// long, is not copied.
#[derive(Clone, PartialEq, Message)]
struct KeyOfRecord {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

/// Returns the revision to read at: `asked`, or the current revision if `asked` is 0 or less. Fails
/// if `asked` is above `current` or below the compact revision. `current` is the state's revision,
/// or one more in a write transaction that has changed a key.
pub(crate) fn revision_to_read(current: i64, compacted: i64, asked: i64) -> Result<i64> {
    match asked {
        ..=0 => Ok(current),
        asked if asked > current => Err(Error::FutureRevision),
        asked if asked < compacted => Err(Error::Compacted),
        asked => Ok(asked),
    }
}

pub(crate) fn visit_records_of<V: IndexSnapshot>(
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
    if V::IS_LIVE {
        let mut found = Vec::new();
        let count = index.revisions(range, at, limit(options), &mut |_, version| {
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
    let count = walk_versions(index, range, at, options, &mut |_, version| {
        flow = fetch.request(version.modified);
        *flow.as_ref().unwrap_or(&ControlFlow::Break(()))
    });
    if flow?.is_continue() {
        // The result does not matter: whether or not `visit` breaks, no requested record is left.
        let _ = fetch.fetch_requested()?;
    }
    Ok(count)
}

/// Calls `visit` for the versions in the range, up to the limit, or for none if `count_only` is
/// set. Returns the number of keys in the range, or 0 if `skip_count` is set and `count_only` is
/// not.
fn walk_versions(
    index: &impl IndexSnapshot,
    range: KeyRange<'_>,
    at: i64,
    options: RangeOptions,
    visit: &mut VersionVisitor<'_>,
) -> u64 {
    if options.count_only {
        return index.count(range, at);
    }
    let mut left = limit(options);
    if !options.skip_count {
        return index.revisions(range, at, left, visit);
    }
    index.walk(range, at, &mut |key, version| {
        left -= 1;
        match visit(key, version) {
            ControlFlow::Continue(()) if left > 0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    });
    0
}

fn limit(options: RangeOptions) -> u64 {
    if options.limit > 0 { options.limit as u64 } else { u64::MAX }
}

/// Called after a walk. Fails if a compaction above `at` has started, because the walk may have
/// missed versions.
pub(crate) fn check_not_compacted(index: &impl IndexSnapshot, at: i64) -> Result<()> {
    if index.is_compacted_above(at) { Err(Error::Compacted) } else { Ok(()) }
}

pub(crate) fn get_key_value(tx: &dyn ReadTx, modified: Revision) -> Result<KeyValue> {
    decode_record(get_record(tx, modified)?)
}
