//! A readers-writer lock with a name and a fixed order of entry.
//!
//! The order is the same as for Go's `sync.RWMutex`, the lock on etcd's read paths. The rules are
//! in [`LockState`](crate::rules::LockState). With other locks, convoys would form differently: the
//! order of Rust's `std` is not specified, and the order of `parking_lot` is different.
//!
//! A thread that holds the lock for reading must not read-lock it again, as in Go. If a writer
//! arrives between the two calls, the second call waits for the writer, and the writer waits until
//! the first read lock is released: a deadlock.
//!
//! There is no poisoning, as in [`crate::Mutex`]: unwinding releases the lock.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::Arc,
};

use crate::{
    LockMode, Registry,
    blocking_lock::{BlockingLock, BlockingLockGuard},
};

/// A readers-writer lock. The module documentation describes its order of entry.
pub struct RwLock<T> {
    lock: Arc<BlockingLock>,
    /// The value that the lock protects. A thread that `lock` has admitted finds this inner lock
    /// free for its mode. The only exception is a writer that enters while another thread prints
    /// the lock with `Debug`; see [`crate::blocking_lock`].
    data: parking_lot::RwLock<T>,
}

impl<T> RwLock<T> {
    /// Creates a lock whose figures go to `registry` under `name`.
    pub fn new(registry: &Registry, name: &'static str, value: T) -> RwLock<T> {
        RwLock { lock: registry.register(name), data: parking_lot::RwLock::new(value) }
    }

    /// Waits until no writer holds the lock or has the turn, and then read-locks it.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let guard = self.lock.acquire(LockMode::Read);
        let data = self.data.try_read().expect("the lock state lets no reader in beside a writer");
        LockGuard { data, _guard: guard }
    }

    /// Waits until this writer has the turn and no thread holds the lock, and then write-locks it.
    /// Readers that arrive after this writer got the turn wait for it.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let guard = self.lock.acquire(LockMode::Write);
        let data =
            self.data.try_write().expect("a writer that the lock state let in is alone inside");
        LockGuard { data, _guard: guard }
    }
}

impl<T: fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.lock.metrics.name;
        f.debug_struct("RwLock").field("name", &name).field("data", &self.data).finish()
    }
}

/// Releases the lock when the guard is dropped. `D` is the guard of the data.
#[must_use = "the lock is held only until the guard is dropped"]
pub struct LockGuard<'a, D> {
    // The fields are dropped in this order. The data must be free before the lock admits another
    // thread.
    pub(crate) data: D,
    pub(crate) _guard: BlockingLockGuard<'a>,
}

pub type RwLockReadGuard<'a, T> = LockGuard<'a, parking_lot::RwLockReadGuard<'a, T>>;
pub type RwLockWriteGuard<'a, T> = LockGuard<'a, parking_lot::RwLockWriteGuard<'a, T>>;

impl<D: Deref> Deref for LockGuard<'_, D> {
    type Target = D::Target;

    #[inline]
    fn deref(&self) -> &D::Target {
        &self.data
    }
}

impl<D: DerefMut> DerefMut for LockGuard<'_, D> {
    #[inline]
    fn deref_mut(&mut self) -> &mut D::Target {
        &mut self.data
    }
}

impl<D: Deref<Target: fmt::Debug>> fmt::Debug for LockGuard<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
