//! Raft snapshots: one member sends its store to another that lags too far behind for the log.
//!
//! [`SnapshotSender`] turns a snapshot of the store into a stream. [`SnapshotReceiver`] fills a new
//! store next to the current one, in a [`StoreDir`]. Once the log has the snapshot record on disk,
//! [`StoreDir::promote`] makes the new store the current one. After a crash, [`open_at_start`]
//! makes the stores match the log.
//!
//! ```text
//!   sender                          receiver
//!   engine snapshot ─ stream ─▶ stage, fill ─▶ keep ─▶ snapshot record in the log ─▶ promote
//!                               └─ error: abandon       └─ raft rejects it: discard
//! ```
//!
//! * A store becomes current, or is kept as a received one, only if it is complete and on disk.
//! * The position of a raft snapshot is read from the engine snapshot that is sent. It may be later
//!   than the position that raft requested, and earlier than the current applied index.
//! * After an interrupted transfer, the receiver keeps no store.
//! * Both sides use a few megabytes of memory at most, whatever the size of the store.
//!
//! The crate `server` implements store directories on a disk. `docs/copies.md` describes the whole
//! transfer, all crashes, and how etcd sends its store.

mod error;
mod memory;
mod receiver;
mod sender;
mod start;
mod store_dir;

pub use error::{Error, Result};
pub use memory::MemoryStoreDir;
pub use receiver::{ReceivedSnapshot, SnapshotReceiver};
pub use sender::SnapshotSender;
pub use start::open_at_start;
pub use store_dir::{StagedStore, StoreDir};
