//! What the committed entries make of a plain map.
//!
//! The entries come as the bytes that are in the log, each once, in order, from whichever member
//! applies them first. They are decoded again here and applied to the plain [`State`], so that it is
//! known what any store must hold at any revision, without asking a store.

use std::collections::{BTreeMap, BTreeSet};

use clearlane_raft_log::{Entry, EntryKind};

use super::{Rule, Violation};
use crate::history::State;
use crate::proposals::{self, Proposal};
use crate::tenancy::{Act, Tenancy};

/// The states by revision, and where each request has come to lie.
#[derive(Debug)]
pub struct Ledger {
    state: State,
    states: BTreeMap<i64, State>,
    revisions: BTreeMap<u64, i64>,
    requests: BTreeMap<u64, Place>,
    tenancy: Tenancy,
    /// What became of leases, by the index that changed something.
    tenancies: BTreeMap<u64, Tenancy>,
    /// Revisions that are no client's.
    of_tenants: BTreeSet<i64>,
}

/// Where a request has come to lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The entry that it is.
    pub index: u64,
    /// The revision behind it.
    pub revision: i64,
    /// Whether that revision is its own.
    pub changed: bool,
}

impl Default for Ledger {
    fn default() -> Ledger {
        let state = State::default();
        let states = BTreeMap::from([(state.revision, state.clone())]);
        let revisions = BTreeMap::from([(0, state.revision)]);
        let tenancies = BTreeMap::from([(0, Tenancy::default())]);
        Ledger {
            state,
            states,
            revisions,
            requests: BTreeMap::new(),
            tenancy: Tenancy::default(),
            tenancies,
            of_tenants: BTreeSet::new(),
        }
    }
}

impl Ledger {
    /// The next entry. Says what it does to leases, and by which request.
    pub fn add(&mut self, entry: &Entry) -> Result<Option<(u64, Act)>, Violation> {
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
                    self.act(index, act);
                    told = Some((id, act.clone()));
                }
                Proposal::Compact(_) | Proposal::Look => {}
            }
            let revision = self.state.revision;
            let place = Place { index, revision, changed: revision > before };
            if let Some(before) = self.requests.insert(id, place) {
                let seen = format!("request {id:x} is entry {} and again {index}", before.index);
                return Err(Violation::new(Rule::Committed, seen));
            }
            self.states.entry(self.state.revision).or_insert_with(|| self.state.clone());
        }
        self.revisions.insert(entry.index, self.state.revision);
        Ok(told)
    }

    fn act(&mut self, index: u64, act: &Act) {
        if self.tenancy.apply(act) {
            self.state.revision += 1;
            self.of_tenants.insert(self.state.revision);
        }
        self.tenancies.insert(index, self.tenancy.clone());
    }

    /// The leases of every member that has applied so much, and the keys of tenants.
    pub fn tenancy(&self, index: u64) -> Option<&Tenancy> {
        self.tenancies.range(..=index).next_back().map(|(_, tenancy)| tenancy)
    }

    /// The revisions that tenants have made.
    pub fn of_tenants(&self) -> &BTreeSet<i64> {
        &self.of_tenants
    }

    /// What every store holds at a revision; nothing if it has not been reached.
    pub fn at_revision(&self, revision: i64) -> Option<&State> {
        self.states.get(&revision)
    }

    /// What every store holds that has applied so much.
    pub fn at_index(&self, index: u64) -> Option<&State> {
        self.states.get(self.revisions.get(&index)?)
    }

    /// Where a request has come to lie, if it has.
    pub fn request(&self, id: u64) -> Option<Place> {
        self.requests.get(&id).copied()
    }

    /// What has become of everything.
    pub fn newest(&self) -> &State {
        &self.state
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
    pub(crate) fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
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
        let ledger = ledger();
        let value = |state: Option<&State>| state.map(|state| state.records["k1"].value.clone());
        assert_eq!(ledger.at_index(1), Some(&State::default()));
        assert_eq!(value(ledger.at_index(3)), Some("a".into()));
        assert_eq!(value(ledger.at_revision(2)), Some("a".into()));
        assert_eq!(value(Some(ledger.newest())), Some("b".into()));
        assert_eq!((ledger.at_index(5), ledger.at_revision(4)), (None, None));
        let place = |index, revision, changed| Some(Place { index, revision, changed });
        assert_eq!(ledger.request(13), place(3, 2, false));
        assert_eq!((ledger.request(14), ledger.request(15)), (place(4, 3, true), None));
    }

    #[test]
    fn what_nobody_asked_for_is_found_and_what_comes_twice() {
        let garbage = Entry { index: 5, data: "?".into(), ..Entry::default() };
        assert_eq!(ledger().add(&garbage).unwrap_err().rule, Rule::Committed);
        let again = entry(5, Some((12, put("a"))));
        assert_eq!(ledger().add(&again).unwrap_err().rule, Rule::Committed);
    }
}
