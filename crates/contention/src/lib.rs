//! Named locks that record which task waited for which, and for how long.
//!
//! [`Mutex`] and [`RwLock`] have a name and belong to a [`Registry`]; threads act under a
//! [`TaskLabel`] ("put", "commit"). [`Registry::report`] has waits and their causes,
//! [`Registry::waiting`] and [`Registry::holding`] the present, [`waited_ns`] and
//! [`take_longest_wait`] one operation, and [`Registry::record`] a timeline. Begin with [`rules`];
//! `docs/locks.md` tells the rest.
//!
//! * Counting does not change the order of entry: a thread writes figures and events when it
//!   leaves.
//! * Each nanosecond of a wait is blamed on one blocker at most. Not blamed: the time to wake a
//!   thread that may go, and the time at the inner lock of a [`blocking_lock`].
//! * A panic releases the locks that it unwinds through; there is no poisoning.
//!
//! Not checked: lock order, and a thread that waits for itself. There are no async locks.

mod task_label;
pub mod rules;
mod blocking_lock;
mod mutex;
mod rw_lock;
mod histogram;
mod lock_metrics;
mod events;
mod registry;
pub mod timeline;
mod span_index;
pub mod blame;
pub mod wait_chain;
pub mod era_colours;
mod clock;

pub use blocking_lock::{LockWait, take_longest_wait, waited_ns};
pub use clock::now_ns;
pub use events::{EventRecorder, LockEvent, LockEventKind};
pub use histogram::{Histogram, HistogramSnapshot};
pub use lock_metrics::{LockBlame, LockHolder, LockReport, ModeReport};
pub use mutex::{Mutex, MutexGuard};
pub use registry::{Registry, WaitingTask};
pub use rules::{BlockerState, LockMode};
pub use rw_lock::{LockGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use task_label::{LabelScope, TaskLabel};
