//! Era 3.5 (etcd 3.5 and later): `ConcurrentReadTx` with a cached copy of the buffer.
//!
//! Reads work as in era 3.4, but reads that open between two writes usually share one copy. The
//! mutex `cache` guards the copy. It is taken while `readTx` is held shared, so the buffer cannot
//! change during that time. A [read for the writer](crate::Backend::begin_read_for_writer) works as
//! in era 3.2.
//!
//! * **No copy yet**: the read makes the first copy while it holds `cache`.
//! * **Copy up to date**: the read shares it.
//! * **Copy out of date**: the read releases `cache` while it copies, so several reads can make a
//!   copy at the same time. Each read then stores its copy, unless another read has already
//!   replaced the old copy.
//!
//! ```text
//!   put             ▪                         ▪
//!   cheap read        ▪▪ copies and keeps it    ▪▪ copies again
//!   cheap read           ▪ shares it               ▪ shares it
//! ```

use std::sync::Arc;

use crate::etcd::read_state::{ReadState, ReadTxLocks};
use crate::etcd::tx_buffer::TxBuffer;
use crate::etcd::v3_4_concurrent_read_tx::ConcurrentReadTx;

pub(super) fn open(locks: &ReadTxLocks) -> ConcurrentReadTx<'_> {
    let state = locks.read_state.read();
    ConcurrentReadTx {
        buffer: cached_buffer(locks, &state),
        snapshot: Arc::clone(&state.snapshot),
        tx_mu: &locks.tx_mu,
    }
}

fn cached_buffer(locks: &ReadTxLocks, state: &ReadState) -> Arc<TxBuffer> {
    let mut cache = locks.cache.lock();
    let Some((copy, version)) = &*cache else {
        let copy = Arc::new(state.buffer.clone());
        *cache = Some((Arc::clone(&copy), state.version));
        return copy;
    };
    if *version == state.version {
        return Arc::clone(copy);
    }
    let version_seen = *version;
    drop(cache);
    let copy = Arc::new(state.buffer.clone());
    let mut cache = locks.cache.lock();
    let unchanged = cache.as_ref().is_some_and(|(_, version)| *version == version_seen);
    // The replaced copy is freed after the lock is released, because freeing takes as long as
    // copying.
    let superseded =
        if unchanged { cache.replace((Arc::clone(&copy), state.version)) } else { None };
    drop(cache);
    drop(superseded);
    copy
}
