//! Refuses messages from peers that raft would not survive.
//!
//! An append with a gap, or a question without an id, stops the process in raft's own code. This is
//! a guard against damage and bugs, not against a member that wants to do harm: a false message
//! that is well-formed passes. Behind these
//! checks:
//!
//! * A message is to this member, from another member, and of a kind that members send.
//! * It has a term, except the two kinds that are forwarded to the leader.
//! * Entries of an append follow each other without a gap; their terms do not fall and are not
//!   above the message's. The entry before them has a term if it has an index: raft takes the term
//!   0 for "beyond the end", and would find it equal.
//! * No index is said to be committed or stored that cannot be.

use raft::eraftpb::{Entry, EntryType, Message, MessageType};
use raft::{Raft, StateRole};

use crate::convert;
use crate::log::{LogPosition, LogStorage};
use clearlane_wal::ConfState;

/// The error says what is wrong.
type CheckResult = std::result::Result<(), &'static str>;

/// Terms and indexes from outside are below this, so that adding one does not overflow.
pub(super) const NUMBER_MAX: u64 = 1 << 62;

const CONTEXT_BYTES_MAX: usize = 64;

fn ensure(holds: bool, otherwise: &'static str) -> CheckResult {
    if holds { Ok(()) } else { Err(otherwise) }
}

/// What can be seen from the message alone.
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
    ensure(!local, "a kind that members do not send")?;
    ensure(message.from != 0, "it is from member 0")?;
    let numbers = [message.term, message.index, message.log_term, message.commit];
    let more = [message.commit_term, message.reject_hint];
    let sane = numbers.iter().chain(&more).all(|number| *number <= NUMBER_MAX);
    ensure(sane, "a number beyond all bounds")?;
    ensure(message.request_snapshot == 0, "it asks for a snapshot, which members never do")?;
    let forwarded = matches!(kind, MessageType::MsgPropose | MessageType::MsgReadIndex);
    ensure(forwarded == (message.term == 0), "it must have a term, or must not")?;
    match kind {
        MessageType::MsgPropose => check_proposals(message),
        MessageType::MsgReadIndex | MessageType::MsgReadIndexResp => check_read(message),
        MessageType::MsgAppend => check_append(message),
        MessageType::MsgSnapshot => check_snapshot(message),
        _ => Ok(()),
    }
}

fn check_proposals(message: &Message) -> CheckResult {
    ensure(!message.entries.is_empty(), "it proposes nothing")?;
    message.entries.iter().try_for_each(|entry| {
        check_entry(entry)?;
        check_proposal(entry.get_entry_type(), &entry.data)
    })
}

/// Entries that may be proposed. An empty one is what a leader begins its term with, and raft
/// does not count its bytes. One that changes several members is not proposed: each member
/// would stop where it is applied.
pub(super) fn check_proposal(kind: EntryType, data: &[u8]) -> CheckResult {
    ensure(kind != EntryType::EntryConfChangeV2, "several changes of members in one entry")?;
    ensure(kind != EntryType::EntryNormal || !data.is_empty(), "a request without a word")
}

/// Refuses fields that the log would not keep.
fn check_entry(entry: &Entry) -> CheckResult {
    let known = entry.unknown_fields.fields.is_none();
    ensure(
        known && entry.context.is_empty() && !entry.sync_log,
        "an entry with more than we keep",
    )?;
    let readable = convert::unwrap_data(entry.get_entry_type(), &entry.data).is_some();
    ensure(readable, "a change that is not wrapped")
}

fn check_read(message: &Message) -> CheckResult {
    ensure(message.entries.len() == 1, "not the id of one read")?;
    check_context(&message.entries[0].data)
}

/// The id of a read. An empty one would not be answered: that is how other heartbeats look.
pub(super) fn check_context(context: &[u8]) -> CheckResult {
    ensure((1..=CONTEXT_BYTES_MAX).contains(&context.len()), "not the id of a read")
}

fn check_append(message: &Message) -> CheckResult {
    let before = (message.index, message.log_term);
    ensure((before.0 == 0) == (before.1 == 0), "the entry before has no term")?;
    let mut previous = before;
    for entry in &message.entries {
        check_entry(entry)?;
        ensure(entry.index == previous.0 + 1, "entries with a gap")?;
        let rises = entry.term >= previous.1.max(1) && entry.term <= message.term;
        ensure(rises, "an entry of an impossible term")?;
        previous = (entry.index, entry.term);
    }
    ensure(message.log_term <= message.term, "the entry before is of a later term")
}

fn check_snapshot(message: &Message) -> CheckResult {
    let position = LogPosition::from_raft(message.get_snapshot().get_metadata());
    let (index, term) = (position.index, position.term);
    ensure((1..=NUMBER_MAX).contains(&index), "a copy of an impossible index")?;
    ensure((1..=message.term).contains(&term), "a copy of an impossible term")?;
    ensure(!position.conf_state.voters.is_empty(), "a copy without members")?;
    check_conf_state(&position.conf_state)
}

/// Whether raft could have made this configuration, which raft assumes.
pub(super) fn check_conf_state(conf_state: &ConfState) -> CheckResult {
    let ConfState { voters, learners, voters_outgoing: outgoing, learners_next: next, .. } =
        conf_state;
    for ids in [voters, learners, outgoing, next] {
        let mut sorted = ids.clone();
        sorted.sort_unstable();
        ensure(!sorted.contains(&0), "0 is a member")?;
        ensure(sorted.windows(2).all(|pair| pair[0] != pair[1]), "a member twice")?;
    }
    let in_none = |ids: &[u64], others: &[&Vec<u64>]| {
        ids.iter().all(|id| others.iter().all(|other| !other.contains(id)))
    };
    ensure(in_none(learners, &[voters, outgoing, next]), "a learner that votes")?;
    ensure(in_none(next, &[voters]), "a voter that is to stop voting, and is not")?;
    ensure(next.iter().all(|id| outgoing.contains(id)), "a learner-to-be that never voted")?;
    ensure(!outgoing.is_empty() || !conf_state.auto_leave, "nothing to leave")?;
    ensure(outgoing.is_empty() || !voters.is_empty(), "a change to no voters")
}

/// What depends on this member's state. `asked` says whether its own request for votes in this
/// term can have left it.
pub(super) fn check_against_state(
    message: &Message,
    raft: &Raft<LogStorage>,
    asked: bool,
) -> CheckResult {
    let last = raft.raft_log.last_index();
    match message.get_msg_type() {
        // To transfer leadership to a member, raft sets that member as the sender.
        MessageType::MsgTransferLeader => Ok(()),
        // What this member has forwarded comes back if it leads by now and the other member knows.
        MessageType::MsgPropose | MessageType::MsgReadIndex => Ok(()),
        _ if message.from == raft.id => Err("it is from the member itself"),
        MessageType::MsgAppendResponse => {
            let counts = raft.state == StateRole::Leader && message.term == raft.term;
            let possible = message.reject || message.index <= last;
            ensure(possible || !counts, "it has what the leader does not have")
        }
        MessageType::MsgRequestVoteResponse => {
            let counts = raft.state == StateRole::Candidate && message.term == raft.term;
            ensure(asked || !counts, "an answer to what was not asked yet")
        }
        _ => Ok(()),
    }
}
