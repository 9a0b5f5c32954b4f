//! Members that have applied the same index have the same `HashKV`.
//!
//! Two hashes may be compared if both stores were compacted at the same revision, which is so for
//! stores that have applied the same index.

use std::collections::BTreeMap;

use clearlane_mvcc::HashKv;

use super::{CheckResult, Rule};

/// By applied index: the first hash, and the member that had it.
#[derive(Debug, Default)]
pub struct Hashes {
    by_index: BTreeMap<u64, (u64, HashKv)>,
    /// How often the hashes of two members were compared.
    pub compared: u64,
}

impl Hashes {
    pub fn check(&mut self, member: u64, index: u64, hash: HashKv) -> CheckResult {
        let (first, expected) = *self.by_index.entry(index).or_insert((member, hash));
        self.compared += u64::from(first != member);
        Rule::Hashes.check(expected == hash, || {
            format!("at {index} {member} has {hash:?}, and {first} had {expected:?}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_that_differ_are_found() {
        let hash = |hash, compact_revision| HashKv { hash, compact_revision, hash_revision: 9 };
        let mut hashes = Hashes::default();
        assert_eq!(hashes.check(1, 5, hash(7, -1)), Ok(()));
        assert_eq!(hashes.check(2, 5, hash(7, -1)), Ok(()));
        assert_eq!(hashes.check(2, 6, hash(8, -1)), Ok(()));
        assert_eq!(hashes.compared, 1);
        assert_eq!(hashes.check(1, 6, hash(9, -1)).unwrap_err().rule, Rule::Hashes);
        assert_eq!(hashes.check(3, 5, hash(7, 4)).unwrap_err().rule, Rule::Hashes);
    }
}
