//! Generations 3.2 to 3.5: `store` is shared by all transactions, `revMu` guards the revisions.
//!
//! # Who holds what
//!
//! * **A read** takes `store` shared, then `revMu` shared, then opens the backend's read, which
//!   takes `readTx` shared. With both it has read the revisions and opened the records of one
//!   moment, and it lets go of `revMu`. In era 3.2 it keeps `readTx` to its end. In 3.4 and 3.5
//!   it does not; but *`store` is kept to the end in all of them*.
//! * **A write transaction** takes `store` shared, then `batchTx`. At its end it takes `revMu`
//!   exclusively *before* it ends the backend's transaction: no new reader may find the new
//!   revision without its records, or the other way round. So the write-back, and the commit if the
//!   batch is full, are made with `revMu` held.
//! * **A commit for a snapshot** and **scheduling a compaction** take `store` exclusively.
//!
//! # What that costs, to this day
//!
//! ```text
//!   time ────────────────────────────────────────────────────────────────▶
//!   expensive read   ▶━━━━━━━━━━ keeps store shared ━━━━━━━━━━━━▶
//!   put, cheap read    ▪ ▪ ▪                                       ▪ ▪ ▪
//!   commit for a           ······ waits for store, alone ·······▶━▶
//!   snapshot
//!   put, cheap read          ···· wait behind that ················▪
//! ```
//!
//! The copied buffer of 3.4 has freed the put and the timer's commit from waiting for the reader.
//! But once in 10,000 entries the applier commits for a snapshot, and with every compaction it
//! schedules one: then it waits for the longest read that is open, and all requests wait for it.
//!
//! The second place is the end of a write: while it writes back, and perhaps commits and syncs, no
//! read can be opened, for it holds `revMu`.

use clearlane_contention::{Registry, RwLock, RwLockReadGuard};

use crate::error::Result;
use crate::etcd::lock_protocol::{Protocol, Revisions};

/// The locks of etcd since 3.2.
#[derive(Debug)]
pub(crate) struct RevMu<V> {
    store: RwLock<()>,
    rev_mu: RwLock<Revisions<V>>,
}

impl<V> Protocol<V> for RevMu<V>
where
    V: Clone + std::fmt::Debug + Send + Sync + 'static,
{
    type StoreGuard<'p> = RwLockReadGuard<'p, ()>;

    const WATCHABLE_FIRST: bool = false;

    fn new(locks: &Registry, first: Revisions<V>) -> RevMu<V> {
        let (store, rev_mu) = (RwLock::new(locks, "store", ()), RwLock::new(locks, "revMu", first));
        RevMu { store, rev_mu }
    }

    fn revisions<T>(&self, work: impl FnOnce(&Revisions<V>) -> T) -> T {
        work(&self.rev_mu.read())
    }

    fn read<T>(&self, open: impl FnOnce() -> T) -> (Self::StoreGuard<'_>, Revisions<V>, T) {
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
        held: Self::StoreGuard<'_>,
        next: Revisions<V>,
        end: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let mut rev_mu = self.rev_mu.write();
        let ended = end()?;
        let replaced = std::mem::replace(&mut *rev_mu, next);
        drop(rev_mu);
        drop(held);
        // Freeing what only the replaced index had needs no lock.
        drop(replaced);
        Ok(ended)
    }

    fn with_store_locked<T>(&self, work: impl FnOnce() -> T) -> T {
        let _store = self.store.write();
        work()
    }

    fn change_revisions<T>(&self, work: impl FnOnce(&mut Revisions<V>) -> Result<T>) -> Result<T> {
        let _store = self.store.write();
        work(&mut self.rev_mu.write())
    }
}
