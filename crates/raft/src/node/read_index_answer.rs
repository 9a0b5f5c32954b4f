//! A follower that asks the leader how far the log is committed says with it that it follows.
//!
//! # The problem
//!
//! A leader may have been replaced and not know. So it answers a member after a quorum has said that it still
//! follows: the question goes to the leader, a heartbeat to all, their answers back, and only then the answer. Of these
//! two round trips the first is there because of the second member.
//!
//! ```text
//!   as usual                                     here, if leader and asker are a quorum
//!     2 ── where? ──▶ 1                            2 ── where? ──▶ 1
//!                     1 ── still there? ──▶ 2, 3   2 ◀── 5 ─────── 1
//!     2, 3 ── yes ──▶ 1
//!     2 ◀── 5 ─────── 1
//! ```
//!
//! # Why that is enough
//!
//! Let the reader come at time *r*, its member ask at *q*, and the leader answer at *a*, in this order.
//!
//! * The asker at *q* takes the one it asks for the leader, of its own term. Terms only grow, so when it answers, the
//!   leader is in that term or a later one, say *t*; and before *q* the asker has not voted in a term above *t*.
//!   Nor has the leader before *a*.
//! * To lead in a term above *t* takes the votes of a quorum, and every quorum has one of these two, also one of a
//!   configuration that the leader has not applied yet: raft changes them so that any two in a row overlap, and one at a
//!   time. So before *q*
//!   no member has led in such a term, and none has committed anything in one.
//! * What was committed before *r* was therefore committed in term *t* or an earlier one. The leader of term *t*, which
//!   has committed an entry of its own term, knows of all of it.
//!
//! How long the question was on its way does not matter, nor what has happened since *q*: the answer may be more than
//! was asked for, never less.
//!
//! # What it must not be taken for
//!
//! It says nothing of a time *behind* q. Other questions that wait for a quorum have been asked later, maybe, and if it
//! counted for them, a question that was long on its way would confirm a leader that has been replaced meanwhile
//! (`tests/golden/node/question` has it). So raft, which confirms with a question all that were asked before it, does
//! not hear of it. For the same reason it is no beginning of a lease.
//!
//! # What a heartbeat does beside
//!
//! It finds out that a follower has missed something, and the leader sends it. An asker that has not acknowledged all
//! that is committed is therefore sent an append along with the answer; and if the leader does not know what an asker
//! has, the question is asked as usual.
//!
//! With four voters or more, two are no quorum, and all is as usual, too.

use raft::eraftpb::{self, MessageType};
use raft::{ProgressState, StateRole};

use super::{Message, RaftNode};

impl RaftNode {
    /// Answers a question for the commit index at once, if it may be. Says whether it has.
    pub(super) fn answer_read_index(&mut self, question: &Message) -> bool {
        let raft = &mut self.raw_node.raft;
        let both = [raft.id, question.from()].into_iter().collect();
        #[cfg(feature = "planted-bugs")]
        if self.config.lease_based {
            return false;
        }
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
        let mut answer = eraftpb::Message::default();
        answer.set_msg_type(MessageType::MsgReadIndexResp);
        (answer.from, answer.to) = (raft.id, question.from());
        (answer.term, answer.index) = (raft.term, raft.raft_log.committed);
        answer.entries = question.0.entries.clone();
        raft.msgs.push(answer);
        if asker.is_some_and(|(_, matched)| matched < raft.raft_log.committed) {
            raft.send_append(question.from());
            self.update_election_timeout();
        }
        true
    }
}
