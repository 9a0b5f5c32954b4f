//! All checkers, and what each of them must be told.

use std::collections::BTreeMap;

use clearlane_lease::LeaseState;
use clearlane_mvcc::{Change, HashKv};
use clearlane_wal::{ConfState, Entry};

use crate::checkers::acknowledged::{Acknowledged, check_store};
use crate::checkers::committed::Committed;
use crate::checkers::committed_model::CommittedModel;
use crate::checkers::hashes::Hashes;
use crate::checkers::leaders::Leaders;
use crate::checkers::leases::{LeasePromises, check_leases};
use crate::checkers::members::Membership;
use crate::checkers::revisions::Revisions;
use crate::checkers::{Violation, linearizability, serializable};
use crate::event_queue::Micros;
use crate::history::{Operation, StoreModel};
use crate::lease_model::LeaseOp;

/// Whether a rule still holds.
pub type CheckResult = Result<(), Violation>;

/// What has been seen so far.
#[derive(Debug, Default)]
pub struct InvariantChecker {
    /// The members that have led.
    pub leaders: Leaders,
    /// What was applied.
    pub committed: Committed,
    /// What that makes.
    pub model: CommittedModel,
    /// Which stores are alike.
    pub hashes: Hashes,
    /// What clients were told.
    pub acknowledged: Acknowledged,
    /// What lease clients were told.
    pub lease_promises: LeasePromises,
    revisions: Revisions,
    membership: Membership,
}

impl InvariantChecker {
    /// A member has another store than before: it has started, or got a copy.
    pub fn on_store_opened(&mut self, member: u64, index: u64) -> CheckResult {
        self.committed.on_store_opened(member, index)?;
        if let Some(state) = self.model.at_index(index) {
            self.revisions.on_store_opened(member, state.revision);
        }
        Ok(())
    }

    /// A member has applied entries, and told its watchers what they changed.
    pub fn check_applied(
        &mut self,
        now: Micros,
        member: u64,
        entries: &[Entry],
        changes: &[(i64, Vec<Change>)],
    ) -> CheckResult {
        for entry in entries {
            if self.committed.on_apply(member, entry)?
                && let Some((request, LeaseOp::Revoke(id))) = self.model.add(entry)?
            {
                self.lease_promises.on_revoke(now, request, id)?;
            }
        }
        for (revision, changes) in changes {
            self.revisions.on_notify(member, *revision, changes.len())?;
        }
        Ok(())
    }

    /// A member's store holds this, having applied so much.
    pub fn check_records(&mut self, member: u64, index: u64, holds: &StoreModel) -> CheckResult {
        check_store(member, index, holds, &self.model)?;
        self.revisions.check(member, index, holds.revision)
    }

    /// A member that has applied so much has these leases, and its store these keys of lease
    /// clients.
    pub fn check_lease_state(
        &mut self,
        member: u64,
        index: u64,
        leases: &[LeaseState],
        keys: &BTreeMap<String, i64>,
    ) -> CheckResult {
        let expected = self.model.leases_at(index).expect("there is one from the beginning on");
        check_leases(member, index, leases, keys, expected)
    }

    /// A member that has applied so much counts these as members, and its store names these.
    pub fn check_members(
        &mut self,
        member: u64,
        index: u64,
        raft: &ConfState,
        table: &ConfState,
    ) -> CheckResult {
        self.membership.check(member, index, raft, table)
    }

    /// A member's raft takes so much for applied, and counts these as members.
    pub fn check_conf_state(&mut self, member: u64, index: u64, raft: &ConfState) -> CheckResult {
        self.membership.check_conf_state(member, index, raft)
    }

    /// A member's store has this hash, having applied so much.
    pub fn check_hash(&mut self, member: u64, index: u64, hash: HashKv) -> CheckResult {
        self.hashes.check(member, index, hash)
    }

    /// The end: all that clients were told. `ids` says under which id an operation was proposed.
    pub fn check_history(
        &self,
        operations: &[Operation],
        ids: &BTreeMap<usize, u64>,
    ) -> CheckResult {
        self.acknowledged.check(&self.model)?;
        serializable::check(operations, &self.model)?;
        let made = |(number, id): (&usize, &u64)| {
            let place = self.model.applied_request(*id).filter(|place| place.changed)?;
            Some((place.revision, *number))
        };
        let hints = ids.iter().filter_map(made).collect();
        linearizability::check(operations, &hints, self.model.lease_revisions())
    }
}
