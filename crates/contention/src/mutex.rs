//! A mutex with a name: a [`LockState`](crate::rules::LockState) that every thread enters to write.
//!
//! That is Go's `sync.Mutex` in its two modes, except that Go also spins for a moment before it
//! queues, and decides on the mode for the whole queue instead of at each release. A thread that
//! locks a mutex it holds waits for itself forever, as in Go.
//!
//! There is no poisoning: when a thread panics with the lock held, unwinding releases it, and the
//! next one finds the data as the panic left them.

use std::{fmt, sync::Arc};

use crate::{LockGuard, LockMode, Registry, blocking_lock::BlockingLock};

/// See the module documentation.
pub struct Mutex<T> {
    lock: Arc<BlockingLock>,
    /// Free whenever the lock lets a thread in; see [`crate::blocking_lock`].
    data: parking_lot::Mutex<T>,
}

pub type MutexGuard<'a, T> = LockGuard<'a, parking_lot::MutexGuard<'a, T>>;

impl<T> Mutex<T> {
    /// The figures go to `registry` under `name`.
    pub fn new(registry: &Registry, name: &'static str, value: T) -> Mutex<T> {
        Mutex { lock: registry.register(name), data: parking_lot::Mutex::new(value) }
    }

    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let guard = self.lock.acquire(LockMode::Write);
        let data =
            self.data.try_lock().expect("a thread that the lock state let in is alone inside");
        LockGuard { data, _guard: guard }
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.lock.metrics.name;
        f.debug_struct("Mutex").field("name", &name).field("data", &self.data).finish()
    }
}
