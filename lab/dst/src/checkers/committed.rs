//! Committed entries do not change. Each member applies every entry after its store's position
//! once, in the order of the log.
//!
//! The first member that applies an index determines its term, kind and bytes. Every other member
//! must apply the same entry. A member that applies the entry again after a crash, on an older
//! store, must also apply the same entry.
//!
//! When a member starts or installs a snapshot, its position is the position of its store. After
//! that the position advances by one entry at a time.

use std::collections::BTreeMap;

use clearlane_wal::Entry;

use super::{CheckResult, Rule, Violation};

/// The log up to the highest index that any member has applied.
#[derive(Debug, Default)]
pub struct Committed {
    entries: BTreeMap<u64, Entry>,
    /// The last applied index of each member.
    applied_index: BTreeMap<u64, u64>,
}

impl Committed {
    /// Sets the member's position, and checks that it is not beyond the known log. Called when a
    /// member starts, and when a snapshot replaces its store.
    pub fn on_store_opened(&mut self, member: u64, index: u64) -> CheckResult {
        self.applied_index.insert(member, index);
        let newest = self.newest();
        Rule::Committed.check(index <= newest, || {
            format!("{member} starts at {index}, but no member has applied an entry after {newest}")
        })
    }

    /// Checks an entry that a member applies. Returns whether this member is the first to apply the
    /// entry.
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
            .check(first == entry, || {
                format!("{member} applies {entry:?}, but other members {first:?}")
            })
            .map(|()| false)
    }

    /// Returns the highest index that any member has applied.
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
