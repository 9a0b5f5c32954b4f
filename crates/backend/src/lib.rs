//! The backend: batched writes over an engine, and five ways to read beside them.
//!
//! A read has two sources, what is pending and what the engine has committed, and must see both as
//! of one moment. How it does that differs by [`Era`]: [`etcd`] has the four ways of etcd,
//! [`clearlane`] ours; [`Backend`] is the same for all. The crate starts no thread and reads no
//! clock.
//!
//! Invariants, the same for every era: a read transaction shows one state, which does not change
//! while it is open: all write transactions that had ended when it was opened (or got its lock),
//! each of them whole, and nothing of any other. What a crash leaves is the state that a commit
//! made durable, and the pre-commit hook's records describe exactly that state. After a failed
//! commit nothing more is written.
//!
//! See `docs/backend.md`, and `docs/eras.md` for what an expensive read holds up in each era.

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
    Backend, ComputedRecords, DroppedStates, RangeVisitor, ReadTx, Sizes, Value, WriteTx,
    WriteTxResult,
};
pub use record_key::RecordKey;
