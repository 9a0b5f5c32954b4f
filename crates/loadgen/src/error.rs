//! What can go wrong, by who can do something about it.

/// One line for the one who started the tool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// For who wrote the workload, or asked for a part of it that it has not.
    #[error("{0}")]
    Workload(String),
    /// For who runs the server.
    #[error("{0}")]
    Server(String),
    /// For who runs this tool: a file, or this machine.
    #[error("{0}")]
    Local(String),
}

/// What a fallible operation returns here.
pub type Result<T> = std::result::Result<T, Error>;
