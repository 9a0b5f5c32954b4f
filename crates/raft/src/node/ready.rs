//! What comes out of the driver: things that its owner is to do.

use super::message::Message;
use crate::log::LogPosition;
use clearlane_wal::{Entry, HardState};

/// What is to be done. The parts may be done side by side, but for what is said here.
#[derive(Debug, Default)]
pub struct Ready {
    /// Goes to the write-ahead log; when it is durable,
    /// [`RaftNode::on_persisted`](super::RaftNode::on_persisted) is told its number. Appends are
    /// made durable in the order of their numbers.
    pub append: Option<ReadyAppend>,
    /// To be sent now, also while the append is under way. What is for one member is in order.
    pub messages: Vec<Message>,
    /// To be applied, in order; then [`RaftNode::on_applied`](super::RaftNode::on_applied). A
    /// change of the members goes to
    /// [`RaftNode::apply_conf_change`](super::RaftNode::apply_conf_change) before that.
    pub committed_entries: Vec<Entry>,
    /// Reads that may be answered once the index is applied.
    pub read_states: Vec<ReadState>,
    /// The leader or its term has changed.
    pub leadership: Option<Leadership>,
}

/// What must be on disk before this member may say so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadyAppend {
    /// Counts the appends.
    pub number: u64,
    /// The store is to be replaced by the one that came with a snapshot of this position. The log
    /// notes it before anything else of this append.
    pub install_snapshot: Option<LogPosition>,
    /// Entries; those with the same indexes that were appended before are void.
    pub entries: Vec<Entry>,
    /// The hard state, if it has changed.
    pub hard_state: Option<HardState>,
    /// Whether it must reach the disk. If not, a commit index alone has risen: it may be lost, and
    /// no request waits for a report that it is durable.
    pub must_sync: bool,
}

/// The answer to a read: from this index on, what is applied is fresh enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadState {
    /// The commit index of the leader, when a quorum still followed it.
    pub index: u64,
    /// The id that the read was asked with.
    pub context: Vec<u8>,
}

/// The leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The leader; 0 if none is known.
    pub leader: u64,
    /// The term.
    pub term: u64,
    /// What this member is.
    pub role: Role,
}

/// What a member is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Follows a leader, or waits for one.
    #[default]
    Follower,
    /// Asks whether it would be elected, without disturbing a leader.
    PreCandidate,
    /// Asks to be elected.
    Candidate,
    /// Leads.
    Leader,
}
