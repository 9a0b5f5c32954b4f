//! What makes a member stop. What a client is told is in [`apply`](crate::apply).

/// The member cannot go on: what it has acknowledged and what it has do not agree any more, or
/// might not. Its owner stops the process and says why.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine has failed.
    #[error(transparent)]
    Engine(#[from] clearlane_engine::Error),
    /// The store has failed.
    #[error(transparent)]
    Store(#[from] clearlane_mvcc::Error),
    /// The leases have failed, or what the store has of them.
    #[error(transparent)]
    Lease(#[from] clearlane_lease::Error),
    /// The write-ahead log has failed.
    #[error(transparent)]
    Wal(#[from] clearlane_wal::Error),
    /// Raft was told what cannot be.
    #[error(transparent)]
    Raft(#[from] clearlane_raft::Error),
    /// An entry was agreed on by members that know more than this one.
    #[error("entry {index} of the log asks for what this member does not know")]
    UnknownRequest {
        /// Which entry.
        index: u64,
    },
    /// The others have removed this member. Its data is of no use any more.
    #[error(
        "this member has been removed from the cluster: it stops, and its data directory must not be \
         used again"
    )]
    Removed,
    /// A thread cannot be started.
    #[error("a thread cannot be started: {0}")]
    Thread(#[from] std::io::Error),
    /// A thread has panicked.
    #[error("thread {thread} has panicked")]
    Panicked {
        /// Which one.
        thread: String,
    },
    /// What was found on disk makes no sense.
    #[error("{what} is damaged: {why}")]
    Damaged {
        /// Which part.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// For what was found on disk.
    pub(crate) fn damaged(what: &'static str, why: impl Into<String>) -> Error {
        Error::Damaged { what, why: why.into() }
    }
}
