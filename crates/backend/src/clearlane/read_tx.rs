//! Era `clearlane`: a read transaction is one pointer.
//!
//! # Who holds what
//!
//! A reader loads the pointer to the current [`BackendState`] and keeps it. No lock is taken, nothing is
//! copied, and no thread can find out that the reader is there, so none can wait for it.
//!
//! * **A write transaction** holds `writer`, a lock that only writers take (and there is one,
//!   the applier). Its end swaps the pointer.
//! * **A commit** holds `committer`, which only commits and the last step of a defragmentation
//!   take. The applier takes it in one case: too many bytes are pending.
//!
//! # The same load in this era
//!
//! ```text
//!   time ─────────────────────────────────────────────────────────────▶
//!   expensive read  ▶━━━━━━━━━━━━━━━━━━━━━━━ its own view ━━━━━━━━━━━━━▶
//!   put                 ▪        ▪        ▪        ▪        ▪
//!   cheap read            ▪▪  ▪▪   ▪▪  ▪▪   ▪▪  ▪▪   ▪▪  ▪▪   ▪▪
//!   commit                    ▶━━ write, sync ━━▶▪ publish
//!
//!   ▪ runs at once; nothing in this picture waits for anything else
//! ```
//!
//! # What it costs instead
//!
//! * An open reader keeps its view alive: the engine's old pages, and the pending values that
//!   were current. A reader that stays for an hour keeps an hour's freed pages from being reused.
//! * A write transaction pays one allocation and one swap for its view.
//!
//! # What etcd does here
//!
//! The other eras of this crate tell it. None of them can open a read while a commit syncs:
//! the commit must replace the engine's snapshot and empty the buffer in one step, and with two
//! pointers that takes a lock. One pointer to both needs none.

use std::sync::Arc;

use bytes::Bytes;
use clearlane_engine::{Bucket, KeyRange};

use crate::clearlane::state::BackendState;
use crate::error::Result;
use crate::interface::{RangeVisitor, ReadTx};

/// An open read transaction of era `clearlane`. It may be sent to another thread.
#[derive(Clone, Debug)]
pub struct SnapshotReadTx<T> {
    state: Arc<BackendState<T>>,
}

impl<T> SnapshotReadTx<T> {
    pub(crate) fn new(view: Arc<BackendState<T>>) -> SnapshotReadTx<T> {
        SnapshotReadTx { state: view }
    }

    /// What the crate above said about the state that this transaction shows.
    pub fn payload(&self) -> &T {
        self.state.payload()
    }
}

impl<T> ReadTx for SnapshotReadTx<T> {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        self.state.get(bucket, key)
    }

    fn range(
        &self,
        bucket: Bucket,
        range: KeyRange<'_>,
        visit: &mut RangeVisitor<'_>,
    ) -> Result<()> {
        self.state.range(bucket, range, visit)
    }
}
