//! A leader's work on leases: it starts their expiry times, and proposes revocations and
//! checkpoints.
//!
//! A member proposes a due revocation or checkpoint only if it leads now, in the term in which it
//! started the expiry times: `docs/lease.md` explains why.

use clearlane_auth::ROOT;
use clearlane_proto::etcdserverpb::{
    InternalRaftRequest, LeaseCheckpointRequest, LeaseRevokeRequest, RequestHeader,
};
use clearlane_raft::{Leadership, Role};
use prost::Message as _;

use super::Replica;
use crate::apply::lease::ID_MASK;

impl Replica {
    /// Assigns an id to a lease that has none. The id must be in the log, so that all members use
    /// the same one.
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

    /// Proposes due revocations and checkpoints. Returns whether any was due, because raft may then
    /// have something to do.
    pub(super) fn handle_due_leases(&mut self) -> bool {
        let leadership = self.raft.leadership();
        if leadership.role != Role::Leader || self.lease_term != Some(leadership.term) {
            return false;
        }
        let due = self.leases.due(self.now);
        let is_due = !due.is_empty();
        for id in &due.revoke {
            let lease_revoke = Some(LeaseRevokeRequest { id: *id });
            let header = self.member_header();
            if self.propose_own(InternalRaftRequest { header, lease_revoke, ..Default::default() })
            {
                self.leases_expired += 1;
            } else {
                self.leases.not_proposed(*id, self.now);
            }
        }
        if !due.checkpoints.is_empty() {
            let checkpoints = due.checkpoints.clone();
            let lease_checkpoint = Some(LeaseCheckpointRequest { checkpoints });
            let request = InternalRaftRequest { lease_checkpoint, ..Default::default() };
            if !self.propose_own(request) {
                // The next checkpoints replace these.
                self.leases.checkpoints_not_proposed(&due.checkpoints);
            }
        }
        is_due
    }

    /// Returns the header for a revocation by this member. If authentication is enabled when the
    /// revocation is applied, it needs a permission, so the header names user root.
    /// Authentication may be enabled by an entry that is in this member's log and not applied yet;
    /// then user root exists. Without the header, the revocation of a lease with keys would be
    /// rejected, and would not be proposed again.
    fn member_header(&self) -> Option<RequestHeader> {
        let auth_revision = self.auth.with_state(|state| state.revision);
        let username = ROOT.to_owned();
        Some(RequestHeader { username, auth_revision, ..RequestHeader::default() })
    }

    /// Proposes a request of this member. No client waits for it. Returns whether raft has accepted
    /// it.
    pub(super) fn propose_own(&mut self, mut request: InternalRaftRequest) -> bool {
        request.header.get_or_insert_default().id = self.ids.next();
        self.raft.propose(request.encode_to_vec().into()).is_ok()
    }
}
