//! What was agreed? The write-ahead log, in etcd's format, and raft, which decides what is in it.
//!
//! # The idea
//!
//! A member of a raft cluster makes promises: "I have this entry", "in this term my vote went to
//! him". It may break none of them, also if its power fails in between. So it writes each down, at
//! the end of a file, and speaks only when the disk has it. That file is the log; everything else
//! that a member knows can be made again from it and from the last committed state of the engine.
//!
//! ```text
//!   raft     "append 7, 8; term 3"            "9"        "10; commit 8"
//!               │                               │           │
//!   wal      ───┴─ write ─ sync ────────────────┴───────────┴─ write ─ sync ───▶ time
//!                            │                                            │
//!   promise                  └─ "I have up to 8"                          └─ "up to 10"
//! ```
//!
//! Bytes on disk are etcd's, to the bit that matters: its tools read our log, and we read its.
//!
//! # Where to read on
//!
//! | module | its question |
//! |---|---|
//! | [`wire`] | how does an entry, a state, a change of members look as bytes? |
//! | [`files`] | what do we ask of a disk, and what may it do to us? |
//! | [`wal`] | how do records become a log that survives, and what is found in it again? |
//! | [`wal::group_commit`] | how does one sync serve all who wait? |
//! | [`driver`] | who leads, and what is committed? raft, as a state machine that does nothing itself |
//!
//! # What holds
//!
//! * Nothing here starts a thread, reads a clock or draws a random number that a caller did not
//!   seed. [`wal::group_commit::run_writer`] is a loop that blocks; who calls it supplies the thread.
//! * Every touch of a disk goes through [`files::FileSystem`]. A simulation gives another disk.
//! * After a failed write or sync nothing more is written: see [`Error::Failed`].
//! * What a caller or a file holds cannot cause a panic.
//!
//! # What is left out
//!
//! Copies of the store for members that are too far behind: the driver says when one is to be sent
//! and installed, and the data itself is not this crate's.

pub mod wire;
pub mod files;
pub mod wal;
pub mod driver;
mod log;
mod error;

pub use error::{Error, Result};
pub use log::LogPosition;
pub use wire::{
    ConfChange, ConfChangeKind, ConfState, Entry, EntryKind, HardState, MemberContext, Metadata,
    WalSnapshot,
};
