//! The errors of a store, grouped by who must act.

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    // The client must act. The messages are etcd's, because clients compare them.
    /// The revision is below the compact revision. A compaction at or below the compact revision
    /// also fails with this error.
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    #[error("etcdserver: mvcc: required revision is a future revision")]
    FutureRevision,
    /// The key of a put is empty. Nothing has changed.
    #[error("etcdserver: key is not provided")]
    EmptyKey,

    // The caller must act.
    /// Another compaction is running. The caller must first finish or drop the job of that
    /// compaction.
    #[error("a compaction is already running")]
    CompactionBusy,
    #[error("unknown auto compaction mode {0:?}: allowed are periodic, revision")]
    CompactionMode(String),
    #[error("unknown auto compaction retention {retention:?}: allowed are {allowed}")]
    CompactionRetention {
        retention: String,
        /// The values that the policy accepts.
        allowed: &'static str,
    },
    /// The steps of a compaction must run on the store that scheduled it.
    #[error("the compaction was scheduled by another store")]
    ForeignJob,

    // The process must stop.
    /// Data in the backend is missing or cannot be decoded, for example a record that the index
    /// names.
    #[error("the store is damaged: {0}")]
    Damaged(String),
    #[error(transparent)]
    Backend(#[from] clearlane_backend::Error),
}
