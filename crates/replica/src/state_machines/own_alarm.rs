//! The NOSPACE alarm that a member raises and disarms by itself.
//!
//! No request waits for such a proposal, and raft may lose it. So it is proposed again for as long
//! as its cause lasts, but only after an election time-out, or with another leader or term: not
//! beside one that may still be applied.

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
    /// Raises or disarms an alarm of this member, unless that proposal may still be applied. A
    /// proposal that raft refuses is made again with the next call.
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
