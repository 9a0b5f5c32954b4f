//! A member delivers consecutive revisions, and each index of the log has the same revision at
//! every member.
//!
//! Watchers rely on the first rule: a watcher that receives revision 9 after 7 has missed events.

use std::collections::BTreeMap;

use super::{CheckResult, Rule};

#[derive(Debug, Default)]
pub struct Revisions {
    by_index: BTreeMap<u64, i64>,
    /// The last revision that each member has delivered to its watchers, by member. After a start
    /// or a snapshot, it is the revision of the opened store.
    notified: BTreeMap<u64, i64>,
}

impl Revisions {
    /// Sets the member's revision. The next event for its watchers must have the revision after it.
    /// Called when a member starts, and when a snapshot replaces its store.
    pub fn on_store_opened(&mut self, member: u64, revision: i64) {
        self.notified.insert(member, revision);
    }

    pub fn on_notify(&mut self, member: u64, revision: i64, changes: usize) -> CheckResult {
        let before = self.notified.insert(member, revision).unwrap_or(1);
        Rule::Revisions.check(revision == before + 1 && changes > 0, || {
            format!("{member} reports {changes} changes of revision {revision} to watchers after {before}")
        })
    }

    pub fn check(&mut self, member: u64, index: u64, revision: i64) -> CheckResult {
        let notified = self.notified.get(&member).copied().unwrap_or(1);
        let first = *self.by_index.entry(index).or_insert(revision);
        Rule::Revisions.check(first == revision && notified == revision, || {
            format!(
                "{member} has applied {index} and is at revision {revision}; other members were at \
                 {first}, its watchers are at {notified}"
            )
        })?;
        // Each entry makes at most one revision.
        let before = self.by_index.range(..index).next_back().into_iter();
        let around: Vec<_> = before.chain(self.by_index.range(index..).take(2)).collect();
        for pair in around.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            let risen = to.1 - from.1;
            Rule::Revisions.check(risen >= 0 && risen.unsigned_abs() <= to.0 - from.0, || {
                format!(
                    "from entry {} to entry {} the revision changed from {} to {}",
                    from.0, to.0, from.1, to.1
                )
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_found_and_a_doubled_revision_and_one_too_many() {
        let broken = |result: CheckResult| {
            assert_eq!(result.unwrap_err().rule, Rule::Revisions);
        };
        let mut revisions = Revisions::default();
        revisions.on_notify(1, 2, 1).unwrap();
        broken(revisions.on_notify(1, 4, 1));
        revisions.on_store_opened(1, 2);
        broken(revisions.on_notify(1, 2, 1));
        broken(revisions.on_notify(1, 3, 0));
        revisions.on_store_opened(1, 5);
        revisions.check(1, 10, 5).unwrap();
        revisions.on_store_opened(2, 6);
        broken(revisions.check(2, 10, 6));
        revisions.on_store_opened(2, 7);
        broken(revisions.check(2, 11, 7));
        revisions.on_store_opened(2, 6);
        broken(revisions.check(2, 9, 6));
    }
}
