//! Corrects the position of an append (the index before its entries) so that it matches the
//! append's entries.
//!
//! With `batch_append`, raft adds entries to an append that waits to be sent to the same member.
//! Raft checks that they follow the entries already in that append. Raft makes no such check if the
//! append has no entries and only carries the commit index. If the member then rejects an earlier
//! append, raft goes back to an earlier position and adds the entries after that position:
//!
//! ```text
//!   waiting to be sent     at 120, no entries
//!   rejected: goes back    entries 116..120 are added
//!   sent                   at 120, entries 116..120     wrong: the entries do not follow 120
//!   corrected              at 115, entries 116..120
//! ```
//!
//! The corrected message still carries everything that the empty append carried.

use raft::eraftpb::{self, MessageType};

/// Sets the position of an append to the entry before the append's first entry. `term_at` returns
/// the terms in the log. If `term_at` does not know the term of that entry, removes all entries
/// from the append instead.
pub(super) fn fix_append_index(
    mut message: eraftpb::Message,
    term_at: impl Fn(u64) -> Option<u64>,
) -> eraftpb::Message {
    let is_append = message.get_msg_type() == MessageType::MsgAppend;
    let before = message.entries.first().map(|entry| entry.index.saturating_sub(1));
    let Some(before) = before.filter(|before| is_append && *before != message.index) else {
        return message;
    };
    // Raft returns term 0 for an entry that has already been released.
    match term_at(before).filter(|term| *term > 0 || before == 0) {
        Some(term) => (message.index, message.log_term) = (before, term),
        // Restores the append without entries. Raft learns from the response that the member still
        // lacks the removed entries.
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
        // The previous entry was released, or there is no previous entry.
        assert_eq!(fix_append_index(append(20, &[16]), |_| Some(0)), append(20, &[]));
        let first = fix_append_index(append(20, &[1]), |_| Some(0));
        assert_eq!((first.index, first.log_term, first.entries.len()), (0, 0, 1));
    }
}
