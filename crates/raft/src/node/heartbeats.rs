//! Drops heartbeats, and answers to heartbeats, that a later one in the same poll makes redundant.
//!
//! Each question for a read index makes raft send a heartbeat with its id to every member:
//!
//! ```text
//!   this poll   asks 7 (member 2), 8 (member 3), 9 (this one)
//!   for 2       heartbeat 7, heartbeat 8, heartbeat 9         leaves: heartbeat 9
//! ```
//!
//! Raft keeps the questions in order, and an acknowledgement of one counts for all before it: a
//! member that followed this leader when 9 had been asked did so when 7 had been.
//!
//! Otherwise raft would send a message of entries again for each answer of a member that lags, and
//! a member that was stopped has thousands of heartbeats to answer.

use raft::eraftpb::MessageType;

use super::Message;

/// The messages are in the order of their receivers.
pub(super) fn keep_last_heartbeats(messages: &mut Vec<Message>) {
    let mut later: Option<(MessageType, u64, u64)> = None;
    messages.reverse();
    messages.retain(|Message(message)| {
        let kind = message.get_msg_type();
        if !matches!(kind, MessageType::MsgHeartbeat | MessageType::MsgHeartbeatResponse) {
            return true;
        }
        let is_needless = later == Some((kind, message.to, message.term));
        // A heartbeat without an id acknowledges no question.
        if !message.context.is_empty() {
            later = Some((kind, message.to, message.term));
        }
        !is_needless
    });
    messages.reverse();
}

#[cfg(test)]
mod tests {
    use raft::eraftpb;

    use super::*;

    #[test]
    fn the_last_question_speaks_for_those_before() {
        use MessageType::{MsgAppend, MsgHeartbeat, MsgHeartbeatResponse};
        for kind in [MsgHeartbeat, MsgHeartbeatResponse] {
            let append = (MsgAppend, 2, "");
            for (sent, kept) in [
                // The append stays, and so does what another member gets.
                (vec![(kind, 2, "7"), append, (kind, 2, "8"), (kind, 3, "7")], vec![1, 2, 3]),
                // One without a question replaces none.
                (vec![(kind, 2, "7"), (kind, 2, "")], vec![0, 1]),
                (vec![(kind, 2, ""), (kind, 2, "7")], vec![1]),
            ] {
                let message = |(msg_type, to, context): (MessageType, u64, &'static str)| {
                    let context = context.into();
                    Message(eraftpb::Message {
                        msg_type,
                        to,
                        term: 5,
                        context,
                        ..Default::default()
                    })
                };
                let sent: Vec<Message> = sent.into_iter().map(message).collect();
                let mut messages = sent.clone();
                keep_last_heartbeats(&mut messages);
                let kept: Vec<Message> =
                    kept.into_iter().map(|at: usize| sent[at].clone()).collect();
                assert_eq!(messages, kept);
            }
        }
    }
}
