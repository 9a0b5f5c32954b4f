//! Eras 3.2 to 3.5: `store` is shared by all transactions, `revMu` guards the revisions.
//!
//! * **A read** takes `store` shared, then `revMu` shared, then opens the backend's read, which
//!   takes `readTx` shared. With both it reads the revisions and opens the records of one state,
//!   and drops `revMu`. Era 3.2 keeps `readTx` to the end of the read, 3.4 and 3.5 do not. All keep
//!   `store`.
//! * **A write transaction** takes `store` shared, then `batchTx`. At its end it takes `revMu`
//!   exclusively *before* it ends the backend's transaction, for no new reader may find the new
//!   revision without its records. So write-back, and the commit of a full batch, hold `revMu`.
//! * **A commit for a snapshot** and **scheduling a compaction** take `store` exclusively. The
//!   first is made once in 10,000 entries, by the commit thread.
//!
//! Hence what is left to wait for in 3.4 and 3.5: see the picture in `docs/mvcc.md`.

use clearlane_contention::{Registry, RwLock, RwLockReadGuard};

use crate::error::Result;
use crate::etcd::lock_protocol::{Protocol, Revisions};

#[derive(Debug)]
pub(crate) struct RevMu {
    store: RwLock<()>,
    rev_mu: RwLock<Revisions>,
}

impl Protocol for RevMu {
    type StoreGuard<'p> = RwLockReadGuard<'p, ()>;

    const WATCHABLE_FIRST: bool = false;

    fn new(locks: &Registry, first: Revisions) -> RevMu {
        let (store, rev_mu) = (RwLock::new(locks, "store", ()), RwLock::new(locks, "revMu", first));
        RevMu { store, rev_mu }
    }

    fn revisions<T>(&self, work: impl FnOnce(&Revisions) -> T) -> T {
        work(&self.rev_mu.read())
    }

    fn read<T>(&self, open: impl FnOnce() -> T) -> (Self::StoreGuard<'_>, Revisions, T) {
        let store = self.store.read();
        let rev_mu = self.rev_mu.read();
        let opened = open();
        (store, rev_mu.clone(), opened)
    }

    fn write(&self) -> Self::StoreGuard<'_> {
        self.store.read()
    }

    fn publish<T>(
        &self,
        store_guard: Self::StoreGuard<'_>,
        next: Revisions,
        end: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let mut rev_mu = self.rev_mu.write();
        let ended = end()?;
        let replaced = std::mem::replace(&mut *rev_mu, next);
        drop(rev_mu);
        drop(store_guard);
        // Freeing what only the replaced index had needs no lock.
        drop(replaced);
        Ok(ended)
    }

    fn with_store_locked<T>(&self, work: impl FnOnce() -> T) -> T {
        let _store = self.store.write();
        work()
    }

    fn change_revisions<T>(&self, work: impl FnOnce(&mut Revisions) -> Result<T>) -> Result<T> {
        let _store = self.store.write();
        work(&mut self.rev_mu.write())
    }
}
