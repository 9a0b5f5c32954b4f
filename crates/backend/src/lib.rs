//! Where is it now? Batched writes over an engine, and five ways to read beside them.
//!
//! # The problem
//!
//! A commit that reaches the disk costs a fraction of a millisecond at best, so no store commits
//! every write on its own. A *backend* collects writes and commits them as a batch: every 100 ms,
//! or after 10,000 operations. (Nothing is lost by that: etcd's write-ahead log already has each
//! write, and the consistent index, saved in the same engine transaction as the data, says from
//! where to repeat.) Between two commits a write exists in memory only. Reads must see it there.
//!
//! So a read has two sources, what is *pending* and what the engine has committed, and it must
//! see them at one moment: if a commit moves records from one to the other while a read looks,
//! the read may find them in both places or in neither. How a read keeps the two together is
//! the whole story of etcd's read path, and each answer decides which threads wait for which:
//!
//! | era | etcd | how a read keeps pending and committed together | one slow read stops |
//! |---|---|---|---|
//! | [`v3_1_mutex`](etcd::v3_1_mutex) | 3.0, 3.1 | one mutex for reads, writes and commits | all threads |
//! | [`v3_2_read_tx`](etcd::v3_2_read_tx) | 3.2, 3.3 | a shared lock, held to the end of the read | writes, then all |
//! | [`v3_4_concurrent_read_tx`](etcd::v3_4_concurrent_read_tx) | 3.4 | a copy of what is pending, made under the lock | no thread |
//! | [`v3_5_cached_read_tx`](etcd::v3_5_cached_read_tx) | 3.5 on | a copy that reads share until the next write | no thread |
//! | [`read_tx`](clearlane::read_tx) | ours | one pointer to both | no thread |
//!
//! In the third and fourth row a read that opens still waits for a commit's sync, and every
//! write still waits for reads to finish copying; and what etcd has never moved off the lock, as a
//! hash of all records ([`begin_locked_read`](Backend::begin_locked_read)), stops writes as in the second row.
//! In the last row no thread waits for another.
//!
//! # The interface
//!
//! [`Backend`] is the same for all five: [`begin_read`](Backend::begin_read), [`begin_write`](Backend::begin_write),
//! [`commit_if_due`](Backend::commit_if_due), [`commit`](Backend::commit), [`remove`](Backend::remove) for
//! compaction, [`defragment`](Backend::defragment), [`snapshot`](Backend::snapshot). The crate starts no
//! thread and reads no clock. [`Era::open`] picks an era by name.
//!
//! # Invariants, the same for every era
//!
//! * A read transaction shows one state: all write transactions that had ended when it was
//!   opened (or when it got its lock), each of them whole, and nothing of any other.
//! * That state does not change while the read transaction is open.
//! * A state that was visible before a crash and is visible after it is the state that a commit
//!   made durable, and the pre-commit hook's records describe exactly that state.
//! * After a failed commit nothing more is written.
//!
//! # Where a read goes next
//!
//! Down to [`clearlane_engine`], for what is committed. It comes from `mvcc`, which turns a key
//! range at a revision into the record keys that are asked for here.

pub mod clearlane;
pub mod etcd;

mod config;
mod era;
mod error;
mod interface;
mod merge;
mod open;
mod record_key;

pub use clearlane::{BackendState, Defragmentation, SnapshotBackend, SnapshotReadTx};
pub use config::{CommitPut, Config, PreCommit};
pub use era::Era;
pub use error::{Error, Result};
pub use interface::{
    Backend, DroppedStates, RangeVisitor, ReadTx, Sizes, Value, WriteTx, WriteTxResult,
};
