//! The three storage engines of Clearlane, and the trait that hides their differences.
//!
//! An engine plays the part that bbolt plays in etcd: it stores *buckets*, which are ordered maps
//! from bytes to bytes. The interface is [`Engine`], [`Read`], [`Snapshot`] and [`WriteTxn`].
//! [`open()`] picks an engine by name; [`stream`] copies a snapshot of one engine into another. See
//! `docs/engine.md`.
//!
//! ```text
//!   Engine ─┬─ DurableEngine ─┬─ bolt    copy-on-write B+trees in bbolt's file format, the default
//!           │                 └─ sled    a log-structured tree
//!           └─ MemoryEngine              nothing on disk
//! ```
//!
//! * A snapshot shows exactly one committed state for as long as it lives. Later commits, deletes
//!   and defragmentations do not change it, and it does not make the writer wait.
//! * A commit is all or nothing, even if the process is killed in the middle of it.
//! * If [`WriteTxn::commit`] returns `Ok` and the engine is durable ([`EngineKind::is_durable`]),
//!   the commit survives a crash. If [`Options::syncs`] is false, a commit of `bolt` survives only
//!   a crash of the process, not of the system. If the commit returns an error, it is unknown
//!   whether a restart will find the commit. So every later write fails with [`Error::Failed`], and
//!   the process is expected to stop.
//! * At most one write transaction is open. While it is open, [`Engine::begin_write`] fails with
//!   [`Error::WriterBusy`] and does not wait.
//! * [`Engine::size_in_use`] counts the bytes of the live keys and values as of the last commit.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(target_family = "wasm", allow(dead_code, reason = "engines on a disk use it"))]

// Unit tests also use the suites' model and workloads in `support.rs`. That file refers to this
// crate by its public name.
#[cfg(test)]
extern crate self as clearlane_engine;
#[cfg(test)]
#[allow(dead_code, reason = "unit tests use a part of it")]
#[path = "../tests/suite/support.rs"]
mod suite_support;

// Everything that needs a disk is excluded for wasm, which has only the memory engine.
mod interface;
mod bucket;
mod error;
mod options;
#[cfg(not(target_family = "wasm"))]
mod open;
#[cfg(not(target_family = "wasm"))]
mod directory;
#[cfg(not(target_family = "wasm"))]
mod place;
#[cfg(not(target_family = "wasm"))]
mod single_file;
#[cfg(not(target_family = "wasm"))]
mod catch_panic;
#[cfg(not(target_family = "wasm"))]
mod cached_read;
mod writer_lock;
#[cfg(not(target_family = "wasm"))]
mod durable;
#[cfg(not(target_family = "wasm"))]
pub mod bolt;
#[cfg(not(target_family = "wasm"))]
pub mod sled;
pub mod memory;
pub mod stream;

#[cfg(not(target_family = "wasm"))]
pub use bolt::Image;
#[cfg(not(target_family = "wasm"))]
pub use bolt::inspect as bolt_file;
pub use bucket::Bucket;
#[cfg(not(target_family = "wasm"))]
pub use cached_read::{NotCached, try_read_cached};
pub use error::{EngineKind, Error, Result};
pub use interface::{Defragment, Engine, KeyRange, OpeningNote, Read, Snapshot, Visitor, WriteTxn};
pub use memory::MemoryEngine;
#[cfg(not(target_family = "wasm"))]
pub use open::open;
pub use options::Options;
#[cfg(not(target_family = "wasm"))]
pub use single_file::SingleFileStore;

/// The number of bytes that `bolt` allocates for a page of 4,096 bytes. The program's allocator
/// (`page_pool` in crate `clearlane`) recognizes pages by this size, because hardly any other
/// buffer has this size.
pub const PAGE_BUFFER_BYTES: usize = 4096 + PAGE_BUFFER_EXTRA;
pub(crate) const PAGE_BUFFER_EXTRA: usize = 16;

/// Maximum length of a key, in bytes, that every engine accepts. It is bbolt's limit; only `bolt`
/// rejects longer keys.
pub const KEY_BYTES_MAX: usize = 32_768;
