//! What the driver answers when it cannot do what was asked.

/// The result of an operation of the driver.
pub type Result<T> = std::result::Result<T, Error>;

/// What the driver reports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    // The caller may try again, here or at another member.
    /// No member leads, as far as this member knows.
    #[error("there is no leader")]
    NoLeader,
    /// What is on its way has reached its bound.
    #[error("too much is proposed and not committed yet, or asked and not answered")]
    QueueFull,
    /// Leadership is being handed over.
    #[error("leadership is being transferred")]
    Transferring,

    // The sender's input is invalid.
    /// Not a message or a proposal that raft can take.
    #[error("not a message for raft: {0}")]
    InvalidMessage(String),
    /// The members cannot be changed like this. Nothing has changed.
    #[error("not a change that the members allow: {0}")]
    InvalidConfChange(String),
    /// It comes from a node that is no member.
    #[error("a message from {0}, which is not a member")]
    UnknownPeer(u64),

    // The process must stop.
    /// Raft cannot work on this.
    #[error("raft stopped: {0}")]
    Fatal(String),
}
