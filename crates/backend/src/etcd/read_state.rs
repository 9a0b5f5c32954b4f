//! What the reads of 3.2 to 3.5 share with the write side: the read state and the locks around it.
//!
//! Lock order: `readTx`, then `cache` or `txMu`. In etcd these are fields of `readTx` and
//! `backend`.

use std::sync::Arc;

use clearlane_contention::{Mutex, Registry, RwLock};
use clearlane_engine::Snapshot;

use crate::etcd::tx_buffer::TxBuffer;

/// What the lock `readTx` guards: all that a read needs.
#[derive(Debug)]
pub(super) struct ReadState {
    pub(super) buffer: TxBuffer,
    /// Rises whenever the buffer changes: a copy of another version is out of date.
    pub(super) version: u64,
    pub(super) snapshot: Arc<dyn Snapshot>,
}

#[derive(Debug)]
pub(super) struct ReadTxLocks {
    pub(super) read_state: RwLock<ReadState>,
    /// Guards the engine's read cursor. Era 3.2 holds it for each `get` and `range`, eras 3.4 and
    /// 3.5 only while a cursor is opened.
    pub(super) tx_mu: Mutex<()>,
    /// The last copy of the read buffer, and the version of the buffer that it was made of (3.5).
    pub(super) cache: Mutex<Option<(Arc<TxBuffer>, u64)>>,
}

impl ReadTxLocks {
    pub(super) fn new(locks: &Registry, first: ReadState) -> ReadTxLocks {
        ReadTxLocks {
            read_state: RwLock::new(locks, "readTx", first),
            tx_mu: Mutex::new(locks, "txMu", ()),
            cache: Mutex::new(locks, "cache", None),
        }
    }
}
