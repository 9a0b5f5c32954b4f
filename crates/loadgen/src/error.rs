//! Errors, by the role that can act on them. Each is one line.

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// For the author of the workload, or for the user of a class that it does not have.
    #[error("{0}")]
    Workload(String),
    /// For the operator of the server.
    #[error("{0}")]
    Server(String),
    /// For the user of this tool: a file, or this machine.
    #[error("{0}")]
    Local(String),
}

pub type Result<T> = std::result::Result<T, Error>;
