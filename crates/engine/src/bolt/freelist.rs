//! Which pages may be written: those below the high-water mark that no reader can reach, and all
//! above it.
//!
//! ```text
//!   in use ──a commit replaces it──▶ pending, under the commit's txid
//!     ▲                                 │ no snapshot older than that txid is left
//!     └────────── allocated ◀── free ◀──┘
//! ```
//!
//! None of this is on disk: opening finds the free pages by walking the trees, as etcd does.

use std::collections::{BTreeMap, BTreeSet};

use super::page::{PageId, PageRun};

#[derive(Debug)]
pub(super) struct Freelist {
    /// First page and length of each free run; runs that touch are one.
    runs: BTreeMap<PageId, u64>,
    /// The same as (length, first page).
    by_length: BTreeSet<(u64, PageId)>,
    /// By the txid of the commit that freed them.
    pending: BTreeMap<u64, Vec<PageRun>>,
    high_water: PageId,
}

impl Freelist {
    pub(super) fn new(high_water: PageId) -> Freelist {
        let (runs, by_length, pending) = Default::default();
        Freelist { runs, by_length, pending, high_water }
    }

    pub(super) fn high_water(&self) -> PageId {
        self.high_water
    }

    /// Returns the first of `count` pages in a row: the shortest free run that is long enough, or
    /// new pages at the end.
    pub(super) fn allocate(&mut self, count: u64) -> PageId {
        let Some(&(length, first)) = self.by_length.range((count, 0)..).next() else {
            self.high_water += count;
            return self.high_water - count;
        };
        self.remove_run(first, length);
        if length > count {
            self.insert_run(first + count, length - count);
        }
        first
    }

    /// Free pages, and those that will be.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (u64, u64) {
        let pending = self.pending.values().flatten().map(|run| run.count).sum();
        (self.runs.values().sum(), pending)
    }

    /// Makes pages free at once.
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

    /// Makes pages free once no snapshot older than `txid` is open: the commit `txid` does not
    /// reach them any more.
    pub(super) fn free_after(&mut self, txid: u64, runs: Vec<PageRun>) {
        self.pending.entry(txid).or_default().extend(runs);
    }

    /// `oldest_visible` is the txid of the oldest state that a reader sees, or may come to see.
    pub(super) fn release(&mut self, oldest_visible: u64) {
        while let Some(entry) = self.pending.first_entry()
            && *entry.key() <= oldest_visible
        {
            entry.remove().into_iter().for_each(|run| self.free(run));
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
        freelist.release(6);
        assert!(freelist.runs.is_empty(), "commit 6 reaches what commit 7 has replaced");
        freelist.release(7);
        assert_eq!(freelist.runs, BTreeMap::from([(5, 1)]));
        freelist.release(9);
        assert_eq!(freelist.runs, BTreeMap::from([(5, 2)]));
    }
}
