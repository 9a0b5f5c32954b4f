//! Tracks which pages a commit may write: the free pages below the high-water mark, which no reader
//! can reach, and all pages from the mark on. The mark is the first page that was never used.
//!
//! ```text
//!   in use ──a commit replaces it──▶ pending: allocated by commit A, freed by commit F
//!     ▲                                 │ no snapshot shows a state from A up to F - 1
//!     └────────── allocated ◀── free ◀──┘
//! ```
//!
//! So a snapshot that is open for a long time keeps only the pages of its own state. It does not
//! keep pages that a later commit allocates and a still later commit frees. The freelist is not
//! stored on disk: opening a file finds the free pages by walking the trees, as etcd does.

use std::collections::{BTreeMap, BTreeSet};

use super::page::{PageId, PageRun};

/// Minimum number of entries in [`Freelist::allocated_by`] before old entries are removed.
const NOTES_MIN: usize = 1_000;

#[derive(Debug)]
pub(super) struct Freelist {
    /// The length of each free run, by its first page. Adjacent runs are joined.
    runs: BTreeMap<PageId, u64>,
    /// The same runs as pairs of length and first page.
    by_length: BTreeSet<(u64, PageId)>,
    /// Pages that readers may still reach, grouped by two commits (F, A): commit A allocated the
    /// pages, and commit F freed them. Only the states from A up to `F - 1` contain them.
    pending: BTreeMap<(u64, u64), Vec<PageRun>>,
    /// The commit that allocated each page in use, by the id of the first page of its run. A page
    /// without an entry is not newer than the oldest visible state.
    allocated_by: BTreeMap<PageId, u64>,
    /// Old entries of `allocated_by` are removed when the map has at least this many entries.
    notes_max: usize,
    /// The transaction id of the commit in progress.
    txid: u64,
    high_water: PageId,
}

impl Freelist {
    pub(super) fn new(high_water: PageId) -> Freelist {
        Freelist {
            runs: BTreeMap::new(),
            by_length: BTreeSet::new(),
            pending: BTreeMap::new(),
            allocated_by: BTreeMap::new(),
            notes_max: NOTES_MIN,
            txid: 0,
            high_water,
        }
    }

    pub(super) fn high_water(&self) -> PageId {
        self.high_water
    }

    /// Starts a commit, and frees the pages that no reader can reach. `visible` contains the
    /// transaction ids of the states that open snapshots show, and of the newest state, which a new
    /// snapshot would show.
    pub(super) fn begin(&mut self, txid: u64, visible: &BTreeSet<u64>) {
        self.txid = txid;
        for ((freed, allocated), runs) in std::mem::take(&mut self.pending) {
            let mut showing = visible.range(allocated..freed).copied();
            let Some(first) = showing.next() else {
                runs.into_iter().for_each(|run| self.free(run));
                continue;
            };
            // A state before F that is not visible now is never shown again. So entries with the
            // same first and the same last visible state from A to F - 1 are merged. The number of
            // entries depends on the number of snapshots, not on the number of commits.
            let last = showing.next_back().unwrap_or(first);
            let same = self.pending.entry((last + 1, first)).or_default();
            match same.is_empty() {
                true => *same = runs,
                false => same.extend(runs),
            }
        }
        if self.allocated_by.len() >= self.notes_max {
            let oldest = visible.first().copied().unwrap_or(txid);
            self.allocated_by.retain(|_, allocated| *allocated > oldest);
            self.notes_max = NOTES_MIN + 2 * self.allocated_by.len();
        }
    }

    /// Returns the first of `count` consecutive pages. They come from the shortest free run that is
    /// long enough. If no run is long enough, they are new pages at the high-water mark.
    pub(super) fn allocate(&mut self, count: u64) -> PageId {
        let first = match self.by_length.range((count, 0)..).next() {
            Some(&(length, first)) => {
                self.remove_run(first, length);
                if length > count {
                    self.insert_run(first + count, length - count);
                }
                first
            }
            None => {
                self.high_water += count;
                self.high_water - count
            }
        };
        self.allocated_by.insert(first, self.txid);
        first
    }

    /// Returns the number of free pages and the number of pending pages.
    pub(super) fn counts(&self) -> (u64, u64) {
        let pending = self.pending.values().flatten().map(|run| run.count).sum();
        (self.runs.values().sum(), pending)
    }

    /// Makes pages free immediately.
    pub(super) fn free(&mut self, run: PageRun) {
        let PageRun { first, count } = run;
        let (mut start, mut length) = (first, count);
        if let Some((&before, &before_length)) = self.runs.range(..first).next_back()
            && before + before_length == first
        {
            self.remove_run(before, before_length);
            (start, length) = (before, before_length + length);
        }
        if let Some(&behind_length) = self.runs.get(&(first + count)) {
            self.remove_run(first + count, behind_length);
            length += behind_length;
        }
        self.insert_run(start, length);
    }

    /// Makes pages free at the [start](Freelist::begin) of the first later commit at which no
    /// snapshot can reach them. Commit `txid` is the first commit that does not contain them.
    pub(super) fn free_after(&mut self, txid: u64, runs: Vec<PageRun>) {
        for run in runs {
            let allocated = self.allocated_by.remove(&run.first).unwrap_or(0);
            self.pending.entry((txid, allocated)).or_default().push(run);
        }
    }

    fn insert_run(&mut self, first: PageId, length: u64) {
        self.runs.insert(first, length);
        self.by_length.insert((length, first));
    }

    fn remove_run(&mut self, first: PageId, length: u64) {
        self.runs.remove(&first);
        self.by_length.remove(&(length, first));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: PageId, count: u64) -> PageRun {
        PageRun { first, count }
    }

    #[test]
    fn runs_are_joined_and_the_shortest_that_fits_is_taken() {
        let mut freelist = Freelist::new(100);
        freelist.free(run(10, 2));
        freelist.free(run(20, 4));
        freelist.free(run(14, 1));
        freelist.free(run(12, 2));
        assert_eq!(freelist.runs, BTreeMap::from([(10, 5), (20, 4)]));
        assert_eq!(freelist.allocate(3), 20);
        assert_eq!(freelist.allocate(1), 23);
        assert_eq!(freelist.allocate(5), 10);
        assert!(freelist.runs.is_empty() && freelist.by_length.is_empty());
        assert_eq!((freelist.allocate(2), freelist.high_water()), (100, 102));
    }

    #[test]
    fn a_page_waits_for_the_snapshots_that_can_reach_it() {
        let mut freelist = Freelist::new(100);
        freelist.free_after(7, vec![run(5, 1)]);
        freelist.free_after(8, vec![run(6, 1)]);
        freelist.begin(9, &BTreeSet::from([6, 7, 8]));
        assert!(freelist.runs.is_empty(), "commit 6 reaches what commit 7 has replaced");
        freelist.begin(10, &BTreeSet::from([7, 9]));
        assert_eq!(freelist.runs, BTreeMap::from([(5, 1)]));
        freelist.begin(11, &BTreeSet::from([10]));
        assert_eq!(freelist.runs, BTreeMap::from([(5, 2)]));
    }

    #[test]
    fn a_page_does_not_wait_for_snapshots_from_before_it_was_written() {
        for (visible, is_free) in [([6, 7], false), ([6, 8], false), ([6, 9], true)] {
            let mut freelist = Freelist::new(100);
            freelist.begin(7, &BTreeSet::from([6]));
            let page = run(freelist.allocate(1), 1);
            freelist.free_after(9, vec![page]);
            freelist.begin(10, &BTreeSet::from(visible));
            assert_eq!(!freelist.runs.is_empty(), is_free, "{visible:?}");
        }
    }

    #[test]
    fn what_waits_is_grouped_by_snapshots_and_not_by_commits() {
        let mut freelist = Freelist::new(100);
        for txid in 1..1_000 {
            freelist.begin(txid, &BTreeSet::from([txid - 1]));
            freelist.allocate(1);
        }
        // Each further commit replaces one page of the first 999 commits. One snapshot keeps
        // showing state 999.
        for (page, txid) in (100..1_099).zip(1_000..) {
            freelist.begin(txid, &BTreeSet::from([999, txid - 1]));
            assert!(freelist.pending.len() <= 2, "{} entries", freelist.pending.len());
            freelist.free_after(txid, vec![run(page, 1)]);
        }
        assert_eq!(freelist.counts(), (0, 999));
        freelist.begin(3_000, &BTreeSet::from([2_999]));
        assert_eq!(freelist.counts(), (999, 0));
    }

    #[test]
    fn what_is_noted_of_pages_in_use_is_bounded() {
        let mut freelist = Freelist::new(100);
        for txid in 1..100 {
            freelist.begin(txid, &BTreeSet::from([txid - 1]));
            for _ in 0..500 {
                freelist.allocate(1);
            }
            assert!(freelist.allocated_by.len() <= 3 * NOTES_MIN);
        }
    }
}
