//! All checkers, and what each of them must be told.

use std::collections::BTreeMap;

use clearlane_mvcc::{Change, HashKv};
use clearlane_raft_log::Entry;

use crate::checkers::acknowledged::{Acknowledged, check_store};
use crate::checkers::committed::Committed;
use crate::checkers::hashes::Hashes;
use crate::checkers::leaders::Leaders;
use crate::checkers::ledger::Ledger;
use crate::checkers::revisions::Revisions;
use crate::checkers::{Violation, linearizability, serializable};
use crate::history::{Operation, State};

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
    revisions: Revisions,
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
        member: u64,
        entries: &[Entry],
        changes: &[(i64, Vec<Change>)],
    ) -> Verdict {
        for entry in entries {
            if self.committed.applies(member, entry)? {
                self.ledger.add(entry)?;
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
        linearizability::check(operations, &ids.iter().filter_map(made).collect())
    }
}
