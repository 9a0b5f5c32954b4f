//! Multi-version concurrency control in Clearlane: revisions, the index of keys, the store,
//! watching.
//!
//! Each change has a *revision* and a separate record. The index shows which record a key had at
//! each revision. Read the modules in this order:
//!
//! * [`revision`], [`key_index`], [`tree_index`]: one change, one key, all keys;
//! * [`interface`]: the store of any era. [`clearlane`] and [`etcd`] implement it, [`open()`] opens
//!   it;
//! * [`restore`]: rebuilds the index from the records; [`unopened`]: a store that is only read;
//! * [`hash`], [`backend_hash()`]: checksums that show whether two members, or a backend and its
//!   copy, have the same data;
//! * [`watch`]: which watchers are notified of a change; [`auto_compaction`]: when to compact.
//!
//! The crate starts no threads. In etcd: package `mvcc`. See `docs/mvcc.md`, `docs/watch.md`, and
//! `docs/eras.md` for the differences between the eras.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod revision;
pub mod key_index;
pub mod tree_index;
pub mod interface;
pub mod hash;
pub mod backend_hash;
pub mod restore;
pub mod watch;
pub mod clearlane;
pub mod etcd;
pub mod open;
pub mod unopened;
pub mod auto_compaction;
mod changes;
mod compaction;
mod config;
mod error;
mod kv_hasher;
mod range;
mod record_fetch;
mod tombstone_records;
mod txn_changes;

pub use auto_compaction::AutoCompaction;
pub use backend_hash::backend_hash;
pub use changes::{ChangeRun, Changes};
pub use clearlane::store::{SnapshotStore, StoreReadTxn, StoreState};
pub use clearlane::watch::SnapshotWatchableStore;
pub use compaction::CompactionJob;
pub use config::StoreConfig;
pub use error::{Error, Result};
pub use interface::{
    Change, ConsistentIndex, HashJob, KeyLeases, RangeOptions, RangeRecords, ReadTxn,
    RecordVisitor, Store, TxnResult, WriteTxn,
};
pub use key_index::{EncodedLen, KeyIndex, Version};
pub use kv_hasher::HashKv;
pub use open::open;
pub use restore::{LeasedKey, REVISION_MAX, RecoveryInfo};
pub use revision::{RecordKind, Revision, RevisionKey};
pub use tree_index::locked::{CompactionLock, LockedIndex};
pub use tree_index::persistent::{PersistentIndex, PersistentSnapshot};
pub use tree_index::{
    ChangeVisitor, DeletedRange, IndexCompaction, IndexSnapshot, KeySelection, KeyVisitor,
    SortedRun, SortedRunBuilder, TreeIndex, VersionVisitor,
};
pub use unopened::UnopenedStore;
pub use watch::WatchableKv;
