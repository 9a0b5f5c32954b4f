//! Treats a follower's ReadIndex request as an acknowledgement of the leader by that follower, if
//! [`read_index_counts_as_ack`](super::RaftNodeConfig::read_index_counts_as_ack) is true.
//!
//! If the leader and the requester form a quorum, as in a cluster of three, the leader responds
//! immediately. That takes one round trip and two messages, instead of two round trips and six
//! messages. If there are four voters or more, ReadIndex works as usual.
//!
//! * The leader responds only if it has committed an entry of its own term.
//! * The request confirms only itself. Raft does not get the request, so the request confirms no
//!   other requests and starts no lease (`tests/golden/node/question`).
//! * If the requester has not acknowledged all committed entries, the leader also sends it an
//!   append, because no heartbeat is sent that would detect missing entries. If the leader does not
//!   know which entries the requester has, raft handles the request as usual.
//!
//! etcd does not do this. `docs/read-index.md` shows why it is safe.

use raft::eraftpb::{self, MessageType};
use raft::{ProgressState, StateRole};

use super::{Message, RaftNode};

impl RaftNode {
    /// If the message is a ReadIndex request that this leader may answer without contacting other
    /// members, answers it. Returns whether it was answered.
    pub(super) fn answer_read_index(&mut self, request: &Message) -> bool {
        let raft = &mut self.raw_node.raft;
        let both = [raft.id, request.from()].into_iter().collect();
        let asker = raft.prs().get(request.from()).map(|it| (it.state, it.matched));
        let may = self.config.read_index_counts_as_ack
            && request.from() != raft.id
            && request.0.get_msg_type() == MessageType::MsgReadIndex
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
            to: request.from(),
            term: raft.term,
            index: raft.raft_log.committed,
            entries: request.0.entries.clone(),
            ..Default::default()
        });
        if asker.is_some_and(|(_, matched)| matched < raft.raft_log.committed) {
            raft.send_append(request.from());
            self.update_election_timeout();
        }
        true
    }
}
