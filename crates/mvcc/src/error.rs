//! The errors of a store, grouped by the party that must act.

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    // The client must act: etcd's words, for clients compare them.
    /// The revision lies before the compact revision, or is compacted already.
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    #[error("etcdserver: mvcc: required revision is a future revision")]
    FutureRevision,
    /// A put without a key. Nothing has changed.
    #[error("etcdserver: key is not provided")]
    EmptyKey,

    // The caller must act.
    /// A compaction is still at work; its steps come first.
    #[error("a compaction is already under way")]
    CompactionBusy,
    #[error("unknown auto compaction mode {0:?}: allowed are periodic, revision")]
    CompactionMode(String),
    #[error("unknown auto compaction retention {retention:?}: allowed are {allowed}")]
    CompactionRetention {
        retention: String,
        /// What the policy takes.
        allowed: &'static str,
    },
    /// The steps of a compaction are for the store that has scheduled it.
    #[error("the compaction was scheduled by another store")]
    ForeignJob,

    // The process must stop.
    /// The index names a record that the backend does not have, or cannot be read.
    #[error("the store is damaged: {0}")]
    Damaged(String),
    #[error(transparent)]
    Backend(#[from] clearlane_backend::Error),
}
