//! Detects members whose logs have lost entries that they acknowledged.
//!
//! A leader records the highest index that each member has acknowledged. If a member with a wiped
//! or older disk continued, the leader could commit an entry that too few disks have.
//!
//! * **On the member.** A member sends acknowledgements when the entries are on disk. A heartbeat's
//!   commit index is at most the index that its receiver has acknowledged. So a heartbeat of the
//!   member's term or a later term proves the loss if its commit index is above the member's last
//!   entry. An append proves nothing, because it may carry a larger commit index.
//! * **On the leader.** A member that has all entries it acknowledged rejects no append at or below
//!   the acknowledged index. So either such a rejection is an old message that arrives late, or the
//!   member has lost entries. In both cases the leader keeps the acknowledged index and sends no
//!   earlier entries.

use raft::eraftpb::{Message, MessageType};
use raft::{Raft, StateRole};

use super::error::{Error, Result};
use crate::log::LogStorage;

/// The rejections that a leader has counted. Each of them shows lost entries, unless it is an old
/// message that arrived late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostLogReports {
    /// Number of rejections at or below the acknowledged index, since this member started.
    pub count: u64,
    /// The loss that the newest of these rejections shows, or `None` if there was none.
    pub last: Option<LostLog>,
}

/// A member that lacks entries it acknowledged to this leader, unless its rejection is an old
/// message that arrived late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostLog {
    pub member: u64,
    /// The member has acknowledged all entries up to this index.
    pub acknowledged: u64,
    /// The member's log agrees with the leader's at most up to this index.
    pub found: u64,
}

/// Fails with [`Error::LostLog`] if the message proves that this member's log is incomplete.
pub(super) fn check_heartbeat(message: &Message, raft: &Raft<LogStorage>) -> Result<()> {
    let last_index = raft.raft_log.last_index();
    let is_heartbeat = message.get_msg_type() == MessageType::MsgHeartbeat;
    if is_heartbeat && message.term >= raft.term && message.commit > last_index {
        let (leader, acknowledged) = (message.from, message.commit);
        return Err(Error::LostLog { leader, acknowledged, last_index });
    }
    Ok(())
}

/// Compares a member's rejection of an append with the index that the member has acknowledged to
/// this leader. If the rejection's hint is below the acknowledged index, there are two cases. If
/// the rejected append is at or below the acknowledged index, returns the loss. Otherwise raises
/// the hint to the acknowledged index and returns `None`. Returns `None` for all other messages.
pub(super) fn check_rejection(message: &mut Message, raft: &Raft<LogStorage>) -> Option<LostLog> {
    let counts = raft.state == StateRole::Leader && message.term == raft.term;
    let is_rejection = message.get_msg_type() == MessageType::MsgAppendResponse && message.reject;
    if !counts || !is_rejection {
        return None;
    }
    let (found, acknowledged) = (message.reject_hint, raft.prs().get(message.from)?.matched);
    if found >= acknowledged {
        return None;
    }
    if message.index > acknowledged {
        message.reject_hint = acknowledged;
        message.log_term = raft.raft_log.term(acknowledged).unwrap_or(0);
        return None;
    }
    Some(LostLog { member: message.from, acknowledged, found })
}
