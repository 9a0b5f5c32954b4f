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

use std::sync::Arc;

use bytes::Bytes;
use clearlane_engine::{Bucket, KeyRange};

use crate::clearlane::state::BackendState;
use crate::error::Result;
use crate::interface::{RangeVisitor, ReadTx};

/// It may be sent to another thread.
#[derive(Clone, Debug)]
pub struct SnapshotReadTx<T>(pub(crate) Arc<BackendState<T>>);

impl<T> SnapshotReadTx<T> {
    pub fn payload(&self) -> &T {
        &self.0.payload
    }
}

impl<T> ReadTx for SnapshotReadTx<T> {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        self.0.get(bucket, key)
    }

    fn range(
        &self,
        bucket: Bucket,
        range: KeyRange<'_>,
        visit: &mut RangeVisitor<'_>,
    ) -> Result<()> {
        self.0.range(bucket, range, visit)
    }
}
