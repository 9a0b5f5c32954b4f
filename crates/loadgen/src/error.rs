//! What can go wrong, by the role that can do something about it.

/// One line for the user of the tool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// For the author of the workload, or the user that asked for a part of it that it has not.
    #[error("{0}")]
    Workload(String),
    /// For the operator of the server.
    #[error("{0}")]
    Server(String),
    /// For the user of this tool: a file, or this machine.
    #[error("{0}")]
    Local(String),
}

/// What a fallible operation returns here.
pub type Result<T> = std::result::Result<T, Error>;
