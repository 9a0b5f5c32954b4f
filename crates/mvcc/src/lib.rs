//! Which version? Revisions, the history of each key, the index over all keys, and the store.
//!
//! # The problem
//!
//! etcd never overwrites. Each change gets the next *revision* and a record of its own, so that a
//! reader can ask for the past and a watcher can be sent what it missed. The price is that a key is
//! no longer where its value is: an index must say which record is the key's newest one, or was at
//! revision 7.
//!
//! ```text
//!   put a=1        record 2.0    a     index   a ─▶ 2.0
//!   put b=1        record 3.0    b             b ─▶ 3.0
//!   put a=2        record 4.0    a             a ─▶ 2.0 4.0
//!   delete a       record 5.0t   a             a ─▶ 2.0 4.0 5.0t
//!
//!   range a..z at 4:  index says 4.0 and 3.0, the backend has those records
//!   range a..z at 5:  index says 3.0
//! ```
//!
//! # The parts, in reading order
//!
//! * [`revision`]: the number of a change, and the record keys that sort as revisions do.
//! * [`key_index`]: what happened to one key, and what a compaction leaves of it.
//! * [`tree_index`]: all keys in order, in two designs: etcd's tree under a lock, and a persistent
//!   one of which a snapshot is a pointer.
//! * [`store`]: the index and the records as one thing, in the five eras of reading beside a writer.
//! * [`hash`]: do two members hold the same?
//! * [`backend_hash`]: does a backend hold what it held?
//! * [`watch`]: which watchers are notified when something changes, and when?
//! * [`auto_compaction`]: when to compact, if no client asks.
//! * [`workers`]: the caller's threads, for what is too much for one.
//!
//! # Who waits for whom
//!
//! | era | what an open read stops |
//! |---|---|
//! | 3.1 | all other requests |
//! | 3.2 | the end of the next write, with `revMu` held, and behind that all other requests |
//! | 3.4, 3.5 | the next commit for a snapshot or compaction, and behind that all other requests |
//! | `clearlane` | no request |
//!
//! The whole table is on top of [`store`]. What the backend's locks add is on top of
//! [`clearlane_backend`].
//!
//! # Where a read goes next
//!
//! Down to [`clearlane_backend`], which has the records. It comes from the member, which knows who
//! may read and how fresh the answer must be.

pub mod revision;
pub mod key_index;
pub mod tree_index;
pub mod workers;
pub mod interface;
pub mod hash;
pub mod backend_hash;
pub mod restore;
pub mod watch;
pub mod clearlane;
pub mod etcd;
pub mod open;
pub mod auto_compaction;
mod compaction;
mod config;
mod error;
mod kv_hasher;
mod range;
mod record_fetch;
mod txn_changes;

pub use auto_compaction::AutoCompaction;
pub use backend_hash::BackendHashJob;
pub use clearlane::read_txn::{StoreReadTxn, StoreState};
pub use clearlane::store::SnapshotStore;
pub use clearlane::watch::SnapshotWatchableStore;
pub use clearlane::write_txn::SnapshotWriteTxn;
pub use compaction::CompactionJob;
pub use config::StoreConfig;
pub use error::{Error, Result};
pub use interface::{
    Change, ConsistentIndex, HashJob, KeyLeases, LengthVisitor, NoLeases, RangeOptions,
    RangeRecords, ReadTxn, RecordVisitor, Store, TxnResult, WriteTxn,
};
pub use key_index::{EncodedLen, KeyIndex, Version};
pub use kv_hasher::HashKv;
pub use open::{IndexKind, StoreParts, open};
pub use restore::{LeasedKey, RecoveryInfo};
pub use revision::{InvalidRevisionKey, RecordKind, Revision, RevisionKey};
pub use tree_index::locked::{CompactionLock, LockedIndex};
pub use tree_index::persistent::{
    CompactionPlan, Dismantling, PersistentIndex, PersistentSnapshot,
};
pub use tree_index::{
    ChangeVisitor, IndexCompaction, IndexSnapshot, SortedRun, SortedRunBuilder, TreeIndex,
    VersionVisitor,
};
pub use watch::WatchableKv;
pub use workers::{Job, SerialWorkers, Workers};
