//! Multi-version concurrency control: revisions, the index over all keys, the store, and watching.
//!
//! Each change gets the next *revision* and a record of its own; the index says which record a key
//! had at which revision. In reading order:
//!
//! * [`revision`], [`key_index`], [`tree_index`]: one change, one key, all keys;
//! * [`interface`]: the store of any era. [`clearlane`] and [`etcd`] implement it, [`open()`] opens
//!   it;
//! * [`restore`]: from the records back to the index; [`unopened`]: a store that is only read;
//! * [`hash`], [`backend_hash()`]: whether two members, or a backend and its copy, hold the same;
//! * [`watch`]: which watchers are notified of a change; [`auto_compaction`]: when to compact.
//!
//! The crate starts no threads. In etcd: package `mvcc`.
//! See `docs/mvcc.md`, `docs/watch.md`, and `docs/eras.md` for what the eras differ in.

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
