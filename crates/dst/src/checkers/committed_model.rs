//! What the committed entries make of a plain map.
//!
//! The entries come as the bytes that are in the log, each once, in order, from whichever member
//! applies them first. They are decoded again here and applied to the plain [`StoreModel`], so that
//! it is known what any store must hold at any revision, without asking a store.

use std::collections::{BTreeMap, BTreeSet};

use clearlane_wal::{Entry, EntryKind};

use super::{Rule, Violation};
use crate::history::StoreModel;
use crate::lease_model::{LeaseModel, LeaseOp};
use crate::proposals::{self, Proposal};

/// The states by revision, and where each request has come to lie.
#[derive(Debug)]
pub struct CommittedModel {
    state: StoreModel,
    states: BTreeMap<i64, StoreModel>,
    revision_by_index: BTreeMap<u64, i64>,
    requests: BTreeMap<u64, AppliedRequest>,
    leases: LeaseModel,
    /// What became of leases, by the index that changed something.
    leases_by_index: BTreeMap<u64, LeaseModel>,
    /// Revisions that are no client's.
    lease_revisions: BTreeSet<i64>,
}

/// Where a request has come to lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppliedRequest {
    /// The entry that it is.
    pub index: u64,
    /// The revision behind it.
    pub revision: i64,
    /// Whether that revision is its own.
    pub changed: bool,
}

impl Default for CommittedModel {
    fn default() -> CommittedModel {
        let state = StoreModel::default();
        let states = BTreeMap::from([(state.revision, state.clone())]);
        let revisions = BTreeMap::from([(0, state.revision)]);
        let tenancies = BTreeMap::from([(0, LeaseModel::default())]);
        CommittedModel {
            state,
            states,
            revision_by_index: revisions,
            requests: BTreeMap::new(),
            leases: LeaseModel::default(),
            leases_by_index: tenancies,
            lease_revisions: BTreeSet::new(),
        }
    }
}

impl CommittedModel {
    /// The next entry. Says what it does to leases, and by which request.
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
                Proposal::Lease(act) => {
                    self.apply_lease_op(index, act);
                    told = Some((id, act.clone()));
                }
                Proposal::Compact(_) | Proposal::LogRead => {}
            }
            let revision = self.state.revision;
            let place = AppliedRequest { index, revision, changed: revision > before };
            if let Some(before) = self.requests.insert(id, place) {
                let seen = format!("request {id:x} is entry {} and again {index}", before.index);
                return Err(Violation::new(Rule::Committed, seen));
            }
            self.states.entry(self.state.revision).or_insert_with(|| self.state.clone());
        }
        self.revision_by_index.insert(entry.index, self.state.revision);
        Ok(told)
    }

    fn apply_lease_op(&mut self, index: u64, act: &LeaseOp) {
        if self.leases.apply(act) {
            self.state.revision += 1;
            self.lease_revisions.insert(self.state.revision);
        }
        self.leases_by_index.insert(index, self.leases.clone());
    }

    /// The leases of every member that has applied so much, and the keys of lease clients.
    pub fn leases_at(&self, index: u64) -> Option<&LeaseModel> {
        self.leases_by_index.range(..=index).next_back().map(|(_, tenancy)| tenancy)
    }

    /// The revisions that lease clients have made.
    pub fn lease_revisions(&self) -> &BTreeSet<i64> {
        &self.lease_revisions
    }

    /// What every store holds at a revision; nothing if it has not been reached.
    pub fn at_revision(&self, revision: i64) -> Option<&StoreModel> {
        self.states.get(&revision)
    }

    /// What every store holds that has applied so much.
    pub fn at_index(&self, index: u64) -> Option<&StoreModel> {
        self.states.get(self.revision_by_index.get(&index)?)
    }

    /// Where a request has come to lie, if it has.
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

    /// An entry with a proposal, or without one.
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

    /// `a` as entry 2, `b` as entry 4, of requests 12 and 14.
    pub(crate) fn committed_model() -> CommittedModel {
        let mut ledger = CommittedModel::default();
        for entry in [
            entry(1, None),
            entry(2, Some((12, put("a")))),
            entry(3, Some((13, Proposal::Compact(2)))),
            entry(4, Some((14, put("b")))),
        ] {
            ledger.add(&entry).unwrap();
        }
        ledger
    }

    #[test]
    fn states_are_found_by_index_and_by_revision() {
        let ledger = committed_model();
        let value =
            |state: Option<&StoreModel>| state.map(|state| state.records["k1"].value.clone());
        assert_eq!(ledger.at_index(1), Some(&StoreModel::default()));
        assert_eq!(value(ledger.at_index(3)), Some("a".into()));
        assert_eq!(value(ledger.at_revision(2)), Some("a".into()));
        assert_eq!(value(ledger.at_index(4)), Some("b".into()));
        assert_eq!((ledger.at_index(5), ledger.at_revision(4)), (None, None));
        let place = |index, revision, changed| Some(AppliedRequest { index, revision, changed });
        assert_eq!(ledger.applied_request(13), place(3, 2, false));
        assert_eq!(
            (ledger.applied_request(14), ledger.applied_request(15)),
            (place(4, 3, true), None)
        );
    }

    #[test]
    fn what_no_client_asked_for_is_found_and_what_comes_twice() {
        let garbage = Entry { index: 5, data: "?".into(), ..Entry::default() };
        assert_eq!(committed_model().add(&garbage).unwrap_err().rule, Rule::Committed);
        let again = entry(5, Some((12, put("a"))));
        assert_eq!(committed_model().add(&again).unwrap_err().rule, Rule::Committed);
    }
}
