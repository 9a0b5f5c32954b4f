//! Errors of the log, grouped by what must act.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::ShortTail;

/// Can be cloned, because a log that failed repeats its error.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    // The operator must act.
    #[error("{path}: there is a write-ahead log already")]
    Exists { path: PathBuf },
    #[error("{path}: there is no write-ahead log")]
    Missing { path: PathBuf },
    /// Other files are in the way of a new log.
    #[error(
        "{path}: there is no write-ahead log, but files that another log or program left: {names}; \
         move them away, or choose another directory"
    )]
    NotEmpty { path: PathBuf, names: String },
    /// Another process, or another part of this one, has this segment open.
    #[error("{path}: in use elsewhere")]
    Locked { path: PathBuf },
    /// The directory or a file in it cannot be used.
    #[error("{path}: cannot {doing}: {source}")]
    Path { path: PathBuf, doing: &'static str, source: Arc<io::Error> },
    /// The record at `offset` of a segment does not fit. Nothing was changed; a backup or the other
    /// members must help.
    #[error("{path}: damaged at offset {offset}: {detail}")]
    Corrupt { path: PathBuf, offset: u64, detail: String },
    /// The log ends before a record that was on disk: it has lost acknowledged records. Nothing was
    /// changed.
    #[error(
        "{path}: the log has lost its end: it ends at entry {last_index}, offset {offset} of \
         {segment}, and was on disk up to {durable}"
    )]
    LostEnd { path: PathBuf, segment: String, offset: u64, last_index: u64, durable: String },
    /// A record in the last segment is missing, and records of a later sync follow. Nothing was
    /// changed.
    #[error(
        "{path}: damaged at offset {offset}: the record after entry {last_index} is missing, and \
         was on disk, since offset {later} has a record that was written later"
    )]
    LostRecord { path: PathBuf, offset: u64, last_index: u64, later: u64 },
    /// The last segment is shorter than it was made. Nothing was changed.
    #[error(
        "{}: the segment has {} bytes, and was made with {}: its end is lost; the last entry that \
         is left is {}", short.path.display(), short.found, short.expected, short.last_index
    )]
    ShortSegment { short: ShortTail },
    /// The log does not hold the snapshot from which it was to be read.
    #[error("{path}: no record of the snapshot at index {index}, term {term}")]
    NoSnapshot { path: PathBuf, index: u64, term: u64 },

    // The caller must act: it asked for what would damage the log. Nothing was written.
    /// The append does not follow from what is in the log.
    #[error("refused to save: {0}")]
    Refused(String),

    // The process must stop.
    /// A write or a sync failed, now or earlier. What is on the disk is not known, and a second
    /// sync would not tell: it may report success for data that the first lost.
    #[error("{path}: {doing} failed; the log accepts no more: {source}")]
    Failed { path: PathBuf, doing: &'static str, source: Arc<io::Error> },
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether [`Options::accept_loss`](crate::Options) would open the log.
    pub fn is_loss(&self) -> bool {
        use Error::{LostEnd, LostRecord, ShortSegment};
        matches!(self, LostEnd { .. } | LostRecord { .. } | ShortSegment { .. })
    }

    pub(crate) fn path(path: &Path, doing: &'static str, source: io::Error) -> Error {
        Error::Path { path: path.to_owned(), doing, source: Arc::new(source) }
    }

    pub(crate) fn corrupt(path: &Path, offset: u64, detail: impl Into<String>) -> Error {
        Error::Corrupt { path: path.to_owned(), offset, detail: detail.into() }
    }
}
