//! The output of [`RaftNode`](super::RaftNode): the work of its owner.

use super::message::Message;
use crate::log::LogPosition;
use clearlane_wal::{Entry, HardState};

/// The work that one call of [`RaftNode::ready`](super::RaftNode::ready) returns. The parts may be
/// processed concurrently, except where a field says otherwise.
#[derive(Debug, Default)]
pub struct Ready {
    /// Data that the owner writes to the write-ahead log, or `None` if there is none. If
    /// `must_sync` is true, the owner passes the number of the append to
    /// [`RaftNode::on_persisted`](super::RaftNode::on_persisted) when the append is durable.
    /// Appends must become durable in the order of their numbers.
    pub append: Option<ReadyAppend>,
    /// Messages to send now, even while the append is in flight. They are sorted by receiver. A
    /// message that has waited for an append follows newer messages to the same member.
    pub messages: Vec<Message>,
    /// Entries to apply in order. They are committed, and durable in this member's log. The owner
    /// passes a change of the members to
    /// [`RaftNode::apply_conf_change`](super::RaftNode::apply_conf_change). After applying an entry
    /// it calls [`RaftNode::on_applied`](super::RaftNode::on_applied).
    pub committed_entries: Vec<Entry>,
    /// Reads that may be answered once their index is applied.
    pub read_states: Vec<ReadState>,
    /// The new leadership, or `None` if the leader, the term and the role are unchanged.
    pub leadership: Option<Leadership>,
}

/// Data that must be on disk before the messages that depend on it are sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadyAppend {
    /// The number of the ready to which the append belongs. Numbers rise, but not every ready has
    /// an append.
    pub number: u64,
    /// If not `None`, the owner must replace the store with the received store of the raft snapshot
    /// at this position. The position is written to the log before everything else in this append.
    pub install_snapshot: Option<LogPosition>,
    /// Entries to write. Entries written earlier with the same or higher indexes are void.
    pub entries: Vec<Entry>,
    /// The hard state, or `None` if it has not changed.
    pub hard_state: Option<HardState>,
    /// If true, the append must be synced. If false, only the commit index has risen: it may be
    /// lost, and no message waits for it.
    pub must_sync: bool,
}

/// The response to a ReadIndex request: a store that has applied `index` is fresh enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadState {
    /// The commit index of the leader, from a time at which a quorum still followed it.
    pub index: u64,
    /// The context that was given to [`RaftNode::read_index`](super::RaftNode::read_index).
    pub context: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The leader's id, or 0 if none is known.
    pub leader: u64,
    pub term: u64,
    pub role: Role,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    #[default]
    Follower,
    /// The member checks whether it would be elected, without disturbing a leader.
    PreCandidate,
    Candidate,
    Leader,
}
