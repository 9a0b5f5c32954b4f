//! What a leader does about leases: it starts their time, and proposes revocations and checkpoints.
//!
//! Nothing is proposed unless raft leads now, in the term in which the leases' time was started:
//! `docs/lease.md` says why.

use clearlane_auth::ROOT;
use clearlane_proto::etcdserverpb::{
    InternalRaftRequest, LeaseCheckpointRequest, LeaseRevokeRequest, RequestHeader,
};
use clearlane_raft::{Leadership, Role};
use prost::Message as _;

use super::Replica;
use crate::apply::lease::ID_MASK;

impl Replica {
    /// Gives a lease without an id one: it must be in the log, so that all members use the same.
    pub(super) fn assign_lease_id(&mut self, request: &mut InternalRaftRequest) {
        if let Some(grant) = &mut request.lease_grant {
            while grant.id == 0 {
                grant.id = (self.ids.next() & ID_MASK) as i64;
            }
        }
    }

    pub(super) fn update_lessor(&mut self, now: Leadership) {
        let leads_in = (now.role == Role::Leader).then_some(now.term);
        if leads_in != self.lease_term {
            self.lease_term = leads_in;
            match leads_in {
                Some(_) => self.leases.promote(self.now),
                None => self.leases.demote(),
            }
        }
    }

    /// Returns whether raft has something to do now.
    pub(super) fn propose_due_leases(&mut self) -> bool {
        let leadership = self.raft.leadership();
        if leadership.role != Role::Leader || self.lease_term != Some(leadership.term) {
            return false;
        }
        let due = self.leases.due(self.now);
        let is_due = !due.is_empty();
        for id in &due.revoke {
            let lease_revoke = Some(LeaseRevokeRequest { id: *id });
            let header = self.member_header();
            if self.propose_internal(InternalRaftRequest {
                header,
                lease_revoke,
                ..Default::default()
            }) {
                self.leases_expired += 1;
            } else {
                self.leases.not_proposed(*id, self.now);
            }
        }
        if !due.checkpoints.is_empty() {
            let checkpoints = due.checkpoints;
            let lease_checkpoint = Some(LeaseCheckpointRequest { checkpoints });
            // If it is refused: the next checkpoints replace these.
            self.propose_internal(InternalRaftRequest { lease_checkpoint, ..Default::default() });
        }
        is_due
    }

    /// For what needs a permission when it is applied. Until then authentication may be enabled, by
    /// entries that this member has in its log and has not applied; then there is a root. A refused
    /// revocation would not be proposed again.
    fn member_header(&self) -> Option<RequestHeader> {
        let auth_revision = self.auth.with_state(|state| state.revision);
        let username = ROOT.to_owned();
        Some(RequestHeader { username, auth_revision, ..RequestHeader::default() })
    }

    /// Proposes what no request waits for. Returns whether raft has accepted it.
    pub(super) fn propose_internal(&mut self, mut request: InternalRaftRequest) -> bool {
        request.header.get_or_insert_default().id = self.ids.next();
        self.raft.propose(request.encode_to_vec().into()).is_ok()
    }
}
