//! Errors of [`RaftNode`](super::RaftNode), grouped by who must act.

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    // The caller may retry, at this member or at another one.
    /// No member leads, as far as this member knows.
    #[error("there is no leader")]
    NoLeader,
    /// A limit of [`RaftNodeConfig`](super::RaftNodeConfig) is reached.
    #[error("too many proposals or ReadIndex requests are pending")]
    QueueFull,
    #[error("leadership is being transferred")]
    Transferring,

    // The sender's input is invalid.
    #[error("invalid raft message: {0}")]
    InvalidMessage(String),
    /// The change is not possible with the current members, so it was not made.
    #[error("invalid membership change: {0}")]
    InvalidConfChange(String),
    /// The message is from a node that is not a member.
    #[error("a message from {0}, which is not a member")]
    UnknownPeer(u64),

    // The process must stop.
    /// A leader relies on entries that this member has acknowledged but no longer has.
    #[error(
        "this member has lost entries of its log: leader {leader:x} has its acknowledgement of all \
         entries up to {acknowledged}, and its log ends at {last_index}; remove this member with \
         `member remove`, and add it again with `member add` and an empty data directory"
    )]
    LostLog { leader: u64, acknowledged: u64, last_index: u64 },
    #[error("raft stopped: {0}")]
    Fatal(String),
}
