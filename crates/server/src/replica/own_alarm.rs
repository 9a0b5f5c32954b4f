//! The NOSPACE alarm that a member raises and takes back by itself.
//!
//! No request waits for such a proposal, and raft may lose it with its leader. So it is proposed
//! again for as long as its cause lasts, but not beside one that may still be applied: only after
//! an election time-out, or when there is another leader or term. One that is applied is not under
//! way any more.

use std::time::Duration;

use clearlane_proto::etcdserverpb::InternalRaftRequest;

use super::Replica;

/// A proposal that may be on its way.
#[derive(Debug)]
pub(super) struct ProposedAlarm {
    request: InternalRaftRequest,
    leader: u64,
    term: u64,
    at: Duration,
}

impl Replica {
    /// Proposes to raise or to take back an alarm of this member, unless that is under way. What
    /// raft does not take is proposed with the next call.
    pub fn propose_alarm(&mut self, request: InternalRaftRequest) {
        let leadership = self.raft.leadership();
        let (leader, term, now) = (leadership.leader, leadership.term, self.now);
        let timeout = self.config.read_index.election_timeout;
        let is_under_way = self.proposed_alarm.as_ref().is_some_and(|alarm| {
            let is_same = alarm.request == request && (alarm.leader, alarm.term) == (leader, term);
            is_same && now.saturating_sub(alarm.at) < timeout
        });
        if !is_under_way && self.propose_internal(request.clone()) {
            self.proposed_alarm = Some(ProposedAlarm { request, leader, term, at: now });
        }
    }
}
