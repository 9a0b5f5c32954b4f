//! A term has one leader; two would give one index two meanings.

use std::collections::BTreeMap;

use super::{CheckResult, Rule};

/// The leader of each term.
#[derive(Debug, Default)]
pub struct Leaders {
    pub by_term: BTreeMap<u64, u64>,
}

impl Leaders {
    pub fn on_leader(&mut self, member: u64, term: u64) -> CheckResult {
        let first = *self.by_term.entry(term).or_insert(member);
        Rule::Leaders.check(first == member, || {
            format!("in term {term} {first} has led, and now {member} does")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_leader_of_a_term_is_found() {
        let mut leaders = Leaders::default();
        assert_eq!(leaders.on_leader(1, 2), Ok(()));
        assert_eq!(leaders.on_leader(2, 3), Ok(()));
        assert_eq!(leaders.on_leader(1, 2), Ok(()), "it is told again");
        assert_eq!(leaders.on_leader(1, 3).unwrap_err().rule, Rule::Leaders);
    }
}
