//! Era `clearlane`: a read transaction is one pointer.
//!
//! * **A read** loads the pointer to the current [`BackendState`] and keeps it. It takes no lock of
//!   the backend and copies nothing. No write, commit or other read waits for it
//!   (`tests/blocking.rs`).
//! * **A write transaction** holds `writer`, which only writers take. Its end swaps the pointer.
//! * **A commit** holds `committer`, sync included. So do the first and the last step of a
//!   defragmentation, and a writer that finds too many bytes pending.
//!
//! ```text
//!   expensive read  ▶━━━━━━━━━━━━━━━━━━━━━━━ its own state ━━━━━━━━━━━━▶
//!   put                 ▪        ▪        ▪        ▪        ▪
//!   commit                    ▶━━ write, sync ━━▶▪ publish
//! ```
//! What it costs instead: `docs/backend.md`.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_engine::{Bucket, KeyRange};

use crate::clearlane::state::BackendState;
use crate::error::Result;
use crate::interface::{RangeVisitor, ReadTx, Value};
use crate::merge;

/// It may be sent to another thread.
pub type SnapshotReadTx<T> = Arc<BackendState<T>>;

impl<T> ReadTx for BackendState<T> {
    /// A point read: pending first, then the engine.
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

    /// A range read. In bucket `key` the engine's part comes first and the pending records follow
    /// it; in the other buckets the pending changes are merged in.
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
