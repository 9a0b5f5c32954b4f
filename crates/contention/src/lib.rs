//! Named locks that record which task waited for which, and for how long.
//!
//! A [`Mutex`] or [`RwLock`] has a name and belongs to a [`Registry`]. A thread acts under a
//! [`TaskLabel`] such as "put" or "commit".
//!
//! | to learn | call |
//! |---|---|
//! | all waits and holds since the last reset, with their causes | [`Registry::report`] |
//! | who waits, and who holds a lock, right now | [`Registry::waiting`], [`Registry::holding`] |
//! | how long one operation waited | [`waited_ns`], [`take_longest_wait`] |
//! | each wait and hold with its times | [`Registry::record`], [`timeline`] |
//! | what else a process does, for the same timeline | [`event_log`] |
//!
//! Read [`rules`] first. `docs/locks.md` has the rest: how to use the crate, and what it costs.
//!
//! * Measuring does not change the order of entry. A thread writes figures and events after its
//!   entry or its release is decided, and outside the inner lock that protects the decision.
//! * Each nanosecond of a wait is blamed on at most one blocker. Up to three parts of a wait are
//!   blamed on no blocker: the time to wake a thread that may already enter, the time during which
//!   a writer is queued while no writer has the turn, and the time at the inner lock of a
//!   [`blocking_lock`].
//! * A panic releases the locks whose guards it drops. There is no poisoning.
//!
//! This crate does not check the lock order, and does not detect a thread that waits for itself.
//! There are no async locks.

mod task_label;
pub mod rules;
mod blocking_lock;
mod mutex;
mod rw_lock;
mod histogram;
mod lock_metrics;
mod events;
pub mod event_log;
mod registry;
pub mod timeline;
mod span_index;
pub mod blame;
pub mod wait_chain;
pub mod era_colours;
mod clock;
mod yield_points;

pub use blocking_lock::{LockWait, LockWaitMark, LockWaits, take_longest_wait, waited_ns};
pub use clock::now_ns;
pub use events::{EventRecorder, LockEvent, LockEventKind};
pub use histogram::{Histogram, HistogramSnapshot};
pub use lock_metrics::{LockBlame, LockHolder, LockReport, ModeReport};
pub use mutex::{Mutex, MutexGuard};
pub use registry::{Registry, WaitingTask};
pub use rules::{BlockerState, LockMode};
pub use rw_lock::{LockGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use task_label::{LabelScope, TaskLabel};
pub use yield_points::{YieldPoints, set_yield_hook};
