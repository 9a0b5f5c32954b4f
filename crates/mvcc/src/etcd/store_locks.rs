//! What the old eras differ in: which locks a transaction takes, in which order, how long.
//!
//! The timelines of [`StoreLocks::OneMutex`] are below, those of 3.4 and 3.5 in `docs/mvcc.md`.

use clearlane_backend::Era;
use clearlane_contention::{Mutex, MutexGuard, Registry, RwLock, RwLockReadGuard};

use crate::error::Result;
use crate::tree_index::locked::LockedIndex;

/// The revisions, and the index as of the current one. (Of etcd's index it is a handle.)
#[derive(Clone, Debug)]
pub(crate) struct Revisions {
    pub(crate) current: i64,
    pub(crate) compacted: i64,
    pub(crate) index: LockedIndex,
}

#[derive(Debug)]
pub(crate) enum StoreLocks {
    /// Era 3.1 (etcd 3.0 and 3.1): `store` is a mutex, and every transaction takes it.
    ///
    /// Reads and write transactions hold `store` from opening to end, and below it `batchTx`. The
    /// second lock is free for the holder of the first, except beside a timer's commit, a hash or a
    /// compaction's step, which take `batchTx` alone. A commit for a snapshot and scheduling a
    /// compaction take both, in the same order. So each request waits for each other one:
    ///
    /// ```text
    ///   expensive read  ▶━━━━━━━━━ holds store and batchTx ━━━━━━▶
    ///   put                 ·········· waits for store ···········▪
    ///   cheap read             ······· waits for store ············▪
    ///   timer's commit            ···· waits for batchTx ····················▶━ sync ━▶
    /// ```
    OneMutex { store: Mutex<Revisions> },

    /// Eras 3.2 to 3.5: `store` is shared by all transactions, `revMu` guards the revisions.
    ///
    /// * **A read** takes `store` shared, then `revMu` shared, then opens the backend's read, which
    ///   takes `readTx` shared. With both it reads the revisions and opens the records of one
    ///   state, and drops `revMu`. Era 3.2 keeps `readTx` to the end of the read, 3.4 and 3.5 do
    ///   not. All keep `store`.
    /// * **A write transaction** takes `store` shared, then `batchTx`. At its end it takes `revMu`
    ///   exclusively *before* it ends the backend's transaction, for no new reader may find the new
    ///   revision without its records. So write-back, and the commit of a full batch, hold `revMu`.
    /// * **A commit for a snapshot** and **scheduling a compaction** take `store` exclusively. The
    ///   first is made by the commit thread: before the log gets a snapshot record, and when a
    ///   compaction is done.
    RevMu { store: RwLock<()>, rev_mu: RwLock<Revisions> },
}

/// `store`, as a transaction holds it from beginning to end.
pub(crate) enum StoreGuard<'s> {
    Exclusive(MutexGuard<'s, Revisions>),
    /// With `revMu`, for the end of a write transaction.
    Shared(RwLockReadGuard<'s, ()>, &'s RwLock<Revisions>),
}

impl StoreLocks {
    pub(crate) fn new(era: Era, locks: &Registry, first: Revisions) -> StoreLocks {
        if era < Era::V3_2 {
            return StoreLocks::OneMutex { store: Mutex::new(locks, "store", first) };
        }
        StoreLocks::RevMu {
            store: RwLock::new(locks, "store", ()),
            rev_mu: RwLock::new(locks, "revMu", first),
        }
    }

    /// The revisions, kept from changing while `work` looks at them.
    pub(crate) fn revisions<T>(&self, work: impl FnOnce(&Revisions) -> T) -> T {
        match self {
            StoreLocks::OneMutex { store } => work(&store.lock()),
            StoreLocks::RevMu { rev_mu, .. } => work(&rev_mu.read()),
        }
    }

    /// Opens a read. `open` opens the backend's, and the revisions do not change meanwhile.
    pub(crate) fn read<T>(&self, open: impl FnOnce() -> T) -> (StoreGuard<'_>, Revisions, T) {
        match self {
            StoreLocks::OneMutex { store } => {
                let store = store.lock();
                let (revisions, opened) = (store.clone(), open());
                (StoreGuard::Exclusive(store), revisions, opened)
            }
            StoreLocks::RevMu { store, rev_mu } => {
                let store = store.read();
                let revisions = rev_mu.read();
                let opened = open();
                (StoreGuard::Shared(store, rev_mu), revisions.clone(), opened)
            }
        }
    }

    /// Begins a write transaction; the backend's comes next.
    pub(crate) fn write(&self) -> StoreGuard<'_> {
        match self {
            StoreLocks::OneMutex { store } => StoreGuard::Exclusive(store.lock()),
            StoreLocks::RevMu { store, rev_mu } => StoreGuard::Shared(store.read(), rev_mu),
        }
    }

    /// Does `work` while no transaction is open, and none can be opened.
    pub(crate) fn with_store_locked<T>(&self, work: impl FnOnce() -> T) -> T {
        match self {
            StoreLocks::OneMutex { store } => {
                let _store = store.lock();
                work()
            }
            StoreLocks::RevMu { store, .. } => {
                let _store = store.write();
                work()
            }
        }
    }

    /// The same, to change the revisions.
    pub(crate) fn change_revisions<T>(&self, work: impl FnOnce(&mut Revisions) -> T) -> T {
        match self {
            StoreLocks::OneMutex { store } => work(&mut store.lock()),
            StoreLocks::RevMu { store, rev_mu } => {
                let _store = store.write();
                work(&mut rev_mu.write())
            }
        }
    }
}

impl StoreGuard<'_> {
    /// Ends a write transaction that has changed something: `end` ends the backend's, and the
    /// reads from then on find `next`.
    pub(crate) fn publish<T>(self, next: Revisions, end: impl FnOnce() -> Result<T>) -> Result<T> {
        match self {
            StoreGuard::Exclusive(mut store) => {
                let ended = end()?;
                *store = next;
                Ok(ended)
            }
            StoreGuard::Shared(store, rev_mu) => {
                let mut revisions = rev_mu.write();
                let ended = end()?;
                let replaced = std::mem::replace(&mut *revisions, next);
                drop(revisions);
                drop(store);
                // Freeing what only the replaced index had needs no lock.
                drop(replaced);
                Ok(ended)
            }
        }
    }
}
