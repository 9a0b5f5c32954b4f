//! Era `clearlane`: a read transaction is one pointer.
//!
//! * **A read** loads the pointer to the current [`BackendState`] and keeps it. It takes no lock of
//!   the backend. Opening it copies nothing. No write, commit or other read waits for it
//!   (`tests/suite/blocking.rs`).
//! * **A write transaction** holds `writer`, which only writers take. Its end swaps the pointer.
//! * **A commit** holds `committer` from its start until it has published the new snapshot. The
//!   start and the end of a defragmentation also take `committer`, and so does a writer that finds
//!   too many pending bytes.
//!
//! ```text
//!   expensive read  ▶━━━━━━━━━━━━━━━━━━━━━━━ its own state ━━━━━━━━━━━━▶
//!   put                 ▪        ▪        ▪        ▪        ▪
//!   commit                    ▶━━ write, sync ━━▶▪ publish
//! ```
//!
//! `docs/backend.md` describes the costs of reading in this way.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_engine::{Bucket, KeyRange};

use crate::clearlane::state::BackendState;
use crate::error::Result;
use crate::interface::{RangeVisitor, ReadTx, Value};
use crate::merge;

/// An open read transaction. It may be sent to another thread.
pub type SnapshotReadTx<T> = Arc<BackendState<T>>;

impl<T> ReadTx for BackendState<T> {
    /// A point read. In bucket `key`, a key at or above the first pending key is looked up only in
    /// the pending records, and any other key only in the engine. In the other buckets, the engine
    /// is read if there is no pending change to the key.
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        if bucket == Bucket::Key {
            if self.pending_records.first_key().is_some_and(|first| *first <= *key) {
                return Ok(self.pending_records.find(key));
            }
        } else if let Some(change) = self.pending_buckets.get(bucket, key) {
            return Ok(change.clone());
        }
        Ok(self.snapshot.get(bucket, key)?)
    }

    /// A range read. In bucket `key`, the engine's records come first and the pending records
    /// follow. In the other buckets, the pending changes are merged with the engine's records.
    fn range(
        &self,
        bucket: Bucket,
        range: KeyRange<'_>,
        visit: &mut RangeVisitor<'_>,
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        if bucket != Bucket::Key {
            let changes = self.pending_buckets.changes_in(bucket, range);
            let changes = changes.iter().map(|(key, change)| (&**key, change.as_ref()));
            return merge::scan_merged(&*self.snapshot, changes, bucket, range, visit);
        }
        let first = self.pending_records.first_key();
        if first.is_none_or(|first| *range.from < *first)
            && merge::scan_engine(&*self.snapshot, bucket, range, visit)?.is_break()
        {
            return Ok(());
        }
        if first.is_none_or(|first| range.to.is_some_and(|to| *to <= *first)) {
            return Ok(());
        }
        let _ = self.pending_records.visit_from(range.from, &mut |key, value| {
            if range.contains(key) {
                visit(key, Value::Shared(value))
            } else {
                ControlFlow::Break(())
            }
        });
        Ok(())
    }
}
