//! How the old eras differ: which locks a transaction takes, in which order, and for how long.
//!
//! The timeline of [`StoreLocks::OneMutex`] is below. `docs/mvcc.md` has the timeline of 3.4 and
//! 3.5.

use clearlane_backend::Era;
use clearlane_contention::{Mutex, MutexGuard, Registry, RwLock, RwLockReadGuard};

use crate::error::Result;
use crate::tree_index::locked::LockedIndex;

/// The revisions, and a handle on the index. As in etcd, the handle always shows the newest index.
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
    /// Reads and write transactions hold `store` from start to end, and take `batchTx` under it.
    /// The holder of `store` usually finds `batchTx` free. Some operations hold `batchTx` without
    /// `store`: a timer's commit, a hash, a compaction step, the copy of the whole store, a
    /// defragmentation, a query of the sizes and the lookup of a user. A commit for a raft snapshot
    /// and scheduling a compaction take both locks, in the same order. Because every transaction
    /// takes `store`, each request waits for every other request:
    ///
    /// ```text
    ///   expensive read  ▶━━━━━━━━━ holds store and batchTx ━━━━━━▶
    ///   put                 ·········· waits for store ···········▪
    ///   cheap read             ······· waits for store ············▪
    ///   timer's commit            ···· waits for batchTx ····················▶━ sync ━▶
    /// ```
    OneMutex { store: Mutex<Revisions> },

    /// Eras 3.2 to 3.5: all transactions share `store`, and `revMu` protects the revisions.
    ///
    /// * **A read** takes `store` shared, then `revMu` shared. Then it opens the backend's read,
    ///   which takes `readTx` shared. Under these locks it gets the revisions and the records of
    ///   one state, and then releases `revMu`. Era 3.2 holds `readTx` until the end of the read;
    ///   3.4 and 3.5 do not, except 3.5 for a read for the writer's compares. In all these eras a
    ///   read holds `store` shared until its end. A hash releases `store` once its read is open.
    /// * **A write transaction** takes `store` shared, then `batchTx`. If it has changed a key, it
    ///   takes `revMu` exclusively at its end, *before* it ends the backend's transaction, because
    ///   no new reader may find the new revision without its records. So `revMu` is held during the
    ///   write-back and the commit of a full batch.
    /// * **A commit for a raft snapshot** and **scheduling a compaction** take `store` exclusively.
    ///   The commit thread makes this kind of commit when another thread requests a commit, for
    ///   example before the log gets a snapshot record, and when a compaction is done.
    RevMu { store: RwLock<()>, rev_mu: RwLock<Revisions> },
}

/// The guard of the lock `store`. A transaction holds it from start to end, except the read
/// transaction of a hash.
pub(crate) enum StoreGuard<'s> {
    Exclusive(MutexGuard<'s, Revisions>),
    /// The guard of the shared lock, and `revMu`, which the end of a write transaction takes.
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

    /// Calls `work` with the revisions. They do not change during the call.
    pub(crate) fn revisions<T>(&self, work: impl FnOnce(&Revisions) -> T) -> T {
        match self {
            StoreLocks::OneMutex { store } => work(&store.lock()),
            StoreLocks::RevMu { rev_mu, .. } => work(&rev_mu.read()),
        }
    }

    /// Opens a read. `open` opens the backend's read, while the revisions cannot change. Returns
    /// the guard of `store`, the revisions, and the result of `open`.
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

    /// Starts a write transaction. The caller then starts the backend's transaction.
    pub(crate) fn write(&self) -> StoreGuard<'_> {
        match self {
            StoreLocks::OneMutex { store } => StoreGuard::Exclusive(store.lock()),
            StoreLocks::RevMu { store, rev_mu } => StoreGuard::Shared(store.read(), rev_mu),
        }
    }

    /// Calls `work` while no transaction holds `store`, and while no transaction can be opened.
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

    /// Like [`with_store_locked`](StoreLocks::with_store_locked), but lets `work` change the
    /// revisions.
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
    /// Ends a write transaction that has changed a key. `end` ends the backend's transaction.
    /// Reads that start later find the revisions `next`.
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
                // The replaced revisions are dropped after `revMu` and `store` are released.
                drop(replaced);
                Ok(ended)
            }
        }
    }
}
