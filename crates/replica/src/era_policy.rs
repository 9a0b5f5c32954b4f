//! The differences between the eras outside of the backend and the store, in one table.
//!
//! In an old era a read or a watch call may wait long for the locks of its era, as in etcd, where
//! each request is a goroutine. In the default era a read takes no lock of the store, and a watch
//! call takes only locks that are held briefly. All other differences follow from this difference,
//! or from etcd's protocol for reads.

use clearlane_backend::Era::{self, Clearlane, V3_0, V3_5};
use clearlane_raft::read_index::ReadMode;

use crate::apply::{ReadBudget, TxnReadMode};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EraPolicy {
    /// If true, reads, watch calls and the apply loop may wait for locks of the era. Then each read
    /// or watch call runs on a separate thread. A thread that reads keeps the usual scheduling
    /// class, because it may hold a lock that other threads want. An apply loop without progress is
    /// not considered a failure.
    pub waits_for_locks: bool,
    /// If true, the check of a request's user holds the lock of the store's batch, as in etcd 3.4
    /// and earlier.
    pub checks_hold_batch_lock: bool,
    /// If true, watchers are synced at fixed intervals, as in etcd. If false, they are synced as
    /// soon as a watcher needs it.
    pub syncs_watchers_periodically: bool,
    /// Maximum number of entries that are applied before their requests are answered.
    pub apply_step_max: usize,
    /// The mode of linearizable reads if the flags do not set one.
    pub read_mode: ReadMode,
    /// If true, a sole voter may answer linearizable reads without ReadIndex. Also, the leader
    /// treats a follower's ReadIndex request as an acknowledgement by that follower.
    pub shortens_read_index: bool,
    /// If true, the apply loop may leave long ranges of a transaction, and the records that a
    /// delete returns, to the waiting request.
    defers_txn_reads: bool,
}

impl EraPolicy {
    pub fn of(era: Era) -> EraPolicy {
        let is_default = era == Clearlane;
        EraPolicy {
            waits_for_locks: !is_default,
            checks_hold_batch_lock: era < V3_5,
            syncs_watchers_periodically: !is_default,
            // In an old era an entry may wait for locks. The request of an earlier entry must be
            // answered without waiting for these locks.
            apply_step_max: if is_default { 4096 } else { 1 },
            // etcd 3.0 writes each linearizable read into the log.
            read_mode: if era == V3_0 { ReadMode::Log } else { ReadMode::ReadIndex },
            shortens_read_index: is_default,
            defers_txn_reads: is_default,
        }
    }

    /// Returns how the apply loop handles the reads of a transaction or a delete. `is_awaited` is
    /// true if a request waits for the response at this member.
    pub fn txn_reads(&self, is_awaited: bool) -> TxnReadMode {
        match (self.defers_txn_reads, is_awaited) {
            (false, _) => TxnReadMode::Inline,
            (true, true) => TxnReadMode::Deferred(ReadBudget::DEFAULT),
            (true, false) => TxnReadMode::Skipped,
        }
    }
}
