//! Errors of a transfer. They do not stop the member: another attempt may succeed.

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the copy is damaged: {0}")]
    Damaged(String),
    #[error("{0} is no snapshot")]
    NotSnapshot(String),
    #[error("the store is at {has}, and raft needs {promised}")]
    StoreTooOld { promised: u64, has: u64 },
    /// Reading or filling the store failed, or the stream of its records is damaged.
    #[error(transparent)]
    Engine(#[from] clearlane_engine::Error),
}

pub type Result<T> = std::result::Result<T, Error>;
