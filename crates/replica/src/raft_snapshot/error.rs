//! Errors of a transfer. They do not stop the member, because another attempt may succeed.

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the raft snapshot is damaged: {0}")]
    Damaged(String),
    #[error("{0} is not a raft snapshot")]
    NotSnapshot(String),
    #[error("the store is at entry {has}, but raft needs entry {promised}")]
    StoreTooOld { promised: u64, has: u64 },
    /// Reading or filling the store failed, or the stream of its records is damaged.
    #[error(transparent)]
    Engine(#[from] clearlane_engine::Error),
}

pub type Result<T> = std::result::Result<T, Error>;
