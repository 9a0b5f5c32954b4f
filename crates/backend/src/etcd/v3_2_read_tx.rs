//! Era 3.2 (etcd 3.2 and 3.3): `ReadTx`, the lock `readTx` held shared to the end of the read.
//!
//! * **A read** holds `readTx` shared from opening to end, and `txMu` for each `get` or `range`
//!   that goes to the engine's snapshot.
//! * **The end of a write transaction** and **a commit** (sync included) take `readTx` exclusively,
//!   with `batchTx` held. The timer asks for it every interval, even with nothing pending.
//! * While a writer waits for `readTx`, reads that come later wait behind it: the convoy.
//!
//! ```text
//!   expensive read  ▶━━━━━━━━━ holds readTx shared ━━━━━━━━━▶
//!   put                  ······ waits for readTx exclusive ··▪   (holds batchTx all the while)
//!   cheap read              ··· waits behind the put ·········▪
//! ```
//! What follows from it: `docs/backend.md`.

use bytes::Bytes;
use clearlane_contention::{Mutex, RwLockReadGuard};
use clearlane_engine::{Bucket, KeyRange};

use crate::error::Result;
use crate::etcd::read_state::{ReadState, ReadTxLocks};
use crate::interface::{RangeVisitor, ReadTx};
use crate::merge;

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
        let _cursor = self.tx_mu.lock();
        merge::scan_merged(&*self.state.snapshot, pending, bucket, range, visit)
    }
}
