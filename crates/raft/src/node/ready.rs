//! The driver's output: what its owner must do.

use super::message::Message;
use crate::log::LogPosition;
use clearlane_wal::{Entry, HardState};

/// The parts may be done concurrently, except for what is said here.
#[derive(Debug, Default)]
pub struct Ready {
    /// Goes to the write-ahead log; when it is durable,
    /// [`RaftNode::on_persisted`](super::RaftNode::on_persisted) is given its number. Appends are
    /// made durable in the order of their numbers.
    pub append: Option<ReadyAppend>,
    /// To be sent now, also while the append is in flight. Messages to one member are in order.
    pub messages: Vec<Message>,
    /// To be applied, in order; then [`RaftNode::on_applied`](super::RaftNode::on_applied). A
    /// change of the members goes to
    /// [`RaftNode::apply_conf_change`](super::RaftNode::apply_conf_change) before that.
    pub committed_entries: Vec<Entry>,
    /// Reads that may be answered once the index is applied.
    pub read_states: Vec<ReadState>,
    /// `None` if neither leader, term nor role has changed.
    pub leadership: Option<Leadership>,
}

/// What must be on disk before the messages that depend on it leave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadyAppend {
    /// Counts the appends.
    pub number: u64,
    /// The store is to be replaced by the one that came with a snapshot of this position. It is
    /// written to the log before anything else of this append.
    pub install_snapshot: Option<LogPosition>,
    /// Those with the same or higher indexes that were appended before are void.
    pub entries: Vec<Entry>,
    /// `None` if it has not changed.
    pub hard_state: Option<HardState>,
    /// Whether it must reach the disk. If not, only the commit index has risen: it may be lost, and
    /// no message waits for it.
    pub must_sync: bool,
}

/// The answer to a read: a store that has applied `index` is fresh enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadState {
    /// The commit index of the leader, when a quorum still followed it.
    pub index: u64,
    /// As given to [`RaftNode::read_index`](super::RaftNode::read_index).
    pub context: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// 0 if none is known.
    pub leader: u64,
    pub term: u64,
    pub role: Role,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    #[default]
    Follower,
    /// Asks whether it would be elected, without disturbing a leader.
    PreCandidate,
    Candidate,
    Leader,
}
