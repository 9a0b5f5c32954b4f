//! Why a copy was not sent or not received. The member lives on, and another attempt may do better.

/// Why a transfer ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What came is not what was sent, or not all of it.
    #[error("the copy is damaged: {0}")]
    Damaged(String),
    /// The message that is to go with the copy is none that says "take a copy".
    #[error("{0} is no snapshot")]
    NotSnapshot(String),
    /// Raft needs more than the store has.
    #[error("the store is at {has}, and raft needs {promised}")]
    StoreTooOld {
        /// What raft needs.
        promised: u64,
        /// Where the store is.
        has: u64,
    },
    /// The store that is read or filled has failed, or the stream of its records is damaged.
    #[error(transparent)]
    Engine(#[from] clearlane_engine::Error),
}

/// A result of this module.
pub type Result<T> = std::result::Result<T, Error>;
