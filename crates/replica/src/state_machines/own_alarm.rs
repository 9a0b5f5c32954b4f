//! The NOSPACE alarm that a member raises and disarms by itself.
//!
//! No request waits for such a proposal, and raft may lose it. So the alarm is proposed again while
//! its cause lasts, but only after an election time-out, or after the leader or the term has
//! changed. Until then, the earlier proposal may still be applied.

use std::time::Duration;

use clearlane_proto::etcdserverpb::InternalRaftRequest;

use super::Replica;

#[derive(Debug)]
pub(super) struct ProposedAlarm {
    request: InternalRaftRequest,
    leader: u64,
    term: u64,
    at: Duration,
}

impl Replica {
    /// Proposes `request`, which raises or disarms an alarm of this member. Does nothing if the
    /// same request was proposed before and may still be applied. If raft rejects the proposal, the
    /// next call proposes it again.
    pub fn propose_alarm(&mut self, request: InternalRaftRequest) {
        let leadership = self.raft.leadership();
        let (leader, term, now) = (leadership.leader, leadership.term, self.now);
        let timeout = self.config.read_index.election_timeout;
        let is_under_way = self.proposed_alarm.as_ref().is_some_and(|alarm| {
            let is_same = alarm.request == request && (alarm.leader, alarm.term) == (leader, term);
            is_same && now.saturating_sub(alarm.at) < timeout
        });
        if !is_under_way && self.propose_own(request.clone()) {
            self.proposed_alarm = Some(ProposedAlarm { request, leader, term, at: now });
        }
    }
}
