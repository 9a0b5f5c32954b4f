//! State that must be the same in all members: the leader of a term, and the `HashKV` and the
//! membership at an index of the log.
//!
//! Two leaders in a term could commit different entries at one index. If there were two
//! memberships, two majorities might not overlap. Two hashes are comparable if both stores were
//! compacted at the same revision. Stores that have applied the same index meet this condition.

use std::collections::BTreeMap;

use clearlane_mvcc::HashKv;
use clearlane_wal::ConfState;

use super::{CheckResult, Rule};

#[derive(Debug, Default)]
pub struct Agreement {
    pub leader_by_term: BTreeMap<u64, u64>,
    /// For each applied index, the first hash that was checked at this index, and the member that
    /// had this hash.
    hashes: BTreeMap<u64, (u64, HashKv)>,
    conf_states: BTreeMap<u64, (u64, ConfState)>,
    /// Number of comparisons between the hashes of two members.
    pub compared_hashes: u64,
}

impl Agreement {
    pub fn on_leader(&mut self, member: u64, term: u64) -> CheckResult {
        let first = *self.leader_by_term.entry(term).or_insert(member);
        Rule::Leaders.check(first == member, || {
            format!("in term {term} both {first} and {member} are leaders")
        })
    }

    pub fn check_hash(&mut self, member: u64, index: u64, hash: HashKv) -> CheckResult {
        let (first, expected) = *self.hashes.entry(index).or_insert((member, hash));
        self.compared_hashes += u64::from(first != member);
        Rule::Hashes.check(expected == hash, || {
            format!("at {index} {member} has {hash:?}, but {first} had {expected:?}")
        })
    }

    /// Checks the two lists of members that `member` has: raft's list, which determines majorities,
    /// and the table in the store. Both must be the same, and must equal the list of every other
    /// member that has applied `index`.
    pub fn check_members(
        &mut self,
        member: u64,
        index: u64,
        raft: &ConfState,
        table: &ConfState,
    ) -> CheckResult {
        let (raft, table) = (sorted(raft), sorted(table));
        Rule::Members.check(raft == table, || {
            format!("{member} at {index}: raft has {raft:?}, the table {table:?}")
        })?;
        self.conf_states.entry(index).or_insert_with(|| (member, raft.clone()));
        self.check_conf_state(member, index, &raft)
    }

    pub fn check_conf_state(&self, member: u64, index: u64, raft: &ConfState) -> CheckResult {
        let Some((first, expected)) = self.conf_states.get(&index) else { return Ok(()) };
        Rule::Members.check(*expected == sorted(raft), || {
            format!("at {index} raft of {member} has {raft:?}, but {first} had {expected:?}")
        })
    }
}

fn sorted(members: &ConfState) -> ConfState {
    let mut members = members.clone();
    members.voters.sort_unstable();
    members.learners.sort_unstable();
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(voters: &[u64], learners: &[u64]) -> ConfState {
        let (voters, learners) = (voters.to_vec(), learners.to_vec());
        ConfState { voters, learners, ..ConfState::default() }
    }

    #[test]
    fn members_that_differ_are_found() {
        let mut agreement = Agreement::default();
        assert_eq!(agreement.on_leader(1, 2), Ok(()));
        assert_eq!(agreement.on_leader(1, 2), Ok(()), "it is told again");
        assert_eq!(agreement.on_leader(2, 2).unwrap_err().rule, Rule::Leaders);

        let hash = |hash, compact_revision| HashKv { hash, compact_revision, hash_revision: 9 };
        assert_eq!(agreement.check_hash(1, 5, hash(7, -1)), Ok(()));
        assert_eq!(agreement.check_hash(2, 5, hash(7, -1)), Ok(()));
        assert_eq!(agreement.compared_hashes, 1);
        assert_eq!(agreement.check_hash(3, 5, hash(9, -1)).unwrap_err().rule, Rule::Hashes);
        assert_eq!(agreement.check_hash(3, 5, hash(7, 4)).unwrap_err().rule, Rule::Hashes);

        let (two, three) = (state(&[2, 1], &[3]), state(&[1, 2, 3], &[]));
        assert_eq!(agreement.check_members(1, 5, &two, &state(&[1, 2], &[3])), Ok(()));
        assert_eq!(agreement.check_members(2, 5, &two, &two), Ok(()));
        let wrong = agreement.check_members(2, 5, &three, &three);
        assert_eq!(wrong.unwrap_err().rule, Rule::Members);
        let wrong = agreement.check_members(2, 6, &three, &two);
        assert_eq!(wrong.unwrap_err().rule, Rule::Members);
    }
}
