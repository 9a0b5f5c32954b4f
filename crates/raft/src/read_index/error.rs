//! Why a read was not let go on, grouped by what must act.

/// The result of an operation of a ReadIndex queue.
pub type Result<T> = std::result::Result<T, ReadIndexError>;

/// Why a reader is not released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadIndexError {
    // The client must try again, or elsewhere: etcd's words, for clients compare them.
    /// No answer came in time. Without a leader this is what happens.
    #[error("etcdserver: request timed out")]
    TimedOut,
    /// Another member leads, or the same one in another term; what was asked is lost.
    #[error("etcdserver: leader changed")]
    LeaderChanged,
    /// As many readers wait as may.
    #[error("etcdserver: too many requests")]
    TooManyReaders,

    // The caller must act.
    /// A reader of that name is waiting.
    #[error("a reader of that name is waiting already")]
    ReaderIsWaiting,
}
