//! Design 3.5 (etcd 3.5 and later): `ConcurrentReadTx` with a cached copy of the buffer.
//!
//! # Who holds what
//!
//! Everything is as in design 3.4, but a read that opens takes the last copy if the buffer has
//! not changed since it was made. Between two writes any number of reads share one copy.
//!
//! The copy sits behind a mutex of its own, `cache`, which is only ever taken with `readTx` held
//! shared. So the buffer cannot change while readers look at the cache; they only have to agree
//! among themselves who copies:
//!
//! * **No copy yet:** it is made with `cache` held; others wait for it.
//! * **Copy out of date:** `cache` is released during the copying, so that several readers may
//!   copy at once; each stores its copy only if nobody stored one meanwhile.
//! * **Copy up to date:** it is shared.
//!
//! # The same load in this design
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
//! [`read_for_writer`](crate::Backend::read_for_writer) goes back to design 3.2: `readTx` held
//! shared to the end of the read. The applier must end that read before it opens its write
//! transaction, or it waits for itself.
//!
//! # What is left
//!
//! A read rate below the write rate gains nothing: each read finds the copy out of date. And
//! while a commit syncs, still no read can open.

use std::fmt::Debug;
use std::sync::Arc;

use crate::buffer::ReadBuffer;
use crate::buffered::{Buffered, ReadState};
use crate::concurrent_read_tx::CopiedReadTx;

/// The last copy, and which version of the buffer it is a copy of.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    copy: Option<(Arc<ReadBuffer>, u64)>,
}

/// Takes the shared copy of the buffer, or makes it.
pub(crate) fn open<T: Debug>(backend: &Buffered<T>) -> CopiedReadTx<'_> {
    let state = backend.read_state.read();
    CopiedReadTx {
        buffer: shared_copy(backend, &state),
        snapshot: Arc::clone(&state.snapshot),
        tx_mu: &backend.tx_mu,
    }
}

fn shared_copy<T: Debug>(backend: &Buffered<T>, state: &ReadState) -> Arc<ReadBuffer> {
    let mut cache = backend.cache.lock();
    let Some((copy, version)) = &cache.copy else {
        let copy = Arc::new(state.buffer.clone());
        cache.copy = Some((Arc::clone(&copy), state.version));
        return copy;
    };
    if *version == state.version {
        return Arc::clone(copy);
    }
    let version_seen = *version;
    drop(cache);
    let copy = Arc::new(state.buffer.clone());
    let mut cache = backend.cache.lock();
    let unchanged = cache.copy.as_ref().is_some_and(|(_, version)| *version == version_seen);
    // The copy that is replaced is freed behind the lock: freeing it takes as long as copying.
    let superseded =
        if unchanged { cache.copy.replace((Arc::clone(&copy), state.version)) } else { None };
    drop(cache);
    drop(superseded);
    copy
}
