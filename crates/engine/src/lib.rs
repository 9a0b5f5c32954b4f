//! Three storage engines behind one small trait: buckets, each an ordered map from bytes to bytes.
//! What bbolt is to etcd. The interface is [`Engine`], [`Read`], [`Snapshot`] and [`WriteTxn`];
//! [`bolt`](mod@bolt), [`sled`](mod@sled) and [`memory`] implement it. [`open()`] picks one by
//! name; [`stream`] copies a snapshot from one engine into another. See `docs/engine.md`.
//!
//! * A snapshot shows exactly one committed state for as long as it lives: through later commits,
//!   deletes and a defragmentation. It does not make the writer wait.
//! * A commit is all or nothing, also when the process is killed in the middle of it.
//! * When [`WriteTxn::commit`] returns `Ok` on an engine that [`EngineKind::is_durable`], the
//!   commit survives a crash. After an `Err` it is unknown how much is on disk: the engine refuses
//!   every later write ([`Error::Failed`]) and the process is expected to stop.
//! * One write transaction at a time; a second is [`Error::WriterBusy`], not a wait.
//! * [`Engine::size_in_use`] counts the bytes of the live keys and values, as of the last commit.

// The suites' model and workloads are used by unit tests too, under the crate's own name.
#[cfg(test)]
extern crate self as clearlane_engine;
#[cfg(test)]
#[allow(dead_code, reason = "unit tests use a part of it")]
#[path = "../tests/suite/support.rs"]
mod suite_support;

mod interface;
mod bucket;
mod error;
mod options;
mod open;
mod directory;
mod place;
mod single_file;
mod catch_panic;
mod cached_read;
mod writer_lock;
mod durable;
pub mod bolt;
pub mod sled;
pub mod memory;
pub mod stream;

pub use bolt::Image;
pub use bolt::inspect as bolt_file;
pub use bucket::Bucket;
pub use cached_read::{NotCached, try_read_cached};
pub use error::{EngineKind, Error, Result};
pub use interface::{Defragment, Engine, KeyRange, OpeningNote, Read, Snapshot, Visitor, WriteTxn};
pub use memory::MemoryEngine;
pub use open::open;
pub use options::Options;
pub use single_file::SingleFileStore;

/// What bolt allocates for a page of 4,096 bytes. No other buffer is likely to have this size, so
/// an allocator can tell pages by it.
pub const PAGE_BUFFER_BYTES: usize = 4096 + PAGE_BUFFER_EXTRA;
pub(crate) const PAGE_BUFFER_EXTRA: usize = 16;

/// Of a key that every engine takes: what bbolt takes.
pub const KEY_BYTES_MAX: usize = 32_768;
