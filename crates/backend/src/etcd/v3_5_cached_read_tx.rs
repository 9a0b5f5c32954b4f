//! Era 3.5 (etcd 3.5 and later): `ConcurrentReadTx` with a cached copy of the buffer.
//!
//! # Who holds what
//!
//! Everything is as in era 3.4, but a read that opens takes the last copy if the buffer has
//! not changed since it was made. Between two writes any number of reads share one copy.
//!
//! The copy sits behind a mutex of its own, `cache`, which is only ever taken with `readTx` held
//! shared. So the buffer cannot change while readers look at the cache; they only have to agree
//! among themselves who copies:
//!
//! * **No copy yet:** it is made with `cache` held; others wait for it.
//! * **Copy out of date:** `cache` is released during the copying, so that several readers may
//!   copy at once; each stores its copy only if no other reader stored one meanwhile.
//! * **Copy up to date:** it is shared.
//!
//! # The same load in this era
//!
//! ```text
//!   time ──────────────────────────────────────────────────────────────▶
//!   put             ▪                        ▪
//!   cheap read        ▪▪ copies and keeps it
//!   cheap read           ▪  shares it
//!   cheap read              ▪  shares it
//!   cheap read                                 ▪▪ copies again
//! ```
//!
//! # The shared mode
//!
//! The applier compares before it writes (a transaction's `if`). It alone writes, so nothing can
//! change between its compare and its write; a copy is wasted on it. For these reads
//! [`begin_read_for_writer`](crate::Backend::begin_read_for_writer) goes back to era 3.2: `readTx` held
//! shared to the end of the read. The applier must end that read before it opens its write
//! transaction, or it waits for itself.
//!
//! # What is left
//!
//! A read rate below the write rate gains nothing: each read finds the copy out of date. And
//! while a commit syncs, still no read can open.

use std::sync::Arc;

use crate::etcd::read_state::{ReadState, ReadTxLocks};
use crate::etcd::tx_buffer::TxReadBuffer;
use crate::etcd::v3_4_concurrent_read_tx::ConcurrentReadTx;

/// Takes the shared copy of the buffer, or makes it.
pub(super) fn open(locks: &ReadTxLocks) -> ConcurrentReadTx<'_> {
    let state = locks.read_state.read();
    ConcurrentReadTx {
        buffer: cached_buffer(locks, &state),
        snapshot: Arc::clone(&state.snapshot),
        tx_mu: &locks.tx_mu,
    }
}

fn cached_buffer(locks: &ReadTxLocks, state: &ReadState) -> Arc<TxReadBuffer> {
    let mut cache = locks.cache.lock();
    let Some((copy, version)) = &cache.newest else {
        let copy = Arc::new(state.buffer.clone());
        cache.newest = Some((Arc::clone(&copy), state.version));
        return copy;
    };
    if *version == state.version {
        return Arc::clone(copy);
    }
    let version_seen = *version;
    drop(cache);
    let copy = Arc::new(state.buffer.clone());
    let mut cache = locks.cache.lock();
    let unchanged = cache.newest.as_ref().is_some_and(|(_, version)| *version == version_seen);
    // The copy that is replaced is freed behind the lock: freeing it takes as long as copying.
    let superseded =
        if unchanged { cache.newest.replace((Arc::clone(&copy), state.version)) } else { None };
    drop(cache);
    drop(superseded);
    copy
}
