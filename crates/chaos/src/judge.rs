//! All checkers, and what each of them must be told.

use std::collections::BTreeMap;

use clearlane_lease::Contents;
use clearlane_mvcc::{Change, HashKv};
use clearlane_raft_log::{ConfState, Entry};

use crate::checkers::acknowledged::{Acknowledged, check_store};
use crate::checkers::committed::Committed;
use crate::checkers::hashes::Hashes;
use crate::checkers::leaders::Leaders;
use crate::checkers::leases::{Promises, check_leases};
use crate::checkers::ledger::Ledger;
use crate::checkers::members::Membership;
use crate::checkers::revisions::Revisions;
use crate::checkers::{Violation, linearizability, serializable};
use crate::history::{Operation, State};
use crate::tenancy::Act;
use crate::world::Micros;

/// Whether a rule still holds.
pub type Verdict = Result<(), Violation>;

/// What has been seen so far.
#[derive(Debug, Default)]
pub struct Judge {
    /// Who has led.
    pub leaders: Leaders,
    /// What was applied.
    pub committed: Committed,
    /// What that makes.
    pub ledger: Ledger,
    /// Which stores are alike.
    pub hashes: Hashes,
    /// What clients were promised.
    pub acknowledged: Acknowledged,
    /// What tenants were promised.
    pub promises: Promises,
    revisions: Revisions,
    membership: Membership,
}

impl Judge {
    /// A member has another store than before: it has started, or got a copy.
    pub fn begins(&mut self, member: u64, index: u64) -> Verdict {
        self.committed.begins(member, index)?;
        if let Some(state) = self.ledger.at_index(index) {
            self.revisions.begins(member, state.revision);
        }
        Ok(())
    }

    /// A member has applied entries, and told its watchers what they changed.
    pub fn applied(
        &mut self,
        now: Micros,
        member: u64,
        entries: &[Entry],
        changes: &[(i64, Vec<Change>)],
    ) -> Verdict {
        for entry in entries {
            if self.committed.applies(member, entry)?
                && let Some((request, Act::Revoke(id))) = self.ledger.add(entry)?
            {
                self.promises.ends(now, request, id)?;
            }
        }
        for (revision, changes) in changes {
            self.revisions.told(member, *revision, changes.len())?;
        }
        Ok(())
    }

    /// A member's store holds this, having applied so much.
    pub fn holds(&mut self, member: u64, index: u64, holds: &State) -> Verdict {
        check_store(member, index, holds, &self.ledger)?;
        self.revisions.at(member, index, holds.revision)
    }

    /// A member that has applied so much has these leases, and its store these keys of tenants.
    pub fn leases(
        &mut self,
        member: u64,
        index: u64,
        leases: &[Contents],
        keys: &BTreeMap<String, i64>,
    ) -> Verdict {
        let expected = self.ledger.tenancy(index).expect("there is one from the beginning on");
        check_leases(member, index, leases, keys, expected)
    }

    /// A member that has applied so much counts these as members, and its store names these.
    pub fn members(
        &mut self,
        member: u64,
        index: u64,
        raft: &ConfState,
        table: &ConfState,
    ) -> Verdict {
        self.membership.is(member, index, raft, table)
    }

    /// A member's raft takes so much for applied, and counts these as members.
    pub fn raft_counts(&mut self, member: u64, index: u64, raft: &ConfState) -> Verdict {
        self.membership.counts(member, index, raft)
    }

    /// A member's store has this hash, having applied so much.
    pub fn hash(&mut self, member: u64, index: u64, hash: HashKv) -> Verdict {
        self.hashes.has(member, index, hash)
    }

    /// The end: all that clients were told. `ids` says under which id an operation was proposed.
    pub fn conclude(&self, operations: &[Operation], ids: &BTreeMap<usize, u64>) -> Verdict {
        self.acknowledged.check(&self.ledger)?;
        serializable::check(operations, &self.ledger)?;
        let made = |(number, id): (&usize, &u64)| {
            let place = self.ledger.request(*id).filter(|place| place.changed)?;
            Some((place.revision, *number))
        };
        let hints = ids.iter().filter_map(made).collect();
        linearizability::check(operations, &hints, self.ledger.of_tenants())
    }
}
