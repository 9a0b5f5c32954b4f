//! Who waited for whom? Named locks that keep the answer.
//!
//! # The problem
//!
//! A put that takes 600 ms instead of one did not compute for 600 ms: it stood in a queue. Which
//! queue, behind whom, and behind whom did *that* one stand? A profiler shows busy threads, not
//! waiting ones, and a thread dump shows one moment. The history of etcd's read path is a history
//! of such queues, so this project builds on locks that can tell.
//!
//! # The idea
//!
//! [`Mutex`] and [`RwLock`] have a name and belong to a [`Registry`]. Threads act in the name of an
//! [`Actor`] ("put", "expensive_read", "commit"). Every acquisition counts: how long it waited,
//! how long it held, and, for each stretch of a wait, who stood in front and whether that one
//! *held* the lock or *waited* itself. The second case is the interesting one: in a convoy a
//! cheap read waits for a put that does nothing but wait for an expensive read.
//!
//! ```
//! use clearlane_locks::{Actor, Registry, RwLock};
//!
//! let registry = Registry::new();
//! let read_tx = RwLock::new(&registry, "readTx", 0);
//! {
//!     let _as = Actor::named("put").enter();
//!     *read_tx.write() += 1;
//! }
//! let report = &registry.report()[0];
//! assert_eq!(report.name, "readTx");
//! assert_eq!(report.write.acquisitions, 1);
//! assert_eq!(report.write.longest_hold().map(|hold| hold.actor.name()), Some("put"));
//! ```
//!
//! Four questions, four answers:
//!
//! | question | answer |
//! |---|---|
//! | how much waiting was there, and whose fault was it? | [`Registry::report`] |
//! | who waits at this moment? | [`Registry::waiting`], [`Registry::holding`] |
//! | what did this one operation wait? | [`waited_ns`] before and after it, and [`take_longest_wait`] |
//! | when exactly, for a timeline? | [`Registry::record`] |
//!
//! # Reading order
//!
//! [`gate`] holds the rules of entry, those of Go's `sync.RWMutex`, as a state machine without
//! threads: start there. [`door`] lets threads wait before a gate; [`mutex`] and [`rwlock`] put data
//! behind it. [`figures`] counts with the [`histogram`], [`events`] records, [`registry`] brings it
//! together. What it costs is measured in `benches/locks.rs`, with results in `docs/locks.md`.
//!
//! # Invariants
//!
//! * Watching does not change the order of entry: figures and events are written by those who
//!   leave, and nobody waits to write them.
//! * Each nanosecond of a wait is blamed on one party at most: the one in front at that time. What
//!   is blamed on nobody is the time it takes to wake a thread that may go, or to be blocked at the
//!   inner lock of a [`door`].
//! * A panic releases the locks it unwinds through; there is no poisoning.
//!
//! # Left out
//!
//! Lock order is not checked, and a thread that waits for itself is not detected (but it shows in
//! [`Registry::waiting`]). There are no async locks: everything that locks here is synchronous.

mod actor;
pub mod gate;
mod door;
mod mutex;
mod rwlock;
mod histogram;
mod figures;
mod events;
mod registry;
mod clock;

pub use actor::{Actor, Entered};
pub use clock::now_ns;
pub use door::{Wait, take_longest_wait, waited_ns};
pub use events::{Event, Recorder};
pub use figures::{Blame, Holder, LockReport, ModeReport};
pub use gate::{Mode, Stance};
pub use histogram::{Histogram, Snapshot};
pub use mutex::{Mutex, MutexGuard};
pub use registry::{Holding, Registry, Waiting};
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
