//! How do records become a log that survives, and what is found in it again?
//!
//! # The idea
//!
//! A log is a directory of *segments*, each a file of records, and only the last is written to. The
//! records that matter are entries, states and snapshots; each segment begins with what a reader
//! must know that starts there.
//!
//! ```text
//!   wal/0000000000000000-0000000000000000.wal
//!        crc 0 │ metadata │ snapshot 0 │ entry 1 │ state │ entry 2 │ entry 3 │ state │
//!   wal/0000000000000001-0000000000000004.wal
//!        crc c │ metadata │ state │ entry 4 │ snapshot 3 │ entry 5 │ 0000000000000000...
//! ```
//!
//! The crc of a record is that of all data from the beginning of the log to its end. One number
//! that runs through all segments: no record and no segment can be lost, doubled, exchanged or
//! taken from elsewhere without a sum that does not fit.
//!
//! # Reading on
//!
//! | file | its question |
//! |---|---|
//! | [`wire`] | how does an entry, a state, a change of members look as bytes? |
//! | [`files`] | what is asked of a disk, and what may it do? |
//! | `segment_name` | which segment holds which index? |
//! | `frame` | how does a record lie in a segment; is it torn, or damaged? |
//! | `log_validator` | what must a log not say? |
//! | `scan` | what do segments hold, from the first record to the last? |
//! | `open` | from which snapshot can one start, and what follows it? |
//! | `writer` | how does an append get to the disk? |
//! | `segment_length` | is the last segment as long as it was made? |
//! | [`group_commit`] | how does one sync serve all waiting appends? |
//!
//! # What holds
//!
//! * What was appended before a [`sync`](Wal::sync) that returned is there after a power cut, in
//!   order. Of what came later, a beginning may be there.
//! * A log that does not fit is refused, with file and offset, and stays as it was.
//! * The last segment may end in a torn write. That is cut off; see `open`.
//! * What would be refused when read is refused when written, before anything is.
//! * Each segment that is in use is locked, against another process and against this one.
//! * After a failed write or sync, every call returns that failure.
//!
//! # What the format cannot tell
//!
//! The rules and the reader of frames catch every single bit that flips in a record, except for
//! these. In all of them the record and what follows it are taken for torn, and cut:
//!
//! 1. **A length becomes zero at the end of a sector.** The length has one bit set, it flips, and
//!    the 8 bytes of the length are the last of a sector. That is what a power cut leaves that lost
//!    this sector and kept the next.
//! 2. **A record that does not fit and has a sector of zeros.** Its value may have held that many
//!    zeros from the start, or the flipped bit was the only one in its part of a sector.
//!
//! Both need the *last* segment: in earlier ones nothing can be torn. Larger damages that cannot be
//! told, either:
//!
//! 3. **The last records are missing** from the last segment, as whole sectors of zeros or because
//!    the file was cut. A disk that lies about a sync looks like a power cut before it. That the file
//!    was cut is [noticed](Wal::short_tail), and what was in it is not.
//! 4. **The newest segments are missing**, or the whole directory is an older copy.
//! 5. **The oldest segments are missing**, which is what a purge leaves. It is noticed if the
//!    snapshot from which one starts lay there.
//! 6. **Damage that keeps the sum.** Of changes over more than 32 bits, one in 4 billion fits.
//!
//! `tests/suite/damage.rs` flips every bit and expects exactly the first two; each of the others up to 5
//! has a test that shows it.
//!
//! # What etcd does that is left out
//!
//! * It prepares the next segment's file while the current one fills. Here the cut makes it: a few
//!   milliseconds, once in 64 MB.
//! * It writes pages of 4096 bytes. Here a write is whatever has gathered.
//! * Its reader accepts entries out of order as long as a slice holds them, states that fall, and
//!   anything behind a length of zero. Ours refuses what raft could not have written.
//! * It cannot say that the start snapshot is missing when it opens a log to write. Here that is an
//!   error always.

pub mod wire;
pub mod files;
mod error;
mod frame;
mod segment_length;
mod segment_name;
mod open;
mod log_validator;
mod scan;
mod segment_window;
mod writer;
pub mod group_commit;

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

/// The names of segments that are being made. They are removed when a log is opened.
const TEMPORARY_NAMES: [&str; 2] = ["0.tmp", "1.tmp"];

/// How a log is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// A segment that has reached this size is cut. It is allocated as a whole when it is begun, if
    /// the disk has room for it and for others.
    pub segment_bytes: u64,
    /// How many segments [`Wal::purge`] leaves although they are not needed; `None`: all.
    pub segments_max: Option<usize>,
}

impl Default for Options {
    /// As in etcd: 64 MB (of 1000 x 1000), and five segments.
    fn default() -> Options {
        Options { segment_bytes: 64_000_000, segments_max: Some(5) }
    }
}

/// What the log leaves free when it allocates ahead: the store needs room, too, above all to give some
/// back.
const FREE_BYTES_MIN: u64 = 64 << 20;
/// What it keeps for itself all the same, behind its end: a delete, too, is an entry, and a disk that is
/// full is one on which a client wants to delete.
const RESERVE_BYTES_MAX: u64 = 2 << 20;

impl Options {
    /// Allocates a segment that ends here as far as there is room, and a reserve in any case; says how far.
    /// It gets its whole length all the same, unless the file system refuses even that.
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

    /// Whether a segment has the length that is expected of the last one.
    fn has_full_length(&self, file: &dyn File) -> io::Result<bool> {
        Ok(file.length()? >= self.segment_bytes)
    }

    /// What is kept free behind the end of the log, for itself alone.
    fn reserve(&self) -> u64 {
        RESERVE_BYTES_MAX.min(self.segment_bytes / 32)
    }
}

/// Allocates up to there; if the free disk space was taken, the file grows as it is written. Says how far
/// there is room.
fn allocate(file: &mut dyn File, length: u64) -> io::Result<u64> {
    match file.allocate(length) {
        Ok(()) => Ok(length),
        Err(error) if is_out_of_space(&error) => Ok(0),
        Err(error) => Err(error),
    }
}

/// What raft wants to have on disk before it goes on: one `Ready` of the raft library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Append {
    /// A snapshot that was received, or made.
    pub snapshot: Option<WalSnapshot>,
    /// Entries, in order; the first may replace one that is not committed, and all after it.
    pub entries: Vec<Entry>,
    /// The state, if it changed.
    pub hard_state: Option<HardState>,
}

/// What a log holds from a snapshot on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The member and cluster of the log.
    pub metadata: Metadata,
    /// The last state.
    pub hard_state: HardState,
    /// The snapshots on record in the segments that were read, in order.
    pub snapshots: Vec<WalSnapshot>,
    /// The entries after the start, the first of them directly after it.
    pub entries: Vec<Entry>,
}
