//! Which thread waited for which? Named locks that record the answer.
//!
//! # The problem
//!
//! A put that takes 600 ms instead of one did not compute for 600 ms: it stood in a queue. Which
//! queue, behind which thread, and behind which did *that* one stand? A profiler shows busy threads, not
//! waiting ones, and a thread dump shows one moment. The history of etcd's read path is a history
//! of such queues, so this project builds on locks that can tell.
//!
//! # The idea
//!
//! [`Mutex`] and [`RwLock`] have a name and belong to a [`Registry`]. Threads act in the name of an
//! [`TaskLabel`] ("put", "expensive_read", "commit"). Every acquisition counts: how long it waited,
//! how long it held, and, for each stretch of a wait, the blocker and whether it
//! *held* the lock or *waited* itself. The second case is the interesting one: in a convoy a
//! cheap read waits for a put that does nothing but wait for an expensive read.
//!
//! ```
//! use clearlane_contention::{TaskLabel, Registry, RwLock};
//!
//! let registry = Registry::new();
//! let read_tx = RwLock::new(&registry, "readTx", 0);
//! {
//!     let _as = TaskLabel::named("put").enter();
//!     *read_tx.write() += 1;
//! }
//! let report = &registry.report()[0];
//! assert_eq!(report.name, "readTx");
//! assert_eq!(report.write.acquisitions, 1);
//! assert_eq!(report.write.longest_hold().map(|hold| hold.task.name()), Some("put"));
//! ```
//!
//! Four questions, four answers:
//!
//! | question | answer |
//! |---|---|
//! | how much waiting was there, and what caused it? | [`Registry::report`] |
//! | which threads wait at this moment? | [`Registry::waiting`], [`Registry::holding`] |
//! | what did this one operation wait? | [`waited_ns`] before and after it, and [`take_longest_wait`] |
//! | when exactly, for a timeline? | [`Registry::record`] |
//!
//! # Reading order
//!
//! [`rules`] holds the rules of entry, those of Go's `sync.RWMutex`, as a state machine without
//! threads: start there. [`blocking_lock`] lets threads wait before a gate; [`mutex`] and [`rw_lock`] put data
//! behind it. [`lock_metrics`] counts with the [`histogram`], [`events`] records, [`registry`] brings it
//! together. What it costs is measured in `benches/locks.rs`, with results in `docs/locks.md`.
//!
//! # Invariants
//!
//! * Watching does not change the order of entry: figures and events are written by threads that
//!   leave, and no thread waits to write them.
//! * Each nanosecond of a wait is blamed on one party at most: the one in front at that time. What
//!   is blamed on no party is the time it takes to wake a thread that may go, or to be blocked at the
//!   inner lock of a [`blocking_lock`].
//! * A panic releases the locks it unwinds through; there is no poisoning.
//!
//! # Left out
//!
//! Lock order is not checked, and a thread that waits for itself is not detected (but it shows in
//! [`Registry::waiting`]). There are no async locks: everything that locks here is synchronous.

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
pub mod blame;
mod clock;

pub use blocking_lock::{LockWait, take_longest_wait, waited_ns};
pub use clock::now_ns;
pub use events::{EventRecorder, LockEvent};
pub use histogram::{Histogram, HistogramSnapshot};
pub use lock_metrics::{LockBlame, LockHolder, LockReport, ModeReport};
pub use mutex::{Mutex, MutexGuard};
pub use registry::{HoldingTask, Registry, WaitingTask};
pub use rules::{BlockerState, LockMode};
pub use rw_lock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use task_label::{LabelScope, TaskLabel};
