//! All members agree on the membership.
//!
//! Each member has two accounts of it: raft's, by which majorities are counted, and the table in
//! the store. Members that have applied the same index must have the same in both; otherwise two
//! majorities need not overlap.

use std::collections::BTreeMap;

use clearlane_wal::ConfState;

use super::{CheckResult, Rule};

#[derive(Debug, Default)]
pub struct Membership {
    by_index: BTreeMap<u64, (u64, ConfState)>,
}

impl Membership {
    pub fn check(
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
        self.by_index.entry(index).or_insert_with(|| (member, raft.clone()));
        self.check_conf_state(member, index, &raft)
    }

    pub fn check_conf_state(&self, member: u64, index: u64, raft: &ConfState) -> CheckResult {
        let Some((first, expected)) = self.by_index.get(&index) else { return Ok(()) };
        Rule::Members.check(*expected == sorted(raft), || {
            format!("at {index} raft of {member} has {raft:?}, {first} had {expected:?}")
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
        let mut membership = Membership::default();
        let (two, three) = (state(&[2, 1], &[3]), state(&[1, 2, 3], &[]));
        assert_eq!(membership.check(1, 5, &two, &state(&[1, 2], &[3])), Ok(()));
        assert_eq!(membership.check(2, 5, &two, &two), Ok(()));
        assert_eq!(membership.check(1, 6, &three, &three), Ok(()));
        assert_eq!(membership.check(2, 5, &three, &three).unwrap_err().rule, Rule::Members);
        assert_eq!(membership.check(2, 6, &three, &two).unwrap_err().rule, Rule::Members);
    }
}
