//! A readers-writer lock with a name, and the order of entry of Go's, on which the read paths of
//! etcd are built: [`LockState`](crate::rules::LockState). Rust's own locks guarantee no order
//! (`std`) or another one (`parking_lot`), and would show another convoy.
//!
//! As in Go, a thread must not read-lock again what it has read-locked: if a writer arrives in
//! between, the second call waits for the writer, which waits for the first. And as in
//! [`crate::Mutex`] there is no poisoning: unwinding releases the lock.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::Arc,
};

use crate::{
    LockMode, Registry,
    blocking_lock::{BlockingLock, BlockingLockGuard},
};

/// See the module documentation.
pub struct RwLock<T> {
    lock: Arc<BlockingLock>,
    /// Free in the asked mode whenever the lock lets a thread in; see [`crate::blocking_lock`].
    data: parking_lot::RwLock<T>,
}

impl<T> RwLock<T> {
    /// The figures go to `registry` under `name`.
    pub fn new(registry: &Registry, name: &'static str, value: T) -> RwLock<T> {
        RwLock { lock: registry.register(name), data: parking_lot::RwLock::new(value) }
    }

    /// Waits until no writer holds the lock or has the turn.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let guard = self.lock.acquire(LockMode::Read);
        let data = self.data.try_read().expect("the lock state lets no reader in beside a writer");
        LockGuard { data, _guard: guard }
    }

    /// Waits until no thread holds the lock, and turns later readers away meanwhile.
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

/// Dropping it releases the lock. `D` is the guard of the data.
#[must_use = "the lock is held only until the guard is dropped"]
pub struct LockGuard<'a, D> {
    // Dropped in this order: the data must be free before the lock lets the next ones in.
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
