//! A mutex with a name: a [`LockState`](crate::rules::LockState) that every thread enters as a
//! writer.
//!
//! The order of entry is the same as for Go's `sync.Mutex` in its normal and its starvation mode,
//! with two differences. A Go thread spins briefly before it queues. And Go chooses the mode for
//! the whole queue, while this mutex chooses at each release.
//!
//! A thread that locks a mutex it already holds waits for itself forever, as in Go.
//!
//! There is no poisoning. If a thread panics while it holds the lock, unwinding releases the lock,
//! and the next holder finds the data as the panic left them.

use std::{fmt, sync::Arc};

use crate::{LockGuard, LockMode, Registry, blocking_lock::BlockingLock};

/// A mutex. The module documentation describes its order of entry.
pub struct Mutex<T> {
    lock: Arc<BlockingLock>,
    /// The value that the mutex protects. A thread that `lock` has admitted finds this inner mutex
    /// free, except while another thread prints the mutex with `Debug`; see
    /// [`crate::blocking_lock`].
    data: parking_lot::Mutex<T>,
}

pub type MutexGuard<'a, T> = LockGuard<'a, parking_lot::MutexGuard<'a, T>>;

impl<T> Mutex<T> {
    /// Creates a mutex whose figures go to `registry` under `name`.
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
