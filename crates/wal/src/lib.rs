//! Clearlane's write-ahead log: records that were appended and synced survive a power cut.
//!
//! A log is a directory of segments. A segment is a file of records, and only the last segment is
//! written to. The bytes, file names and record types are etcd's (`server/storage/wal`).
//!
//! * Records that were appended before a successful [`sync`](Wal::sync) survive a power cut, in
//!   order. Some of the records after them may also survive, without a gap.
//! * A log with an invalid record is rejected with an error that names the file and the offset. The
//!   log stays unchanged. A torn write at the end of the last segment is cut off, if it is after
//!   the [durable end](durable_end).
//! * An append that would make the next start fail is rejected before anything is written.
//! * Each segment that a [`Wal`] has read or written is locked against other processes and against
//!   other parts of this process. [`read`] locks nothing.
//! * After a failed write or sync, every later append, sync and purge fails with the same error.
//!   The server's files wait for free disk space before a write fails (`TimedFiles` in crate
//!   `server`).
//!
//! `docs/log.md` describes the format, the kinds of damage that the format cannot detect, and the
//! differences from etcd.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod wire;
pub mod files;
mod error;
mod durable_end;
mod frame;
mod segment_length;
mod segment_name;
mod open;
mod repair;
mod log_validator;
mod scan;
mod segment_window;
mod writer;
pub mod group_commit;

pub use durable_end::DURABLE_END_FILE;
pub use error::{Error, Result};
pub use open::{exists, read, valid_snapshots};
pub use segment_length::ShortTail;
pub use wire::{
    ConfChange, ConfChangeKind, ConfState, Entry, EntryKind, HardState, MemberContext, Metadata,
    WalSnapshot,
};
pub use writer::Wal;

use std::io;
use std::path::Path;

use crate::files::{File, FileSystem, is_out_of_space};

/// The names of unfinished segments. They are removed when a log is opened.
const TEMPORARY_NAMES: [&str; 2] = ["0.tmp", "1.tmp"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// A segment that has reached this size is finished, and the next one is started. A new segment
    /// is allocated completely if the disk has enough free space for it and for other files. On
    /// tmpfs only a part of it is allocated.
    pub segment_bytes: u64,
    /// [`Wal::purge`] removes unneeded segments until this number of segments is left. The number
    /// includes needed segments and the segment being written. If `None`, `purge` removes none.
    pub segments_max: Option<usize>,
    /// If true, etcd was the last to change the store of this log. etcd may have been killed while
    /// it repaired the last segment. So a last segment that is too short is accepted if it ends
    /// exactly with a record.
    pub etcd_wrote_last: bool,
    /// If true, a log that has lost synced records at its end is opened anyway. The log then ends
    /// before the first missing record.
    pub accept_loss: bool,
}

impl Default for Options {
    /// Returns etcd's values: 64 MB (of 1000 x 1000 bytes) and five segments.
    fn default() -> Options {
        Options {
            segment_bytes: 64_000_000,
            segments_max: Some(5),
            etcd_wrote_last: false,
            accept_loss: false,
        }
    }
}

/// Number of bytes of the disk that allocating ahead leaves free for the store, mainly so that the
/// store can delete records.
const FREE_BYTES_MIN: u64 = 64 << 20;
/// Maximum number of bytes that the log reserves for itself after its end, even on a full disk,
/// because deleting a record of the store also needs an entry in the log.
const RESERVE_BYTES_MAX: u64 = 2 << 20;

impl Options {
    /// Allocates a segment whose records end at `end`. Allocates the full size if the disk has
    /// enough space and is not memory, and at least the reserve. Returns the allocated length,
    /// which is 0 if the disk is full. The file gets its full length even if less is allocated,
    /// unless the disk is full.
    fn preallocate(
        &self,
        files: &dyn FileSystem,
        dir: &Path,
        file: &mut dyn File,
        end: u64,
    ) -> io::Result<u64> {
        let room = files.free_space(dir).saturating_sub(FREE_BYTES_MIN);
        // Filling a whole segment in memory with zeros would take longer than the rest of a start.
        let room = if file.is_in_memory() { 0 } else { room };
        let ahead = self.segment_bytes.min(end.saturating_add(room));
        let allocated = allocate(file, ahead.max(end + self.reserve()))?;
        if !self.has_full_length(file)? {
            match file.set_length(self.segment_bytes) {
                Err(error) if !is_out_of_space(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(allocated)
    }

    /// Returns whether the file has at least the configured segment size.
    fn has_full_length(&self, file: &dyn File) -> io::Result<bool> {
        Ok(file.length()? >= self.segment_bytes)
    }

    /// Returns the number of bytes to allocate after the end of the log, even if the disk is nearly
    /// full.
    fn reserve(&self) -> u64 {
        RESERVE_BYTES_MAX.min(self.segment_bytes / 32)
    }
}

/// Allocates space for the first `length` bytes of a file. Returns the allocated length, or 0 if
/// the disk is full. On a full disk, the file grows as it is written.
fn allocate(file: &mut dyn File, length: u64) -> io::Result<u64> {
    match file.allocate(length) {
        Ok(()) => Ok(length),
        Err(error) if is_out_of_space(&error) => Ok(0),
        Err(error) => Err(error),
    }
}

/// The parts that must become durable together. They are from one `Ready` of the raft library, or
/// they are the record of a snapshot that this member made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Append {
    /// A snapshot that was received, or that this member made. `None` if there is none.
    pub snapshot: Option<WalSnapshot>,
    /// The new entries in order. The first may replace an uncommitted entry and all entries after
    /// it.
    pub entries: Vec<Entry>,
    /// The new hard state, or `None` if it has not changed.
    pub hard_state: Option<HardState>,
}

/// The contents of a log after the snapshot from which it is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    pub metadata: Metadata,
    pub hard_state: HardState,
    /// The snapshot records in the segments that were read, in order. A snapshot record is omitted
    /// if a later entry has the same or a smaller index, because that snapshot is not valid.
    pub snapshots: Vec<WalSnapshot>,
    /// The entries after the snapshot from which the log is read, in order and without a gap.
    pub entries: Vec<Entry>,
}
