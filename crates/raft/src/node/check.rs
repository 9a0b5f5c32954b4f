//! Rejects messages from peers that would make raft's own code panic.
//!
//! For example, an append with a gap, or a ReadIndex request without an id, stops the process in
//! tikv's code. The checks guard against damage and bugs, not against a malicious member: a false
//! message that is well-formed passes. A message that has passed these checks has the following
//! properties:
//!
//! * It is addressed to this member, and it has a kind that members send. It does not name this
//!   member as its sender, unless it was forwarded or requests a transfer of leadership.
//! * It has a term, except for the two kinds that are forwarded to the leader.
//! * Entries of an append follow each other without a gap. Their terms do not fall and are not
//!   above the message's term. If the entry before them has an index, it also has a term: raft uses
//!   the term 0 for a position beyond the end of its log, and would take this term for a match.
//! * Its terms and indexes are at most 2^62. The indexes of its entries follow from the index
//!   before them, so they may be a little larger. If it acknowledges entries, the leader has these
//!   entries. (`lost_log.rs` checks the commit index of a heartbeat.)

use raft::eraftpb::{Entry, EntryType, Message, MessageType};
use raft::{Raft, StateRole};

use crate::convert;
use crate::log::{LogPosition, LogStorage};
use clearlane_wal::ConfState;

/// The result of a check. The error describes the first violated rule.
type CheckResult = std::result::Result<(), &'static str>;

/// Terms and indexes from outside are at most this number, so that adding one does not overflow.
pub(super) const NUMBER_MAX: u64 = 1 << 62;

const CONTEXT_BYTES_MAX: usize = 64;

fn ensure(holds: bool, otherwise: &'static str) -> CheckResult {
    if holds { Ok(()) } else { Err(otherwise) }
}

/// Checks everything that depends only on the message.
pub(super) fn check_form(message: &Message) -> CheckResult {
    let kind = message.get_msg_type();
    let local = matches!(
        kind,
        MessageType::MsgHup
            | MessageType::MsgBeat
            | MessageType::MsgUnreachable
            | MessageType::MsgSnapStatus
            | MessageType::MsgCheckQuorum
    );
    ensure(!local, "a message type that members do not send")?;
    ensure(message.from != 0, "it is from member 0")?;
    let numbers = [message.term, message.index, message.log_term, message.commit];
    let more = [message.commit_term, message.reject_hint];
    let sane = numbers.iter().chain(&more).all(|number| *number <= NUMBER_MAX);
    ensure(sane, "a number is out of range")?;
    ensure(message.request_snapshot == 0, "it requests a snapshot, which members never do")?;
    let forwarded = matches!(kind, MessageType::MsgPropose | MessageType::MsgReadIndex);
    ensure(
        forwarded == (message.term == 0),
        "its term must be 0 only if it is a proposal or a ReadIndex request",
    )?;
    match kind {
        MessageType::MsgPropose => check_proposals(message),
        MessageType::MsgReadIndex | MessageType::MsgReadIndexResp => check_read(message),
        MessageType::MsgAppend => check_append(message),
        MessageType::MsgSnapshot => check_snapshot(message),
        _ => Ok(()),
    }
}

fn check_proposals(message: &Message) -> CheckResult {
    ensure(!message.entries.is_empty(), "it has no entries to propose")?;
    message.entries.iter().try_for_each(|entry| {
        check_entry(entry)?;
        check_proposal(entry.get_entry_type(), &entry.data)
    })
}

/// Rejects entries that must not be proposed. An empty entry marks the start of a leader's term,
/// and raft does not count it towards the limit of uncommitted bytes. An entry that changes several
/// members would stop every member that applies it.
pub(super) fn check_proposal(kind: EntryType, data: &[u8]) -> CheckResult {
    ensure(kind != EntryType::EntryConfChangeV2, "one entry changes several members")?;
    ensure(kind != EntryType::EntryNormal || !data.is_empty(), "an empty proposal")
}

/// Rejects an entry with fields that the log would not keep, or with a change that cannot be
/// decoded.
fn check_entry(entry: &Entry) -> CheckResult {
    let known = entry.unknown_fields.fields.is_none();
    ensure(
        known && entry.context.is_empty() && !entry.sync_log,
        "an entry has fields that the log does not store",
    )?;
    let readable = convert::unwrap_data(entry.get_entry_type(), &entry.data).is_some();
    ensure(readable, "a membership change in an unknown format")
}

fn check_read(message: &Message) -> CheckResult {
    ensure(message.entries.len() == 1, "it must have exactly one ReadIndex context")?;
    check_context(&message.entries[0].data)
}

/// Checks the length of a read's id. Raft would not answer a read with an empty id, because
/// ordinary heartbeats have an empty context.
pub(super) fn check_context(context: &[u8]) -> CheckResult {
    ensure((1..=CONTEXT_BYTES_MAX).contains(&context.len()), "invalid ReadIndex context")
}

fn check_append(message: &Message) -> CheckResult {
    let before = (message.index, message.log_term);
    ensure(
        (before.0 == 0) == (before.1 == 0),
        "only one of the previous entry's index and term is 0",
    )?;
    let mut previous = before;
    for entry in &message.entries {
        check_entry(entry)?;
        ensure(entry.index == previous.0 + 1, "the entries have a gap")?;
        let rises = entry.term >= previous.1.max(1) && entry.term <= message.term;
        ensure(rises, "the term of an entry is out of range")?;
        previous = (entry.index, entry.term);
    }
    ensure(message.log_term <= message.term, "the previous entry has a later term")
}

fn check_snapshot(message: &Message) -> CheckResult {
    let position = LogPosition::from_raft(message.get_snapshot().get_metadata());
    let (index, term) = (position.index, position.term);
    ensure((1..=NUMBER_MAX).contains(&index), "a raft snapshot with an impossible index")?;
    ensure((1..=message.term).contains(&term), "a raft snapshot with an impossible term")?;
    ensure(!position.conf_state.voters.is_empty(), "a raft snapshot without voters")?;
    check_conf_state(&position.conf_state)
}

/// Fails unless raft could have produced this configuration. Raft's own code assumes this of every
/// configuration.
pub(super) fn check_conf_state(conf_state: &ConfState) -> CheckResult {
    let ConfState { voters, learners, voters_outgoing: outgoing, learners_next: next, .. } =
        conf_state;
    for ids in [voters, learners, outgoing, next] {
        let mut sorted = ids.clone();
        sorted.sort_unstable();
        ensure(!sorted.contains(&0), "a member has the id 0")?;
        ensure(sorted.windows(2).all(|pair| pair[0] != pair[1]), "a member is listed twice")?;
    }
    let in_none = |ids: &[u64], others: &[&Vec<u64>]| {
        ids.iter().all(|id| others.iter().all(|other| !other.contains(id)))
    };
    ensure(in_none(learners, &[voters, outgoing, next]), "a learner is also a voter")?;
    ensure(in_none(next, &[voters]), "a voter is also a future learner")?;
    ensure(
        next.iter().all(|id| outgoing.contains(id)),
        "a future learner is not an outgoing voter",
    )?;
    ensure(
        !outgoing.is_empty() || !conf_state.auto_leave,
        "there is no joint configuration to leave",
    )?;
    ensure(outgoing.is_empty() || !voters.is_empty(), "a change removes all voters")
}

/// Checks everything that depends on this member's state. `asked` is false if this member cannot
/// have requested votes in its current term, because the term is not durable yet.
pub(super) fn check_against_state(
    message: &Message,
    raft: &Raft<LogStorage>,
    asked: bool,
) -> CheckResult {
    let last = raft.raft_log.last_index();
    match message.get_msg_type() {
        // In a request to transfer leadership, raft names the next leader as the sender.
        MessageType::MsgTransferLeader => Ok(()),
        // Raft forwards such a message under the id of its first sender. So it could return to its
        // sender, if the sender has become the leader since then. (A `RaftNode` forwards proposals
        // under its own id, and drops ReadIndex requests of other members.)
        MessageType::MsgPropose | MessageType::MsgReadIndex => Ok(()),
        _ if message.from == raft.id => Err("it is from the member itself"),
        MessageType::MsgAppendResponse => {
            let counts = raft.state == StateRole::Leader && message.term == raft.term;
            let possible = message.reject || message.index <= last;
            ensure(possible || !counts, "it acknowledges entries that the leader does not have")
        }
        MessageType::MsgRequestVoteResponse => {
            let counts = raft.state == StateRole::Candidate && message.term == raft.term;
            ensure(asked || !counts, "a vote for a request that was not sent yet")
        }
        _ => Ok(()),
    }
}
