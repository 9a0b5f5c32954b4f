//! Raft's messages between members.

use std::fmt;

use bytes::Bytes;
use protobuf::Message as _;
use raft::eraftpb::{self, MessageType};

use super::error::{Error, Result};
use crate::convert::{RaftForm as _, unwrap_data};
use crate::log::LogPosition;
use clearlane_wal::EntryKind;

/// A message from one member's raft to another's.
#[derive(Clone, Debug, PartialEq)]
pub struct Message(pub(super) eraftpb::Message);

impl Message {
    pub fn to(&self) -> u64 {
        self.0.to
    }

    pub fn from(&self) -> u64 {
        self.0.from
    }

    /// A snapshot message is sent together with a copy of the store.
    pub fn is_snapshot(&self) -> bool {
        self.0.get_msg_type() == MessageType::MsgSnapshot
    }

    /// Whether it may carry entries. All other messages are small, and must not queue
    /// behind long ones.
    pub fn can_be_large(&self) -> bool {
        matches!(self.0.get_msg_type(), MessageType::MsgAppend | MessageType::MsgPropose)
    }

    pub fn is_append(&self) -> bool {
        self.0.get_msg_type() == MessageType::MsgAppend && !self.0.entries.is_empty()
    }

    /// An estimate of its size while it waits to be sent.
    pub fn bytes(&self) -> u64 {
        let entries = self.0.entries.iter().map(|entry| entry.data.len() as u64 + 64);
        64 + entries.sum::<u64>()
    }

    pub fn is_vote_request(&self) -> bool {
        matches!(
            self.0.get_msg_type(),
            MessageType::MsgRequestVote | MessageType::MsgRequestPreVote
        )
    }

    /// A forwarded proposal. Every other message may arrive twice; a proposal that does is proposed
    /// twice.
    pub fn is_proposal(&self) -> bool {
        self.0.get_msg_type() == MessageType::MsgPropose
    }

    /// Skips entries that cannot be read.
    pub fn proposed_entries(&self) -> Vec<(EntryKind, Bytes)> {
        let entries = self.0.entries.iter().filter(|_| self.is_proposal());
        let proposed = entries.filter_map(|entry| {
            let kind = entry.get_entry_type();
            Some((EntryKind::from_raft(&kind), unwrap_data(kind, &entry.data)?))
        });
        proposed.collect()
    }

    /// Of a snapshot: the position of the copy that goes with it.
    pub fn snapshot_position(&self) -> LogPosition {
        LogPosition::from_raft(self.0.get_snapshot().get_metadata())
    }

    /// Of a snapshot: the position of the copy that is sent with it.
    pub fn set_snapshot_position(&mut self, position: &LogPosition) {
        self.0.set_snapshot(position.to_raft());
    }

    /// Whether it may leave before what this member knows is on disk, up to `durable_term`.
    ///
    /// A forwarded message says nothing about the log. An answer to a heartbeat says "I still
    /// follow you", which is true before it is durable, so reads do not wait for a disk. A leader
    /// sends while it writes, but not before its election is durable: the only voter of a cluster
    /// elects itself at once, and could lead twice in one term.
    pub(super) fn can_send(&self, durable_term: u64) -> bool {
        match self.0.get_msg_type() {
            MessageType::MsgPropose
            | MessageType::MsgReadIndex
            | MessageType::MsgTransferLeader
            | MessageType::MsgHeartbeatResponse => true,
            MessageType::MsgAppend
            | MessageType::MsgHeartbeat
            | MessageType::MsgSnapshot
            | MessageType::MsgTimeoutNow
            | MessageType::MsgReadIndexResp => self.0.term <= durable_term,
            _ => false,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        self.0.write_to_bytes().expect("a message without required fields can be written")
    }

    /// Whether raft can take it is checked by
    /// [`RaftNode::step`](super::RaftNode::step).
    pub fn decode(bytes: &[u8]) -> Result<Message> {
        let message = eraftpb::Message::parse_from_bytes(bytes);
        message.map(Message).map_err(|error| Error::InvalidMessage(error.to_string()))
    }
}

/// One line, for golden scripts and logs: `1>2 Append term=3 at=4@2 entries=5..6 commit=4`.
impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = &self.0;
        let name = format!("{:?}", message.get_msg_type());
        write!(f, "{}>{} {}", message.from, message.to, &name["Msg".len()..])?;
        write!(f, " term={}", message.term)?;
        match (message.index, message.log_term) {
            (0, 0) => {}
            (index, 0) => write!(f, " at={index}")?,
            (index, term) => write!(f, " at={index}@{term}")?,
        }
        if let (Some(first), Some(last)) = (message.entries.first(), message.entries.last())
            && first.index > 0
        {
            write!(f, " entries={}..{}", first.index, last.index)?;
        }
        if message.commit > 0 {
            write!(f, " commit={}", message.commit)?;
        }
        if message.reject {
            write!(f, " reject hint={}", message.reject_hint)?;
        }
        if self.is_snapshot() {
            let position = self.snapshot_position();
            write!(f, " snapshot={}@{}", position.index, position.term)?;
        }
        let context = read_context(message);
        if context.is_empty() { Ok(()) } else { write!(f, " context={}", context.escape_ascii()) }
    }
}

/// The id of the read that a message is about.
fn read_context(message: &eraftpb::Message) -> &[u8] {
    match message.get_msg_type() {
        MessageType::MsgReadIndex | MessageType::MsgReadIndexResp => {
            message.entries.first().map_or(&[], |entry| &entry.data)
        }
        _ => &message.context,
    }
}
