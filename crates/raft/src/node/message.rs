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

    /// Returns whether this is a snapshot message. A raft snapshot of the store is sent with it.
    pub fn is_snapshot(&self) -> bool {
        self.0.get_msg_type() == MessageType::MsgSnapshot
    }

    /// Returns whether the message may carry entries of the log, or proposals. All other messages
    /// are small, and must not queue after long messages.
    pub fn can_be_large(&self) -> bool {
        matches!(self.0.get_msg_type(), MessageType::MsgAppend | MessageType::MsgPropose)
    }

    pub fn is_append(&self) -> bool {
        self.0.get_msg_type() == MessageType::MsgAppend && !self.0.entries.is_empty()
    }

    /// Returns an estimate of the bytes that the message takes while it waits to be sent.
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

    /// Returns whether this is a forwarded proposal. Any other message can arrive twice without
    /// harm. A proposal that arrives twice is proposed twice.
    pub fn is_proposal(&self) -> bool {
        self.0.get_msg_type() == MessageType::MsgPropose
    }

    /// Returns the proposed entries of a forwarded proposal. Entries that cannot be decoded are
    /// skipped.
    pub fn proposed_entries(&self) -> Vec<(EntryKind, Bytes)> {
        let entries = self.0.entries.iter().filter(|_| self.is_proposal());
        let proposed = entries.filter_map(|entry| {
            let kind = entry.get_entry_type();
            Some((EntryKind::from_raft(&kind), unwrap_data(kind, &entry.data)?))
        });
        proposed.collect()
    }

    /// Returns the position of the raft snapshot that is sent with a snapshot message.
    pub fn snapshot_position(&self) -> LogPosition {
        LogPosition::from_raft(self.0.get_snapshot().get_metadata())
    }

    /// Sets the position of the raft snapshot that is sent with a snapshot message.
    pub fn set_snapshot_position(&mut self, position: &LogPosition) {
        self.0.set_snapshot(position.to_raft());
    }

    /// Returns whether the message may be sent before this member's current state is on disk.
    /// `durable_term` is the newest term on disk.
    ///
    /// A forwarded message makes no claim about the log. A response to a heartbeat means "I still
    /// follow you", which is true before it is durable, so reads do not wait for a disk. A leader
    /// sends messages while it writes entries, but not before its term is durable. The only voter
    /// of a cluster elects itself immediately. If it sent messages and then crashed before the
    /// write, it could lead again in the same term.
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
            // Vote requests, votes and append responses promise that this member's state is on
            // disk. They wait in `pending_appends.rs`.
            _ => false,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        self.0.write_to_bytes().expect("a message without required fields can be written")
    }

    /// Decodes a message. [`RaftNode::step`](super::RaftNode::step) checks whether raft can process
    /// it.
    pub fn decode(bytes: &[u8]) -> Result<Message> {
        let message = eraftpb::Message::parse_from_bytes(bytes);
        message.map(Message).map_err(|error| Error::InvalidMessage(error.to_string()))
    }
}

/// Prints one line for golden scripts and logs: `1>2 Append term=3 at=4@2 entries=5..6 commit=4`.
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

/// Returns the id of the read to which a message belongs. For a vote request after a transfer of
/// leadership, returns raft's mark `CampaignTransfer`. For all other messages, returns an empty
/// context.
fn read_context(message: &eraftpb::Message) -> &[u8] {
    match message.get_msg_type() {
        MessageType::MsgReadIndex | MessageType::MsgReadIndexResp => {
            message.entries.first().map_or(&[], |entry| &entry.data)
        }
        _ => &message.context,
    }
}
