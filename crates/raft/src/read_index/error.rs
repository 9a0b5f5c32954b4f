//! Errors of a read, grouped by who must act.

pub type Result<T> = std::result::Result<T, ReadIndexError>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadIndexError {
    // The client must retry here or at another member. The texts are etcd's, because clients
    // compare them.
    /// No response arrived in time, for example because there is no leader.
    #[error("etcdserver: request timed out")]
    TimedOut,
    /// The leader or the term has changed, and the ReadIndex request may be lost.
    #[error("etcdserver: leader changed")]
    LeaderChanged,
    #[error("etcdserver: too many requests")]
    TooManyReaders,

    // The caller must act.
    #[error("a reader of that name is already waiting")]
    ReaderIsWaiting,
}
