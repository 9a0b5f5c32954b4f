//! Era 3.4: `ConcurrentReadTx`, the buffer is copied when the read opens.
//!
//! # Who holds what
//!
//! * **Opening a read** holds `readTx` shared while it copies the read buffer and takes a
//!   reference to the engine's snapshot. After that **the read holds nothing** (only `txMu`, for
//!   a moment, each time it opens a cursor in the engine).
//! * **The end of a write transaction** needs `readTx` exclusively, as before: it waits for
//!   copies now, not for reads.
//! * **A commit** needs `readTx` exclusively, sync included. The old snapshot lives on until the
//!   last read that refers to it ends: the commit waits for no reader.
//!
//! # The same load in this era
//!
//! ```text
//!   time ──────────────────────────────────────────────────────────────▶
//!   expensive read  ▪━━━━━━━━━━━━ own copy, no lock ━━━━━━━━━━━▶
//!   put                 ▪       ▪       ▪     ··▪       ▪
//!   cheap read            ▪▪      ▪▪      ▪▪  ····▪▪      ▪▪
//!   commit                                   ▶━ sync ━▶
//!
//!   ▪ runs, ▪▪ copies and runs, · waits for the commit that holds readTx
//! ```
//!
//! # What it costs instead
//!
//! Every read pays for the copy, in proportion to what is pending: with 10,000 pending writes
//! the cheapest read copies 10,000 entries. And while a commit syncs, no read can open.

use std::sync::Arc;

use bytes::Bytes;
use clearlane_contention::Mutex;
use clearlane_engine::{Bucket, KeyRange, Snapshot};

use crate::error::Result;
use crate::etcd::read_state::ReadTxLocks;
use crate::etcd::tx_buffer::TxReadBuffer;
use crate::interface::{RangeVisitor, ReadTx};
use crate::merge;

/// An open read with its own buffer, or (era 3.5) one that is shared and never changed.
pub(super) struct ConcurrentReadTx<'b> {
    pub(super) buffer: Arc<TxReadBuffer>,
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
        let pending = self.buffer.range(bucket, range).iter();
        let pending = pending.map(|entry| (&*entry.key, Some(&entry.value)));
        drop(self.tx_mu.lock());
        merge::scan_merged(&*self.snapshot, pending, bucket, range, visit)
    }
}
