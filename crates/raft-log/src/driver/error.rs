//! What the driver answers when it cannot do what was asked.

/// The result of an operation of the driver.
pub type Result<T> = std::result::Result<T, Error>;

/// What the driver reports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    // The caller may try again, here or at another member.
    /// Nobody leads, as far as this member knows.
    #[error("there is no leader")]
    NoLeader,
    /// So much is proposed and not committed that no more is taken.
    #[error("too much is proposed and not committed yet")]
    QueueFull,
    /// Leadership is being handed over.
    #[error("leadership is being transferred")]
    Transferring,

    // Somebody has sent nonsense.
    /// These bytes are no message, or not one that a member may send.
    #[error("not a message for raft: {0}")]
    Message(String),
    /// It comes from somebody who is no member.
    #[error("a message from {0}, who is not a member")]
    Stranger(u64),

    // The process must stop.
    /// Raft cannot work on this.
    #[error("raft stopped: {0}")]
    Stopped(String),
}
