//! Drops heartbeats, and responses to heartbeats, that a later one in the same
//! [`Ready`](super::Ready) makes redundant.
//!
//! For each ReadIndex request, raft sends every member a heartbeat with the request's id:
//!
//! ```text
//!   one Ready   ReadIndex requests 7 (member 2), 8 (member 3), 9 (this member)
//!   for 2       heartbeat 7, heartbeat 8, heartbeat 9         sent: heartbeat 9
//! ```
//!
//! Raft keeps the requests in order, and an acknowledgement of one request also confirms all
//! earlier ones: a member that followed this leader after request 9 arrived also did so after
//! request 7 arrived.
//!
//! If all heartbeats were sent, a member that was paused would have to answer thousands of them.
//! For each response of a member that lags, raft would send another append, which may be as long as
//! raft's limit allows.

use raft::eraftpb::MessageType;

use super::Message;

/// Drops each heartbeat that is followed by another heartbeat with an id, to the same receiver and
/// in the same term. Does the same for heartbeat responses, and keeps all other messages. The
/// messages must be sorted by receiver.
pub(super) fn keep_last_heartbeats(messages: &mut Vec<Message>) {
    let mut later: Option<(MessageType, u64, u64)> = None;
    messages.reverse();
    messages.retain(|Message(message)| {
        let kind = message.get_msg_type();
        if !matches!(kind, MessageType::MsgHeartbeat | MessageType::MsgHeartbeatResponse) {
            return true;
        }
        let is_needless = later == Some((kind, message.to, message.term));
        // A heartbeat without an id confirms no ReadIndex request, so it replaces no heartbeat.
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
                // The append stays, and so do the messages to another member.
                (vec![(kind, 2, "7"), append, (kind, 2, "8"), (kind, 3, "7")], vec![1, 2, 3]),
                // A heartbeat without an id replaces no other heartbeat.
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
