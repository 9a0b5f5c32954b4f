//! Era 3.2 (etcd 3.2 and 3.3): `ReadTx` holds the lock `readTx` shared until the read ends.
//!
//! * **A read** holds `readTx` shared until it ends, and `txMu` during each `get` or `range` that
//!   reads the engine's snapshot.
//! * **The end of a write transaction** and **a commit** (including its sync) take `readTx`
//!   exclusively while they hold `batchTx`. The timer takes `readTx` in every interval, even if
//!   nothing is pending.
//! * While a writer waits for `readTx`, later reads wait for that writer. This queue is the
//!   *convoy*.
//!
//! ```text
//!   expensive read  ▶━━━━━━━━━ holds readTx shared ━━━━━━━━━▶
//!   put                  ······ waits for readTx exclusive ··▪   (holds batchTx all the time)
//!   cheap read              ··· waits for the put ············▪
//! ```
//!
//! `docs/backend.md` describes the consequences.

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

/// Takes `readTx` shared. Waits if a writer holds the lock or waits for it.
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
