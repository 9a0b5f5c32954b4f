//! How is it on disk? Three storage engines behind one small trait.
//!
//! # The idea
//!
//! Everything above this crate sees a store as a handful of *buckets*, each an ordered map from
//! bytes to bytes. One *write transaction* at a time changes them; its changes become visible all
//! at once when it commits, and are on disk when the commit returns. A *snapshot* is what was
//! committed at one moment: it costs little to take, any number may be open, and none of them
//! ever changes or makes the writer wait, however long it stays open.
//!
//! ```text
//!             commit 1        commit 2          commit 3
//!   writer  ──put a=1──┤├──put a=2, b=1──┤├──delete a──┤├──▶
//!                       │                 │
//!   snapshot            └─ a=1 ───────────┼─────────────────  still a=1
//!   snapshot                              └─ a=2 b=1 ───────  still a=2 b=1
//! ```
//!
//! That is what bbolt gives etcd, and it is the least that the five read transactions of the
//! backend need: the oldest of them read through the open write transaction, the others read
//! snapshots.
//!
//! # Invariants, the same for every engine
//!
//! * A snapshot shows exactly one committed state, for as long as it lives: through later
//!   commits, through deletes, through a defragmentation.
//! * A commit is all or nothing, also when the process is killed in the middle of it.
//! * When [`WriteTxn::commit`] returns `Ok` on an engine whose [`EngineKind::is_durable`] says
//!   so, the commit survives a crash. After an `Err` it is unknown how much of it is on disk: the
//!   engine refuses every later write ([`Error::Failed`]) and the process is expected to stop.
//! * There is one write transaction at a time; asking for a second is [`Error::WriterBusy`]. The
//!   engine never waits for another thread's transaction.
//! * [`Engine::size_in_use`] counts the bytes of the live keys and values, as of the last commit.
//!
//! # Where to read on
//!
//! [`Engine`], [`Read`], [`Snapshot`] and [`WriteTxn`] are the interface; [`redb`](mod@redb),
//! [`sled`](mod@sled) and [`memory`] implement it; [`open()`] picks one by name and refuses
//! directories that are not its own; [`stream`] copies a snapshot out of one engine into another.

// The suites' model and workloads are used by unit tests too, under the crate's own name.
#[cfg(test)]
extern crate self as clearlane_engine;

mod interface;
mod bucket;
mod error;
mod options;
mod open;
mod directory;
mod catch_panic;
mod cached_read;
mod writer_lock;
mod durable;
pub mod redb;
pub mod sled;
pub mod memory;
pub mod stream;

pub use bucket::Bucket;
pub use cached_read::{NotCached, try_read_cached};
pub use error::{EngineKind, Error, Result};
pub use interface::{Defragment, Engine, KeyRange, Read, Snapshot, Visitor, WriteTxn};
pub use memory::MemoryEngine;
pub use open::open;
pub use options::Options;
