//! Splits appends that are too long.
//!
//! With `batch_append`, raft puts all entries that are proposed between two calls of `ready` into
//! one message, without a check of its length. For a follower that lags far behind, raft puts
//! everything that may be in flight, several hundred megabytes, into one message. So the message is
//! split here, by the limit that raft also uses for entries that it reads from the log:
//!
//! ```text
//!   at 4@2, entries 5..9    ──▶    at 4@2, entries 5..7     at 7@2, entries 8..9
//! ```
//!
//! Here `4@2` is the entry before the append's entries: index 4, term 2. Each part is a message
//! that raft could have sent. The follower responds to each.

use raft::eraftpb::{self, MessageType};

/// The estimated size of an entry without its data.
const ENTRY_BYTES: u64 = 16;

/// Splits a long append into messages that each have at most `bytes_max` bytes of entries, or one
/// larger entry. Other messages are returned unchanged.
pub(super) fn split_append(message: eraftpb::Message, bytes_max: u64) -> Vec<eraftpb::Message> {
    let bytes = |entry: &eraftpb::Entry| entry.data.len() as u64 + ENTRY_BYTES;
    let all: u64 = message.entries.iter().map(bytes).sum();
    if message.get_msg_type() != MessageType::MsgAppend || all <= bytes_max {
        return vec![message];
    }
    let mut head = message;
    let entries: Vec<eraftpb::Entry> = head.take_entries().into();
    let mut parts: Vec<eraftpb::Message> = Vec::new();
    let mut room = 0;
    let mut before = (head.index, head.log_term);
    for entry in entries {
        if parts.is_empty() || room < bytes(&entry) {
            let mut part = head.clone();
            (part.index, part.log_term) = before;
            parts.push(part);
            room = bytes_max;
        }
        room = room.saturating_sub(bytes(&entry));
        before = (entry.index, entry.term);
        if let Some(part) = parts.last_mut() {
            part.mut_entries().push(entry);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(sizes: &[usize]) -> eraftpb::Message {
        let entry = |(index, size): (u64, &usize)| {
            let data = vec![0; *size].into();
            eraftpb::Entry { index, term: 3, data, ..Default::default() }
        };
        let entries: Vec<_> = (5..).zip(sizes).map(entry).collect();
        let (msg_type, entries) = (MessageType::MsgAppend, entries.into());
        let (index, log_term, commit) = (4, 2, 5);
        eraftpb::Message { msg_type, index, log_term, commit, entries, ..Default::default() }
    }

    #[test]
    fn parts_follow_each_other_and_have_all() {
        let parts = split_append(append(&[10, 10, 100, 10, 10, 10]), 60);
        let summaries: Vec<_> = parts
            .iter()
            .map(|part| (part.index, part.log_term, part.entries.len(), part.commit))
            .collect();
        assert_eq!(summaries, [(4, 2, 2, 5), (6, 3, 1, 5), (7, 3, 2, 5), (9, 3, 1, 5)]);
        let entries: Vec<u64> =
            parts.iter().flat_map(|part| part.entries.iter().map(|entry| entry.index)).collect();
        assert_eq!(entries, [5, 6, 7, 8, 9, 10]);
    }

    #[test]
    fn what_is_short_or_no_append_stays_whole() {
        assert_eq!(split_append(append(&[10, 10]), 52), [append(&[10, 10])]);
        assert_eq!(split_append(append(&[]), 0), [append(&[])]);
        let mut forwarded = append(&[100, 100]);
        forwarded.set_msg_type(MessageType::MsgPropose);
        assert_eq!(split_append(forwarded.clone(), 60), [forwarded]);
    }
}
