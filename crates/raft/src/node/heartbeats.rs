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
    let mut reversed = std::mem::take(messages);
    reversed.reverse();
    reversed.retain(|Message(message)| {
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
    reversed.reverse();
    *messages = reversed;
}

#[cfg(test)]
mod tests {
    use raft::eraftpb;

    use super::*;

    fn message(kind: MessageType, to: u64, context: &[u8]) -> Message {
        let mut message = eraftpb::Message::default();
        message.set_msg_type(kind);
        (message.to, message.term) = (to, 5);
        message.context = context.to_vec().into();
        Message(message)
    }

    fn contexts(messages: &[Message]) -> Vec<(u64, Vec<u8>)> {
        messages.iter().map(|Message(message)| (message.to, message.context.to_vec())).collect()
    }

    #[test]
    fn the_last_question_speaks_for_those_before() {
        use MessageType::{MsgAppend, MsgHeartbeat};
        let mut messages = vec![
            message(MsgHeartbeat, 2, b"7"),
            message(MsgAppend, 2, b""),
            message(MsgHeartbeat, 2, b"8"),
            message(MsgHeartbeat, 3, b"7"),
        ];
        keep_last_heartbeats(&mut messages);
        let (two, three) = ((2, b"8".to_vec()), (3, b"7".to_vec()));
        assert_eq!(contexts(&messages), [(2, Vec::new()), two, three], "the append stays");
    }

    #[test]
    fn a_heartbeat_without_a_question_replaces_none() {
        use MessageType::MsgHeartbeat;
        let mut messages = vec![message(MsgHeartbeat, 2, b"7"), message(MsgHeartbeat, 2, b"")];
        keep_last_heartbeats(&mut messages);
        assert_eq!(messages.len(), 2);
        let mut messages = vec![message(MsgHeartbeat, 2, b""), message(MsgHeartbeat, 2, b"7")];
        keep_last_heartbeats(&mut messages);
        assert_eq!(contexts(&messages), [(2, b"7".to_vec())]);
    }
}
