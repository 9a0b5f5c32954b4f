//! The committed entries, applied to a plain map.
//!
//! Each entry of the log is decoded and applied once, in order, when the first member applies it.
//! So the correct contents of any store are known for every revision, without reading a store.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use clearlane_auth::AuthRejection;
use clearlane_wal::{Entry, EntryKind};

use super::{Rule, Violation};
use crate::auth_model::{Access, AuthModel, AuthOp, KeySpan, NamedUser};
use crate::history::StoreModel;
use crate::lease_model::{LeaseModel, LeaseOp};
use crate::proposals::{self, Proposal, Proposed, needs_of};

#[derive(Debug)]
pub struct CommittedModel {
    state: StoreModel,
    states: BTreeMap<i64, StoreModel>,
    revision_by_index: BTreeMap<u64, i64>,
    requests: BTreeMap<u64, AppliedRequest>,
    leases: LeaseModel,
    /// The leases after each accepted lease operation, by the index of the operation. Some
    /// operations change nothing.
    leases_by_index: BTreeMap<u64, LeaseModel>,
    auth: AuthModel,
    /// The state after each accepted operation on users, roles or tokens, by the index of the
    /// operation. Some operations change nothing.
    auth_by_index: BTreeMap<u64, Rc<AuthModel>>,
    /// The reason why an entry was rejected, by the index of the entry. The user may lack a
    /// permission, or the users and roles may not allow the change, for example `UserExists`.
    refused: BTreeMap<u64, AuthRejection>,
    /// The indexes of all requests that were applied while authentication was enabled.
    checked: BTreeSet<u64>,
    /// The revisions that lease operations have made.
    pub(crate) lease_revisions: BTreeSet<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppliedRequest {
    pub index: u64,
    /// The revision of the store after the entry.
    pub revision: i64,
    /// If true, the entry made `revision`.
    pub changed: bool,
}

impl Default for CommittedModel {
    fn default() -> CommittedModel {
        let state = StoreModel::default();
        CommittedModel {
            states: BTreeMap::from([(state.revision, state.clone())]),
            revision_by_index: BTreeMap::from([(0, state.revision)]),
            state,
            requests: BTreeMap::new(),
            leases: LeaseModel::default(),
            leases_by_index: BTreeMap::from([(0, LeaseModel::default())]),
            auth: AuthModel::default(),
            auth_by_index: BTreeMap::from([(0, Rc::default())]),
            refused: BTreeMap::new(),
            checked: BTreeSet::new(),
            lease_revisions: BTreeSet::new(),
        }
    }
}

impl CommittedModel {
    /// Applies the entry. Returns the request ID and the lease operation if the entry is an
    /// accepted lease operation, otherwise `None`. Fails if no client or member of the simulation
    /// can have proposed the entry, or if its request ID was applied before.
    pub fn add(&mut self, entry: &Entry) -> Result<Option<(u64, LeaseOp)>, Violation> {
        let mut told = None;
        if entry.kind == EntryKind::Normal && !entry.data.is_empty() {
            let index = entry.index;
            let Some(proposed) = proposals::decode(&entry.data) else {
                let seen = format!("no client has requested entry {index}");
                return Err(Violation::new(Rule::Committed, seen));
            };
            let (id, before) = (proposed.id, self.state.revision);
            match self.apply_proposal(index, &proposed) {
                Ok(op) => told = op.map(|op| (id, op)),
                Err(refused) => drop(self.refused.insert(index, refused)),
            }
            let revision = self.state.revision;
            let place = AppliedRequest { index, revision, changed: revision > before };
            let before = self.requests.insert(id, place);
            Rule::Committed.check(before.is_none(), || {
                format!("request {id:x} is entry {index}, but was applied before as {before:?}")
            })?;
            self.states.entry(self.state.revision).or_insert_with(|| self.state.clone());
        }
        self.revision_by_index.insert(entry.index, self.state.revision);
        Ok(told)
    }

    fn apply_proposal(
        &mut self,
        index: u64,
        Proposed { user, proposal, .. }: &Proposed,
    ) -> Result<Option<LeaseOp>, AuthRejection> {
        if self.auth.enabled {
            self.checked.insert(index);
        }
        match proposal {
            Proposal::Client(request) => {
                self.auth.check_keys(user, &needs_of(request))?;
                self.state.apply(request);
            }
            Proposal::Lease(op) => {
                if !matches!(op, LeaseOp::Revoke(_)) || self.auth.check_admin(user).is_err() {
                    self.auth.check_keys(user, &self.lease_op_needs(user, op))?;
                }
                self.apply_lease_op(index, op);
                return Ok(Some(op.clone()));
            }
            Proposal::Auth(op) => {
                if !matches!(op, AuthOp::Authenticate { .. }) {
                    self.auth.check_admin(user)?;
                }
                self.auth.apply(index, op)?;
                self.auth_by_index.insert(index, Rc::new(self.auth.clone()));
            }
            Proposal::Compact(_) | Proposal::LogRead | Proposal::Publish { .. } => {}
        }
        Ok(None)
    }

    /// Returns the write access that a lease operation needs. A put needs its own key and each key
    /// that is attached to its lease. A revocation needs each key that is attached to the lease.
    /// For a put by a user with the role `root`, the keys of the lease do not matter. Other
    /// operations need no access.
    fn lease_op_needs(&self, user: &NamedUser, op: &LeaseOp) -> Vec<(Access, KeySpan)> {
        let write = |key: &str| (Access::Write, KeySpan::new(key.as_bytes(), b""));
        let of_lease = |of: i64| {
            let keys = self.leases.keys.iter().filter(move |(_, lease)| of != 0 && **lease == of);
            keys.map(|(key, _)| write(key))
        };
        match op {
            LeaseOp::Put { key, lease } => {
                let all = [write(key)].into_iter().chain(of_lease(*lease));
                let count = if self.auth.check_admin(user).is_ok() { 1 } else { usize::MAX };
                all.take(count).collect()
            }
            LeaseOp::Revoke(lease) => of_lease(*lease).collect(),
            LeaseOp::Grant { .. } | LeaseOp::Checkpoint(_) => Vec::new(),
        }
    }

    /// Returns the users, roles and tokens of a member that has applied `index`.
    pub fn auth_at(&self, index: u64) -> &Rc<AuthModel> {
        self.auth_by_index.range(..=index).next_back().expect("there is one at 0").1
    }

    /// Returns why the entry was rejected, or `None` if it was accepted.
    pub fn refusal(&self, index: u64) -> Option<AuthRejection> {
        self.refused.get(&index).copied()
    }

    pub fn is_user_checked(&self, index: u64) -> bool {
        self.checked.contains(&index)
    }

    fn apply_lease_op(&mut self, index: u64, op: &LeaseOp) {
        if self.leases.apply(op) {
            self.state.revision += 1;
            self.lease_revisions.insert(self.state.revision);
        }
        self.leases_by_index.insert(index, self.leases.clone());
    }

    /// Returns the leases, and the lease of each key of the lease clients, at a member that has
    /// applied `index`.
    pub fn leases_at(&self, index: u64) -> &LeaseModel {
        self.leases_by_index.range(..=index).next_back().expect("there is one at 0").1
    }

    /// Returns the state at a revision, or `None` if the revision has not been reached.
    pub fn at_revision(&self, revision: i64) -> Option<&StoreModel> {
        self.states.get(&revision)
    }

    pub fn at_index(&self, index: u64) -> Option<&StoreModel> {
        self.states.get(self.revision_by_index.get(&index)?)
    }

    pub fn applied_request(&self, id: u64) -> Option<AppliedRequest> {
        self.requests.get(&id).copied()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use bytes::Bytes;
    use clearlane_proto::etcdserverpb::RequestHeader;
    use prost::Message;

    use super::*;
    use crate::history::Request;

    pub(crate) fn entry(index: u64, proposal: Option<(u64, Proposal)>) -> Entry {
        let data = proposal.map_or(Bytes::new(), |(id, proposal)| {
            let mut message = proposals::encode(&proposal);
            message.header = Some(RequestHeader { id, ..RequestHeader::default() });
            message.encode_to_vec().into()
        });
        Entry { index, term: 1, data, ..Entry::default() }
    }

    pub(crate) fn put(value: &str) -> Proposal {
        Proposal::Client(Request::Put { key: "k1".into(), value: value.into() })
    }

    pub(crate) fn committed_model() -> CommittedModel {
        let mut model = CommittedModel::default();
        for entry in [
            entry(1, None),
            entry(2, Some((12, put("a")))),
            entry(3, Some((13, Proposal::Compact(2)))),
            entry(4, Some((14, put("b")))),
        ] {
            model.add(&entry).unwrap();
        }
        model
    }

    #[test]
    fn what_no_client_asked_for_is_found_and_what_comes_twice() {
        let garbage = Entry { index: 5, data: "?".into(), ..Entry::default() };
        assert_eq!(committed_model().add(&garbage).unwrap_err().rule, Rule::Committed);
        let again = entry(5, Some((12, put("a"))));
        assert_eq!(committed_model().add(&again).unwrap_err().rule, Rule::Committed);
    }
}
