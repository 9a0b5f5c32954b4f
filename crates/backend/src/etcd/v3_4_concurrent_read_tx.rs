//! Era 3.4: `ConcurrentReadTx`, the buffer is copied when the read opens.
//!
//! * **Opening a read** holds `readTx` shared while it copies the read buffer and takes a reference
//!   to the engine's snapshot. Then it holds no lock but `txMu`, while it opens a cursor.
//! * **The end of a write transaction** takes `readTx` exclusively, with `batchTx` held. It waits
//!   for copies and for [locked reads](crate::Backend::begin_locked_read), not for other reads.
//! * **A commit** does the same, sync included; the last read of the old snapshot frees it.
//!
//! ```text
//!   expensive read  ▪━━━━━━━━━━━━ own copy, no readTx ━━━━━━━━━▶     ▪ runs, ▪▪ copies and runs
//!   put                 ▪       ▪       ▪     ··▪       ▪            · waits for the commit
//!   cheap read            ▪▪      ▪▪      ▪▪  ····▪▪      ▪▪
//!   commit                                   ▶━ sync ━▶
//! ```

use std::sync::Arc;

use bytes::Bytes;
use clearlane_contention::Mutex;
use clearlane_engine::{Bucket, KeyRange, Snapshot};

use crate::error::Result;
use crate::etcd::read_state::ReadTxLocks;
use crate::etcd::tx_buffer::TxBuffer;
use crate::interface::{RangeVisitor, ReadTx};
use crate::merge;

/// An open read with its own buffer, or (era 3.5) one that is shared.
pub(super) struct ConcurrentReadTx<'b> {
    pub(super) buffer: Arc<TxBuffer>,
    pub(super) snapshot: Arc<dyn Snapshot>,
    pub(super) tx_mu: &'b Mutex<()>,
}

/// Copies the buffer under `readTx`, which is free again when this returns.
pub(super) fn open(locks: &ReadTxLocks) -> ConcurrentReadTx<'_> {
    let state = locks.read_state.read();
    ConcurrentReadTx {
        buffer: Arc::new(state.buffer.clone()),
        snapshot: Arc::clone(&state.snapshot),
        tx_mu: &locks.tx_mu,
    }
}

impl ReadTx for ConcurrentReadTx<'_> {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        if let Some(value) = self.buffer.get(bucket, key) {
            return Ok(Some(value.clone()));
        }
        drop(self.tx_mu.lock());
        Ok(self.snapshot.get(bucket, key)?)
    }

    fn range(
        &self,
        bucket: Bucket,
        range: KeyRange<'_>,
        visit: &mut RangeVisitor<'_>,
    ) -> Result<()> {
        let pending = self.buffer.range(bucket, range);
        drop(self.tx_mu.lock());
        merge::scan_merged(&*self.snapshot, pending, bucket, range, visit)
    }
}
