//! Era 3.2 (etcd 3.2 and 3.3): `ReadTx`, a read-write lock held to the end of the read.
//!
//! # Who holds what
//!
//! * **A read** holds `readTx` shared, from opening to end, so reads no longer wait for each
//!   other. It looks into the read buffer, then into the engine's snapshot (`txMu` held for each
//!   look).
//! * **The end of a write transaction** needs `readTx` exclusively, to write back.
//! * **A commit** needs `readTx` exclusively, sync included; and the 100 ms timer asks for it
//!   even when nothing is pending.
//!
//! # The convoy
//!
//! `readTx` prefers writers: once a writer waits, readers that come later stand behind it. So one
//! slow reader stops the next put, and the put that waits stops every later read, though all of
//! them only want what the slow reader is also allowed to do.
//!
//! ```text
//!   time ──────────────────────────────────────────────────────────────▶
//!   expensive read  ▶━━━━━━━━━ holds readTx shared ━━━━━━━━━▶
//!   cheap read        ▪ runs beside it
//!   put                  ······ waits for readTx exclusive ··▪   (holds batchTx all the while)
//!   cheap read              ··· waits behind the put ·········▪
//!   cheap read                · waits behind the put ·········▪
//!   next put                    waits for batchTx ············ ·▪
//! ```
//!
//! Against era 3.1 the first cheap read has won, and the other threads have lost nothing. Under a
//! steady stream of puts there is hardly ever a moment without one waiting.

use bytes::Bytes;
use clearlane_contention::{Mutex, RwLockReadGuard};
use clearlane_engine::{Bucket, KeyRange};

use crate::error::Result;
use crate::etcd::read_state::{ReadState, ReadTxLocks};
use crate::interface::{RangeVisitor, ReadTx};
use crate::merge;

/// An open read: the shared lock itself.
pub(super) struct LockedReadTx<'b> {
    state: RwLockReadGuard<'b, ReadState>,
    tx_mu: &'b Mutex<()>,
}

/// Takes `readTx` shared; waits if a writer holds it or waits for it.
pub(super) fn open(locks: &ReadTxLocks) -> LockedReadTx<'_> {
    LockedReadTx { state: locks.read_state.read(), tx_mu: &locks.tx_mu }
}

impl ReadTx for LockedReadTx<'_> {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        if let Some(value) = self.state.buffer.get(bucket, key) {
            return Ok(Some(value.clone()));
        }
        let _cursor = self.tx_mu.lock();
        Ok(self.state.snapshot.get(bucket, key)?)
    }

    fn range(
        &self,
        bucket: Bucket,
        range: KeyRange<'_>,
        visit: &mut RangeVisitor<'_>,
    ) -> Result<()> {
        let pending = self.state.buffer.range(bucket, range);
        let pending = pending.iter().map(|entry| (&*entry.key, Some(&entry.value)));
        let _cursor = self.tx_mu.lock();
        merge::scan_merged(&*self.state.snapshot, pending, bucket, range, visit)
    }
}
