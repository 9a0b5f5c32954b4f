//! The write-ahead log: what is appended and synced survives a power cut.
//!
//! A log is a directory of segments, files of records of which only the last is written to. Bytes,
//! names and record types are etcd's (`server/storage/wal`).
//!
//! * Records appended before a successful [`sync`](Wal::sync) survive a power cut, in order. A
//!   prefix of later records may also survive.
//! * A log that does not fit is refused, with file and offset, and stays as it was. A torn write at
//!   the end of the last segment is cut off, if it is after the [durable end](durable_end).
//! * An append that a start would refuse fails before anything is written.
//! * Each segment in use is locked, against other processes and within this one.
//! * After a failed write or sync, every later append, sync and purge returns that failure.
//!
//! `docs/log.md` has the format, the damage that the format cannot tell, and what differs from
//! etcd.

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
    /// A segment that has reached this size is cut. It is allocated as a whole when it is begun, if
    /// the disk has room for it and for others.
    pub segment_bytes: u64,
    /// How many segments [`Wal::purge`] leaves although they are not needed; `None`: all.
    pub segments_max: Option<usize>,
    /// If true, etcd changed the store of this log last. It may have been killed while it
    /// repaired the last segment, which is short then.
    pub etcd_wrote_last: bool,
    /// If true, a log that has lost acknowledged records at its end is opened, and ends where its
    /// first record is missing.
    pub accept_loss: bool,
}

impl Default for Options {
    /// As in etcd: 64 MB (of 1000 x 1000), and five segments.
    fn default() -> Options {
        Options {
            segment_bytes: 64_000_000,
            segments_max: Some(5),
            etcd_wrote_last: false,
            accept_loss: false,
        }
    }
}

/// Allocating ahead leaves this much of the disk free for the store, above all so that it can
/// delete.
const FREE_BYTES_MIN: u64 = 64 << 20;
/// The log's own reserve behind its end, kept on a full disk, too: a delete is an entry as well.
const RESERVE_BYTES_MAX: u64 = 2 << 20;

impl Options {
    /// Allocates a segment that ends at `end`, as far as there is room, and the reserve in any
    /// case. Returns how far. The file has its whole length all the same, unless the file system
    /// refuses.
    fn preallocate(
        &self,
        files: &dyn FileSystem,
        dir: &Path,
        file: &mut dyn File,
        end: u64,
    ) -> io::Result<u64> {
        let room = files.free_space(dir).saturating_sub(FREE_BYTES_MIN);
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

    /// Whether the file has at least the configured segment size.
    fn has_full_length(&self, file: &dyn File) -> io::Result<bool> {
        Ok(file.length()? >= self.segment_bytes)
    }

    /// Bytes allocated behind the end of the log even if the disk is nearly full.
    fn reserve(&self) -> u64 {
        RESERVE_BYTES_MAX.min(self.segment_bytes / 32)
    }
}

/// Returns how far the file is allocated: 0 if the disk is full, and the file grows as it is
/// written.
fn allocate(file: &mut dyn File, length: u64) -> io::Result<u64> {
    match file.allocate(length) {
        Ok(()) => Ok(length),
        Err(error) if is_out_of_space(&error) => Ok(0),
        Err(error) => Err(error),
    }
}

/// What must be on disk together: one `Ready` of the raft library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Append {
    /// Received, or made by this member.
    pub snapshot: Option<WalSnapshot>,
    /// In order; the first may replace an uncommitted one and all after it.
    pub entries: Vec<Entry>,
    /// `None` if it has not changed.
    pub hard_state: Option<HardState>,
}

/// The contents of a log from a snapshot on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    pub metadata: Metadata,
    pub hard_state: HardState,
    /// Those on record in the segments that were read, in order.
    pub snapshots: Vec<WalSnapshot>,
    /// The first directly follows the start.
    pub entries: Vec<Entry>,
}
