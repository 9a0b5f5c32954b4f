//! Era 3.4: `ConcurrentReadTx` copies the buffer when the read opens.
//!
//! * **Opening a read** holds `readTx` shared while it copies the read buffer and takes a reference
//!   to the engine's snapshot. After that the read holds no lock, except `txMu` while it opens a
//!   cursor.
//! * **The end of a write transaction** takes `readTx` exclusively while it holds `batchTx`. It
//!   waits for reads that are copying the buffer and for
//!   [locked reads](crate::Backend::begin_locked_read), but not for other reads.
//! * **A commit** also takes `readTx` exclusively while it holds `batchTx`, and keeps both locks
//!   until the engine has synced. Open reads continue on the old snapshot, which is freed when its
//!   last read ends.
//!
//! ```text
//!   expensive read  ▪━━━━━━━━━━━━ own copy, no readTx ━━━━━━━━━▶
//!   put                 ▪       ▪       ▪     ··▪       ▪
//!   cheap read            ▪▪      ▪▪      ▪▪  ····▪▪      ▪▪
//!   commit                                   ▶━ sync ━▶
//!
//!   ▪ runs    ▪▪ copies the buffer and runs    · waits for the commit
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

/// An open read. Its buffer is its own copy, or in era 3.5 a shared copy.
pub(super) struct ConcurrentReadTx<'b> {
    pub(super) buffer: Arc<TxBuffer>,
    pub(super) snapshot: Arc<dyn Snapshot>,
    pub(super) tx_mu: &'b Mutex<()>,
}

/// Opens a read. Copies the buffer under `readTx`, and releases `readTx` before it returns.
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
