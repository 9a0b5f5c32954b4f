//! The state that reads of eras 3.2 to 3.5 share with the write side, and its locks.
//!
//! Lock order: `readTx`, then `cache` or `txMu`. In etcd these locks are fields of the structs
//! `readTx` and `backend`.

use std::sync::Arc;

use clearlane_contention::{Mutex, Registry, RwLock};
use clearlane_engine::Snapshot;

use crate::etcd::tx_buffer::TxBuffer;

/// The data that the lock `readTx` guards: everything that a read needs.
#[derive(Debug)]
pub(super) struct ReadState {
    pub(super) buffer: TxBuffer,
    /// A number that rises whenever the buffer changes. A copy that was made at another version is
    /// out of date.
    pub(super) version: u64,
    pub(super) snapshot: Arc<dyn Snapshot>,
}

#[derive(Debug)]
pub(super) struct ReadTxLocks {
    pub(super) read_state: RwLock<ReadState>,
    /// Guards the engine's read cursor. Every read of era 3.2, and every
    /// [locked read](crate::Backend::begin_locked_read), holds it during each `get` and `range` of
    /// the engine. The other reads of eras 3.4 and 3.5 hold it only while a cursor is opened.
    pub(super) tx_mu: Mutex<()>,
    /// The last copy of the read buffer in era 3.5, and the version of the buffer that was copied.
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
