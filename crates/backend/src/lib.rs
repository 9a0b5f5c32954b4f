//! The backend of Clearlane: it collects writes into batches for a storage engine, and has five
//! ways to read.
//!
//! A read has two sources: pending writes, and records that the engine has committed. It must see
//! both as of the same point in time. The [`Era`] decides how: [`etcd`] contains the four ways of
//! etcd, and [`clearlane`] contains ours. All implement [`Backend`]. The crate starts no thread and
//! reads no clock.
//!
//! ```text
//!   writer ──▶ pending writes ──commit──▶ engine
//!                   │                        │
//!                   └───── one state ────────┘
//!                              │
//!   read transaction ◀─────────┘
//! ```
//!
//! These invariants hold in every era:
//!
//! * A read transaction shows one state, which does not change while the transaction is open. The
//!   state contains all write transactions that had ended when the read transaction was opened (or
//!   when it got its lock). It contains all changes of these transactions, and no change of any
//!   other transaction.
//! * After a crash the store has the state of the last commit that became durable. The records of
//!   the pre-commit hook describe exactly that state.
//! * After a failed commit nothing more is written to the engine: every later write transaction and
//!   commit fails.
//!
//! See `docs/backend.md`, and `docs/eras.md` for the requests that an expensive read delays in each
//! era.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

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
