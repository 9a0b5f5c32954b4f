//! The 16 bytes that are kept for a key while its range is being sorted, and the selection of the
//! keys that are in the response.

use clearlane_contention::YieldPoints;

/// The cost of comparing two entries, expressed in bytes read.
pub(super) const COMPARE_COST_BYTES: usize = 32;

/// A key of a sorted range. Entries compare in the order of the response. Ties are decided by the
/// number, which rises with the key, so no two entries are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SortEntry {
    /// The field by which the range is sorted, as a number. It rises in the order of the response.
    pub(super) field: u64,
    /// The number of the key in the walk over the range.
    pub(super) number: u32,
    /// The length of the record in the response.
    pub(super) encoded_len: u32,
}

/// The entries that may be in the response. Without a limit, these are all entries. With a limit,
/// their number is at most twice the sum of the limit and the undecided ties. An undecided tie is
/// an entry with the same field as the last entry within the limit, if the field does not decide
/// which of the two comes first.
#[derive(Debug)]
pub(super) struct EntrySelection {
    pub(super) entries: Vec<SortEntry>,
    limit: usize,
    /// Returns true if the order of the entries with this field is not yet known.
    is_open: fn(u64) -> bool,
    /// The last entry within the limit when entries were last dropped. `None` if no entries have
    /// been dropped yet.
    last: Option<SortEntry>,
    /// The number of entries that triggers the next drop.
    cut_at: usize,
    steps: YieldPoints,
}

impl EntrySelection {
    pub(super) fn new(limit: usize, keys: usize, is_open: fn(u64) -> bool) -> EntrySelection {
        let cut_at = limit.saturating_mul(2);
        // Unused capacity takes no physical memory.
        let entries = Vec::with_capacity(keys.min(cut_at));
        let steps = YieldPoints::default();
        EntrySelection { entries, limit, is_open, last: None, cut_at, steps }
    }

    pub(super) fn add(&mut self, entry: SortEntry) {
        if self.last.is_none_or(|last| may_be_within(last, entry, self.is_open)) {
            self.entries.push(entry);
        }
        if self.entries.len() >= self.cut_at {
            self.cut();
        }
    }

    fn cut(&mut self) {
        let steps = &mut self.steps;
        let (_, last, _) = self.entries.select_nth_unstable_by(self.limit - 1, |a, b| {
            steps.advance(COMPARE_COST_BYTES);
            a.cmp(b)
        });
        let (last, is_open) = (*last, self.is_open);
        self.entries.retain(|entry| may_be_within(last, *entry, is_open));
        self.last = Some(last);
        self.cut_at = self.entries.len().saturating_mul(2);
    }

    /// Returns the entries sorted by field and number.
    pub(super) fn into_sorted(mut self) -> Vec<SortEntry> {
        sort(&mut self.entries);
        self.entries
    }
}

fn may_be_within(last: SortEntry, entry: SortEntry, is_open: fn(u64) -> bool) -> bool {
    entry <= last || (entry.field == last.field && is_open(entry.field))
}

pub(super) fn sort(entries: &mut [SortEntry]) {
    let mut steps = YieldPoints::default();
    entries.sort_unstable_by(|a, b| {
        steps.advance(COMPARE_COST_BYTES);
        a.cmp(b)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_takes_two_words() {
        assert_eq!(size_of::<SortEntry>(), 16);
    }

    #[test]
    fn what_cannot_be_within_the_limit_is_dropped() {
        // The order of entries with an even field is not decided.
        let is_open: fn(u64) -> bool = |field| field % 2 == 0;
        for (limit, ties) in [(1, 1), (3, 5), (10, 1), (10, 40), (500, 1)] {
            let mut selection = EntrySelection::new(limit, 0, is_open);
            let fields = (0..1000_u64).map(|number| number * 7919 % 1000 / ties);
            let entries: Vec<_> = (0..)
                .zip(fields)
                .map(|(number, field)| SortEntry { field, number, encoded_len: 0 })
                .collect();
            for entry in &entries {
                selection.add(*entry);
                assert!(selection.entries.len() < 4 * (limit + ties as usize));
            }
            let mut expected = entries;
            expected.sort();
            let last = expected[limit - 1];
            let open_ties = expected[limit..].iter().take_while(|entry| entry.field == last.field);
            let open_ties = if is_open(last.field) { open_ties.count() } else { 0 };
            let found = selection.into_sorted();
            assert_eq!(found[..limit + open_ties], expected[..limit + open_ties]);
        }
    }
}
