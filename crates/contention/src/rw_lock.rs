//! A readers-writer lock with a name, and Go's order of entry.
//!
//! The order is that of [`LockState`](crate::rules::LockState): a waiting writer turns later
//! readers away, and when it leaves, all readers it turned away go in before the next writer.
//! Rust's own locks guarantee no order (`std`) or another one (`parking_lot` serves roughly in the
//! order of arrival), so the read paths of old etcd versions would show another convoy than the one
//! etcd had.
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
        self.read_guard(self.lock.acquire(LockMode::Read))
    }

    /// Waits until no thread holds the lock, and turns later readers away meanwhile.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.write_guard(self.lock.acquire(LockMode::Write))
    }

    pub fn name(&self) -> &'static str {
        self.lock.metrics.name
    }

    #[inline]
    fn read_guard<'a>(&'a self, stay: BlockingLockGuard<'a>) -> RwLockReadGuard<'a, T> {
        let data = self.data.try_read().expect("the lock state lets no reader in beside a writer");
        RwLockReadGuard { data, _guard: stay }
    }

    #[inline]
    fn write_guard<'a>(&'a self, stay: BlockingLockGuard<'a>) -> RwLockWriteGuard<'a, T> {
        let data =
            self.data.try_write().expect("a writer that the lock state let in is alone inside");
        RwLockWriteGuard { data, _guard: stay }
    }
}

impl<T: fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock").field("name", &self.name()).field("data", &self.data).finish()
    }
}

/// Dropping it releases the lock.
#[must_use = "the lock is held only until the guard is dropped"]
pub struct RwLockReadGuard<'a, T> {
    // Dropped in this order: the data must be free before the lock lets a writer in.
    data: parking_lot::RwLockReadGuard<'a, T>,
    _guard: BlockingLockGuard<'a>,
}

/// Dropping it releases the lock.
#[must_use = "the lock is held only until the guard is dropped"]
pub struct RwLockWriteGuard<'a, T> {
    // Dropped in this order: the data must be free before the lock lets the next ones in.
    data: parking_lot::RwLockWriteGuard<'a, T>,
    _guard: BlockingLockGuard<'a>,
}

impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.data
    }
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.data
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.data
    }
}

impl<T: fmt::Debug> fmt::Debug for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: fmt::Debug> fmt::Debug for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
