//! Detects members that have lost entries of their log that they acknowledged.
//!
//! A leader counts what each member has acknowledged. If a member with a wiped or older disk
//! continued, an entry could count as committed while too few disks have it.
//!
//! * **The member.** Acknowledgements leave when the entries are on disk. A heartbeat commits at
//!   most what its receiver has acknowledged. So a commit index above the last entry proves the
//!   loss, in the member's term or a later one. An append may carry a larger commit index.
//! * **The leader.** A member that has all it acknowledged rejects no append at or below that
//!   index. Such a rejection is late, or the log is lost. Either way the acknowledged index stays,
//!   and the leader sends no earlier entries.

use raft::eraftpb::{Message, MessageType};
use raft::{Raft, StateRole};

use super::error::{Error, Result};
use crate::log::LogStorage;

/// What a leader has seen of members that lost acknowledged entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostLogReports {
    /// Rejections at or below the acknowledged index, since the start.
    pub count: u64,
    /// The newest one.
    pub last: Option<LostLog>,
}

/// A member that lacks entries it acknowledged to this leader.
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

/// Compares a member's rejection with the index that the member has acknowledged to this leader.
/// Returns the loss that the rejection shows, if any. Otherwise raises a hint below the
/// acknowledged index to that index.
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
