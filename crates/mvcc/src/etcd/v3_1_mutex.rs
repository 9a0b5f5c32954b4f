//! Era 3.1 (etcd 3.0 and 3.1): `store` is a mutex, and every transaction takes it.
//!
//! Reads and write transactions hold `store` from opening to end, and below it `batchTx`. The
//! second lock is free for the holder of the first, except beside a timer's commit, a hash or a
//! compaction's step, which take `batchTx` alone. A commit for a snapshot and scheduling a
//! compaction take both, in the same order. So each request waits for each other one:
//!
//! ```text
//!   expensive read  ▶━━━━━━━━━ holds store and batchTx ━━━━━━▶
//!   put                 ·········· waits for store ···········▪
//!   cheap read             ······· waits for store ············▪
//!   timer's commit            ···· waits for batchTx ····················▶━ sync ━▶
//! ```

use clearlane_contention::{Mutex, MutexGuard, Registry};

use crate::error::Result;
use crate::etcd::lock_protocol::{Protocol, Revisions};

#[derive(Debug)]
pub(crate) struct OneMutex {
    store: Mutex<Revisions>,
}

impl Protocol for OneMutex {
    type StoreGuard<'p> = MutexGuard<'p, Revisions>;

    const WATCHABLE_FIRST: bool = true;

    fn new(locks: &Registry, first: Revisions) -> OneMutex {
        OneMutex { store: Mutex::new(locks, "store", first) }
    }

    fn revisions<T>(&self, work: impl FnOnce(&Revisions) -> T) -> T {
        work(&self.store.lock())
    }

    fn read<T>(&self, open: impl FnOnce() -> T) -> (Self::StoreGuard<'_>, Revisions, T) {
        let store = self.store.lock();
        let (revisions, opened) = (store.clone(), open());
        (store, revisions, opened)
    }

    fn write(&self) -> Self::StoreGuard<'_> {
        self.store.lock()
    }

    fn publish<T>(
        &self,
        mut store_guard: Self::StoreGuard<'_>,
        next: Revisions,
        end: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let ended = end()?;
        *store_guard = next;
        Ok(ended)
    }

    fn with_store_locked<T>(&self, work: impl FnOnce() -> T) -> T {
        let _store = self.store.lock();
        work()
    }

    fn change_revisions<T>(&self, work: impl FnOnce(&mut Revisions) -> Result<T>) -> Result<T> {
        work(&mut self.store.lock())
    }
}
