//! All members agree on the membership.
//!
//! Each member has two accounts of it: raft's, by which majorities are counted, and the table in
//! the store. Members that have applied the same index must have the same in both; otherwise two
//! majorities need not overlap.

use std::collections::BTreeMap;

use clearlane_wal::ConfState;

use super::{Rule, Violation};

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
    ) -> Result<(), Violation> {
        let (raft, table) = (sorted(raft), sorted(table));
        let broken = |seen| Err(Violation::new(Rule::Members, seen));
        if raft != table {
            return broken(format!("{member} at {index}: raft has {raft:?}, the table {table:?}"));
        }
        let (first, expected) =
            self.by_index.entry(index).or_insert_with(|| (member, raft.clone()));
        if *expected != raft {
            let seen = format!("at {index} {member} has {raft:?}, {first} had {expected:?}");
            return broken(seen);
        }
        Ok(())
    }
}

impl Membership {
    pub fn check_conf_state(
        &self,
        member: u64,
        index: u64,
        raft: &ConfState,
    ) -> Result<(), Violation> {
        match self.by_index.get(&index) {
            Some((first, expected)) if *expected != sorted(raft) => {
                let seen = format!(
                    "at {index} raft of {member} counts {raft:?}, {first} had {expected:?}"
                );
                Err(Violation::new(Rule::Members, seen))
            }
            _ => Ok(()),
        }
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
