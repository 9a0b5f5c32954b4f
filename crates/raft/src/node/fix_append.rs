//! Corrects the position of an append to that of its entries.
//!
//! With `batch_append` raft adds entries to an append for the same member that is waiting to leave.
//! It checks that they follow on the entries in it, but not if there are none, as in an append
//! that only carries the commit index. If the member has refused something
//! meanwhile, raft goes back to an earlier place, and that is where the entries come from:
//!
//! ```text
//!   waiting to leave       at 120, no entries
//!   refused: goes back     entries 116..120
//!   leaves                 at 120, entries 116..120     a receiver that believes that has a gap
//!   mended                 at 115, entries 116..120
//! ```
//!
//! The corrected message has all that the empty append had.

use raft::eraftpb::{self, MessageType};

/// `term_at` gives the terms in the log.
pub(super) fn fix_append_index(
    mut message: eraftpb::Message,
    term_at: impl Fn(u64) -> Option<u64>,
) -> eraftpb::Message {
    let is_append = message.get_msg_type() == MessageType::MsgAppend;
    let before = message.entries.first().map(|entry| entry.index.saturating_sub(1));
    let Some(before) = before.filter(|before| is_append && *before != message.index) else {
        return message;
    };
    // Raft returns 0 for an entry that was released since.
    match term_at(before).filter(|term| *term > 0 || before == 0) {
        Some(term) => (message.index, message.log_term) = (before, term),
        // As it was before the entries came. Raft hears that they are missing.
        None => message.entries.clear(),
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(index: u64, entries: &[u64]) -> eraftpb::Message {
        let entries =
            entries.iter().map(|index| eraftpb::Entry { index: *index, ..Default::default() });
        let (msg_type, entries) = (MessageType::MsgAppend, entries.collect::<Vec<_>>().into());
        eraftpb::Message { msg_type, index, log_term: 3, entries, ..Default::default() }
    }

    #[test]
    fn an_append_is_where_its_entries_begin() {
        let term_at = |index: u64| (index > 10).then_some(2);
        for right in [append(20, &[21, 22]), append(20, &[])] {
            assert_eq!(fix_append_index(right.clone(), term_at), right);
        }
        let mended = fix_append_index(append(20, &[16, 17]), term_at);
        assert_eq!((mended.index, mended.log_term, mended.entries.len()), (15, 2, 2));
        assert_eq!(fix_append_index(append(20, &[9]), term_at), append(20, &[]));
        // The entry before was released meanwhile, or is none.
        assert_eq!(fix_append_index(append(20, &[16]), |_| Some(0)), append(20, &[]));
        let first = fix_append_index(append(20, &[1]), |_| Some(0));
        assert_eq!((first.index, first.log_term, first.entries.len()), (0, 0, 1));
    }
}
