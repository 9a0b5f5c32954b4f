//! The errors of the log, grouped by who must act.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::ShortTail;

/// Errors can be cloned, because a log that has failed returns its first error again.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    // The operator must act.
    #[error("{path}: a write-ahead log already exists")]
    Exists { path: PathBuf },
    #[error("{path}: there is no write-ahead log")]
    Missing { path: PathBuf },
    /// Other files prevent the creation of a log.
    #[error(
        "{path}: there is no write-ahead log, but files that another log or program left: {names}; \
         move them away, or choose another directory"
    )]
    NotEmpty { path: PathBuf, names: String },
    /// Another process, or another part of this process, has locked this segment.
    #[error("{path}: in use by another process or another part of this one")]
    Locked { path: PathBuf },
    /// The directory or a file in it cannot be used.
    #[error("{path}: cannot {doing}: {source}")]
    Path { path: PathBuf, doing: &'static str, source: Arc<io::Error> },
    /// The record at `offset` of a segment is not valid. Nothing was changed. The operator needs a
    /// backup or the data of the other members.
    #[error("{path}: damaged at offset {offset}: {detail}")]
    Corrupt { path: PathBuf, offset: u64, detail: String },
    /// The log ends before a record that was on disk, so it has lost synced records, which may have
    /// been acknowledged. Nothing was changed.
    #[error(
        "{path}: the log has lost its end: it ends at entry {last_index}, offset {offset} of \
         {segment}, but had been synced up to {durable}"
    )]
    LostEnd { path: PathBuf, segment: String, offset: u64, last_index: u64, durable: String },
    /// A record in the last segment is missing, although records of a later sync follow. Nothing
    /// was changed.
    #[error(
        "{path}: damaged at offset {offset}: the record after entry {last_index} is missing. It \
         had been synced: offset {later} has a later record"
    )]
    LostRecord { path: PathBuf, offset: u64, last_index: u64, later: u64 },
    /// The last segment is shorter than when it was created. Nothing was changed.
    #[error(
        "{}: the segment has {} bytes but was created with {}: its end is lost; the last remaining \
         entry is {}", short.path.display(), short.found, short.expected, short.last_index
    )]
    ShortSegment { short: ShortTail },
    /// The log has no record of the snapshot that reading should start from.
    #[error("{path}: no record of the snapshot at index {index}, term {term}")]
    NoSnapshot { path: PathBuf, index: u64, term: u64 },

    // The caller must act: the log cannot carry out the caller's request. Nothing was written.
    /// The records to write break a rule for the log's contents, or the log cannot be read from the
    /// requested start.
    #[error("rejected: {0}")]
    Refused(String),

    // The process must stop.
    /// A write or a sync failed, now or earlier. The contents of the disk are unknown. A second
    /// sync would not help, because it may report success for data that the first sync lost.
    #[error("{path}: cannot {doing}; the log accepts no more writes: {source}")]
    Failed { path: PathBuf, doing: &'static str, source: Arc<io::Error> },
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns whether the error reports that the log has lost its end, or a record of its last
    /// segment. Such a log can still be opened with [`Options::accept_loss`](crate::Options).
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
