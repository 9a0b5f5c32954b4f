//! A follower's read index request counts as its acknowledgement of the leader.
//!
//! Where leader and asker are a quorum, as in a cluster of three, the leader answers at once: one
//! round trip and two messages, not two and six. With four voters or more, everything is as usual.
//!
//! * The answer is sent only if the leader has committed an entry of its own term.
//! * The question confirms nothing but itself: raft does not get it, so it does not count for other
//!   questions, and it does not begin a lease (`tests/golden/node/question`).
//! * An asker that has not acknowledged all that is committed is also sent an append, because no
//!   heartbeat finds out that it has missed something. If it is not known what the asker has, the
//!   question is asked as usual.
//!
//! etcd does not do this. `docs/read-index.md` shows why it is safe.

use raft::eraftpb::{self, MessageType};
use raft::{ProgressState, StateRole};

use super::{Message, RaftNode};

impl RaftNode {
    /// Returns whether the question was answered at once.
    pub(super) fn answer_read_index(&mut self, question: &Message) -> bool {
        let raft = &mut self.raw_node.raft;
        let both = [raft.id, question.from()].into_iter().collect();
        let asker = raft.prs().get(question.from()).map(|it| (it.state, it.matched));
        let may = self.config.read_index_counts_as_ack
            && question.from() != raft.id
            && question.0.get_msg_type() == MessageType::MsgReadIndex
            && raft.state == StateRole::Leader
            && raft.commit_to_current_term()
            && asker.is_some_and(|(state, _)| state == ProgressState::Replicate)
            && raft.prs().has_quorum(&both);
        if !may {
            return false;
        }
        raft.msgs.push(eraftpb::Message {
            msg_type: MessageType::MsgReadIndexResp,
            from: raft.id,
            to: question.from(),
            term: raft.term,
            index: raft.raft_log.committed,
            entries: question.0.entries.clone(),
            ..Default::default()
        });
        if asker.is_some_and(|(_, matched)| matched < raft.raft_log.committed) {
            raft.send_append(question.from());
            self.update_election_timeout();
        }
        true
    }
}
