//! The committed entries, applied to a plain map.
//!
//! The bytes of each entry are decoded from the log once, in order, from the first member that
//! applies them. So the contents of any store at any revision are known without reading a store.

use std::collections::{BTreeMap, BTreeSet};

use clearlane_wal::{Entry, EntryKind};

use super::{Rule, Violation};
use crate::history::StoreModel;
use crate::lease_model::{LeaseModel, LeaseOp};
use crate::proposals::{self, Proposal};

#[derive(Debug)]
pub struct CommittedModel {
    state: StoreModel,
    states: BTreeMap<i64, StoreModel>,
    revision_by_index: BTreeMap<u64, i64>,
    requests: BTreeMap<u64, AppliedRequest>,
    leases: LeaseModel,
    /// Only at the indexes that changed a lease.
    leases_by_index: BTreeMap<u64, LeaseModel>,
    /// Made by lease clients.
    pub(crate) lease_revisions: BTreeSet<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppliedRequest {
    pub index: u64,
    /// Revision of the store after the entry.
    pub revision: i64,
    /// Whether the entry made `revision`.
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
            lease_revisions: BTreeSet::new(),
        }
    }
}

impl CommittedModel {
    /// Returns the request id and what the entry does to leases.
    pub fn add(&mut self, entry: &Entry) -> Result<Option<(u64, LeaseOp)>, Violation> {
        let mut told = None;
        if entry.kind == EntryKind::Normal && !entry.data.is_empty() {
            let index = entry.index;
            let Some((id, proposal)) = proposals::decode(&entry.data) else {
                let seen = format!("entry {index} is nothing that a client has asked for");
                return Err(Violation::new(Rule::Committed, seen));
            };
            let before = self.state.revision;
            match &proposal {
                Proposal::Client(request) => drop(self.state.apply(request)),
                Proposal::Lease(op) => {
                    self.apply_lease_op(index, op);
                    told = Some((id, op.clone()));
                }
                Proposal::Compact(_) | Proposal::LogRead => {}
            }
            let revision = self.state.revision;
            let place = AppliedRequest { index, revision, changed: revision > before };
            let before = self.requests.insert(id, place);
            Rule::Committed.check(before.is_none(), || {
                format!("request {id:x} is entry {index}, and was {before:?}")
            })?;
            self.states.entry(self.state.revision).or_insert_with(|| self.state.clone());
        }
        self.revision_by_index.insert(entry.index, self.state.revision);
        Ok(told)
    }

    fn apply_lease_op(&mut self, index: u64, op: &LeaseOp) {
        if self.leases.apply(op) {
            self.state.revision += 1;
            self.lease_revisions.insert(self.state.revision);
        }
        self.leases_by_index.insert(index, self.leases.clone());
    }

    /// The leases, and lease clients' keys, of a member that has applied `index`.
    pub fn leases_at(&self, index: u64) -> &LeaseModel {
        self.leases_by_index.range(..=index).next_back().expect("there is one at 0").1
    }

    /// The state at a revision; `None` if it has not been reached.
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
