//! Errors of a read, grouped by what must act.

pub type Result<T> = std::result::Result<T, ReadIndexError>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadIndexError {
    // The client must try again, or elsewhere: etcd's words, for clients compare them.
    /// No answer came in time, as without a leader.
    #[error("etcdserver: request timed out")]
    TimedOut,
    /// The leader or the term has changed, and the question is lost.
    #[error("etcdserver: leader changed")]
    LeaderChanged,
    #[error("etcdserver: too many requests")]
    TooManyReaders,

    // The caller must act.
    #[error("a reader of that name is waiting already")]
    ReaderIsWaiting,
}
