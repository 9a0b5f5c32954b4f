//! All checkers, and the functions that pass each event to the checkers.

use std::collections::BTreeMap;

use clearlane_mvcc::Changes;
use clearlane_wal::Entry;

use crate::checkers::acknowledged::{check_store, check_writes};
use crate::checkers::agreement::Agreement;
use crate::checkers::auth::{AuthPromises, check_effects};
use crate::checkers::committed::Committed;
use crate::checkers::committed_model::CommittedModel;
use crate::checkers::leases::LeasePromises;
use crate::checkers::revisions::Revisions;
use crate::checkers::{CheckResult, linearizability, serializable};
use crate::event_queue::Micros;
use crate::history::{Operation, StoreModel};
use crate::lease_model::LeaseOp;

#[derive(Debug, Default)]
pub struct InvariantChecker {
    pub agreement: Agreement,
    pub committed: Committed,
    pub model: CommittedModel,
    /// The request ID and the revision of each acknowledged write that has changed something.
    pub acknowledged: Vec<(u64, i64)>,
    pub lease_promises: LeasePromises,
    pub auth: AuthPromises,
    revisions: Revisions,
}

impl InvariantChecker {
    /// Informs the checkers that the member's store is at `index`. Called when a member starts, and
    /// when a snapshot replaces its store.
    pub fn on_store_opened(&mut self, member: u64, index: u64) -> CheckResult {
        self.committed.on_store_opened(member, index)?;
        if let Some(state) = self.model.at_index(index) {
            self.revisions.on_store_opened(member, state.revision);
        }
        Ok(())
    }

    pub fn check_applied(
        &mut self,
        now: Micros,
        member: u64,
        entries: &[Entry],
        changes: &[(i64, Changes)],
    ) -> CheckResult {
        for entry in entries {
            if self.committed.on_apply(member, entry)?
                && let Some((request, LeaseOp::Revoke(id))) = self.model.add(entry)?
            {
                self.lease_promises.on_revoke(now, request, id)?;
            }
        }
        if let (Some(first), Some(last)) = (entries.first(), entries.last()) {
            check_effects(member, (first.index, last.index), changes.len(), &self.model)?;
        }
        for (revision, changes) in changes {
            self.revisions.on_notify(member, *revision, changes.len())?;
        }
        Ok(())
    }

    pub fn check_records(&mut self, member: u64, index: u64, store: &StoreModel) -> CheckResult {
        check_store(member, index, store, &self.model)?;
        self.revisions.check(member, index, store.revision)
    }

    /// Checks the clients' operations. Called once at the end. `ids` has, for each proposed
    /// operation, the request ID in its entry.
    pub fn check_history(
        &self,
        operations: &[Operation],
        ids: &BTreeMap<usize, u64>,
    ) -> CheckResult {
        check_writes(&self.acknowledged, &self.model)?;
        serializable::check(operations, &self.model)?;
        for (operation, id) in ids {
            let is_acknowledged = operations[*operation].reply().is_some();
            if let Some(place) = self.model.applied_request(*id).filter(|_| is_acknowledged) {
                self.auth.check_write(*operation, place.index)?;
            }
        }
        let made = |(number, id): (&usize, &u64)| {
            let place = self.model.applied_request(*id).filter(|place| place.changed)?;
            Some((place.revision, *number))
        };
        let hints = ids.iter().filter_map(made).collect();
        linearizability::check(operations, &hints, &self.model.lease_revisions)
    }
}
