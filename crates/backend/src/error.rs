//! The errors of a backend, grouped by who must act.

use bytes::Bytes;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    // The operator must act.
    #[error(
        "unknown era \"{name}\": allowed are 3.0, 3.1, 3.2, 3.4, 3.5, clearlane; 3.3 reads as 3.2, \
         and 3.6 and 3.7 read as 3.5"
    )]
    UnknownEra { name: String },

    // The caller has a bug. The rejected change was not made.
    #[error("record {key:?} is not above {last:?}: bucket key takes records in revision order")]
    OutOfOrder { key: Bytes, last: Bytes },
    #[error("record key of {len} bytes: a revision key has at most 18")]
    RecordKeyTooLong { len: usize },
    #[error("records of bucket key are removed by Backend::remove, not by a write transaction")]
    AppendOnly,

    // The process must stop if a write or a commit fails with one of these errors.
    /// An operation of the engine has failed, either in this call or in an earlier call. After a
    /// failed commit the engine's contents are unknown. After a failed read or defragmentation the
    /// backend remains usable.
    #[error("backend: {0}")]
    Engine(String),
    /// A write transaction was dropped before its end, so some of its changes may remain.
    #[error("a write transaction was dropped before its end; the backend accepts no more writes")]
    Abandoned,
}

impl From<clearlane_engine::Error> for Error {
    fn from(error: clearlane_engine::Error) -> Error {
        Error::Engine(error.to_string())
    }
}
