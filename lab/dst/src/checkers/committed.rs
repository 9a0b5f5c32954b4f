//! What is committed does not change, and each member applies all of it, in order, once.
//!
//! The first member that applies an index determines its term, kind and bytes; every other member
//! must apply the same, and so must one that applies it again after a crash, on an older store.
//!
//! A member's position is that of its store at a start or after a snapshot; then it goes on by one.

use std::collections::BTreeMap;

use clearlane_wal::Entry;

use super::{CheckResult, Rule, Violation};

/// The log as far as any member has applied it.
#[derive(Debug, Default)]
pub struct Committed {
    entries: BTreeMap<u64, Entry>,
    /// By member.
    applied_index: BTreeMap<u64, u64>,
}

impl Committed {
    /// Called at a start, and when a snapshot replaces the store.
    pub fn on_store_opened(&mut self, member: u64, index: u64) -> CheckResult {
        self.applied_index.insert(member, index);
        let newest = self.newest();
        Rule::Committed.check(index <= newest, || {
            format!("{member} begins at {index}, and no member has gone beyond {newest}")
        })
    }

    /// Returns whether this member is the first to apply the entry.
    pub fn on_apply(&mut self, member: u64, entry: &Entry) -> Result<bool, Violation> {
        let applied = self.applied_index.entry(member).or_default();
        Rule::Committed.check(entry.index == *applied + 1, || {
            format!("{member} applies {} after {applied}", entry.index)
        })?;
        *applied = entry.index;
        let Some(first) = self.entries.get(&entry.index) else {
            self.entries.insert(entry.index, entry.clone());
            return Ok(true);
        };
        Rule::Committed
            .check(first == entry, || format!("{member} applies {entry:?}, others {first:?}"))
            .map(|()| false)
    }

    /// The highest index applied by any member.
    pub fn newest(&self) -> u64 {
        self.entries.keys().next_back().copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, term: u64, data: &'static str) -> Entry {
        Entry { index, term, data: data.into(), ..Entry::default() }
    }

    #[test]
    fn another_entry_is_found_and_a_gap_and_one_that_comes_twice() {
        let applied = |second: Entry| {
            let mut committed = Committed::default();
            committed.on_apply(1, &entry(1, 1, "a")).unwrap();
            committed.on_apply(1, &entry(2, 1, "b")).unwrap();
            committed.on_apply(2, &entry(1, 1, "a")).unwrap();
            committed.on_apply(2, &second)
        };
        assert_eq!(applied(entry(2, 1, "b")), Ok(false));
        for wrong in [entry(2, 1, "x"), entry(2, 2, "b"), entry(1, 1, "a"), entry(3, 1, "c")] {
            assert_eq!(applied(wrong).unwrap_err().rule, Rule::Committed);
        }
        assert!(Committed::default().on_store_opened(1, 5).is_err(), "no member was at 5");
    }
}
