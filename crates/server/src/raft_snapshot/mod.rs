//! How does a copy of the store reach a member that is too far behind?
//!
//! # The problem
//!
//! The log is not kept forever. A member that was away for long asks for entries that no member has any
//! more, and a new one has nothing at all. Such a member is sent the store instead: gigabytes, from a
//! store that goes on changing, to a member that may be killed at any moment, and must never be left
//! with half a store.
//!
//! # The idea
//!
//! A [`StoreDir`] has room for several stores. One is the current one. What comes from another member
//! goes into a new one beside it, and takes its place only when it is whole and the log says so.
//!
//! ```text
//!   leader                                    follower
//!   raft: "2 needs what is at 5,000 or later"
//!   Sender: a snapshot of the store, 7,310
//!     header: the message, now of 7,310 ────▶ Receiver: a new store beside the current one
//!     records, 256 KiB a time ──────────────▶   filled, 1 MiB a commit
//!     trailer ──────────────────────────────▶   whole? and does it say of itself that it is
//!                                               at 7,310?  kept as "the copy at 7,310"
//!                                             raft takes the message: "install 7,310"
//!                                             log: snapshot record 7,310, synced
//!                                             Vault::promote(7,310)
//! ```
//!
//! The position of a copy is read from the copy, in the same snapshot of the engine from which the
//! records come. It is not what raft promised, which may be older, nor what the member has applied by
//! now, which may be newer: with either of them the follower would apply an entry twice, or never.
//!
//! # After a crash
//!
//! The snapshot record in the log is the moment of installation. [`open_at_start`] brings the stores in
//! line with it:
//!
//! | killed | what is found | what is done |
//! |---|---|---|
//! | while receiving | a store that nothing names | removed; the leader begins again |
//! | when kept, before the record | a copy beyond the log | discarded; the leader begins again |
//! | behind the record | a copy at the record's index, an older current store | promoted |
//! | when promoted | a current store at the record's index | nothing |
//!
//! # What holds
//!
//! * A store is current, or kept as a copy, only if it is whole and on disk.
//! * A transfer that breaks leaves nothing that another one could stumble over.
//! * Both sides keep a few megabytes in memory at most, whatever the size of the store.
//!
//! # What etcd does that is left out
//!
//! It sends the database file, page by page, free pages too, and without a checksum: the connection
//! is trusted to deliver it. Our stream knows records, and a member with another engine takes it.

mod directory;
mod error;
mod memory;
mod receiver;
mod sender;
mod start;
mod store_dir;

pub use directory::DiskStoreDir;
pub use error::{Error, Result};
pub use memory::MemoryStoreDir;
pub use receiver::{ReceivedSnapshot, SnapshotReceiver};
pub use sender::SnapshotSender;
pub use start::open_at_start;
pub use store_dir::{StagedStore, StoreDir};
