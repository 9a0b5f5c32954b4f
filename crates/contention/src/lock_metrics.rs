//! The figures of all locks that share a name, and the report made from them.
//!
//! Figures belong to a *name* in a registry, not to a single lock. So the short-lived locks of a
//! thousand read transactions share one line of the report, and no figures are lost when a lock is
//! dropped.
//!
//! Holds are counted per label. Each label has its own histogram, which is created at the label's
//! first hold. Recording a hold costs two atomic additions, the same as with one histogram for all
//! labels. A report adds up the histograms of all labels. Waits and blame are written only if a
//! thread had to wait, so they may cost more.

use std::{cmp::Reverse, collections::BTreeMap, sync::OnceLock};

use crate::{
    BlockerState, Histogram, HistogramSnapshot, LockMode, TaskLabel,
    rules::{Acquisition, BlockedInterval},
};

#[derive(Clone, Debug)]
pub struct LockReport {
    pub name: &'static str,
    /// Acquisitions for reading. All figures are zero for a mutex.
    pub read: ModeReport,
    /// Acquisitions for writing. A mutex is always acquired for writing.
    pub write: ModeReport,
    /// The pairs of waiter and blocker, the largest total first.
    pub blame: Vec<LockBlame>,
}

#[derive(Clone, Debug, Default)]
pub struct ModeReport {
    /// Number of holds that have ended since the last reset, plus the number of current holds.
    pub acquisitions: u64,
    /// Lengths of the waits. A wait lasts from the call until the thread runs again, so it includes
    /// the time to wake up. An acquisition that did not wait counts as a wait of 0.
    pub waits: HistogramSnapshot,
    /// Lengths of the holds that have ended.
    pub holds: HistogramSnapshot,
    /// The labels that have held the lock, the longest hold first.
    pub holders: Vec<LockHolder>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockHolder {
    pub task: TaskLabel,
    /// Number of holds, including holds that have not ended.
    pub count: u64,
    /// Length of the longest hold. For a hold that has not ended, this is its length until the
    /// report.
    pub longest_ns: u64,
}

/// The sum of all intervals during which this waiter waited for this blocker, with these modes and
/// this state of the blocker. The waiter and the blocker may have the same label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockBlame {
    pub waiter: TaskLabel,
    pub mode: LockMode,
    pub blocker: TaskLabel,
    pub blocker_mode: LockMode,
    pub blocker_state: BlockerState,
    /// Number of intervals. One wait may consist of several intervals.
    pub count: u64,
    pub total_ns: u64,
    pub longest_ns: u64,
}

/// The waiter, its mode, the blocker, the blocker's mode, the blocker's state.
type BlameKey = (TaskLabel, LockMode, TaskLabel, LockMode, BlockerState);

#[derive(Debug)]
pub(crate) struct LockMetrics {
    pub(crate) name: &'static str,
    read: ModeMetrics,
    write: ModeMetrics,
    /// The blame by waiter and blocker. Only a release that wakes other threads, a report and a
    /// reset take this mutex. No other lock is taken while a thread holds it.
    blame: parking_lot::Mutex<BTreeMap<BlameKey, LockBlame>>,
}

impl LockMetrics {
    pub(crate) fn new(name: &'static str) -> LockMetrics {
        LockMetrics {
            name,
            read: ModeMetrics::default(),
            write: ModeMetrics::default(),
            blame: parking_lot::Mutex::default(),
        }
    }

    #[inline]
    pub(crate) fn record_hold(&self, task: TaskLabel, mode: LockMode, held_ns: u64) {
        let holds = &self.mode_metrics(mode).holds;
        holds[task.index()].get_or_init(Histogram::new).record(held_ns);
    }

    pub(crate) fn record_wait(&self, mode: LockMode, waited_ns: u64) {
        self.mode_metrics(mode).waits.record(waited_ns);
    }

    pub(crate) fn record_blame(&self, intervals: &[BlockedInterval]) {
        let mut table = self.blame.lock();
        for BlockedInterval { waiter, mode, blocker, start_ns, end_ns } in intervals {
            let key = (*waiter, *mode, blocker.task, blocker.mode, blocker.state);
            let blame = table.entry(key).or_insert(LockBlame {
                waiter: *waiter,
                mode: *mode,
                blocker: blocker.task,
                blocker_mode: blocker.mode,
                blocker_state: blocker.state,
                count: 0,
                total_ns: 0,
                longest_ns: 0,
            });
            let waited_ns = end_ns.saturating_sub(*start_ns);
            blame.count += 1;
            blame.total_ns += waited_ns;
            blame.longest_ns = blame.longest_ns.max(waited_ns);
        }
    }

    /// Makes a report. `holders` are the current holders, whose holds count up to `now_ns`.
    pub(crate) fn report(&self, holders: &[Acquisition], now_ns: u64) -> LockReport {
        let mut blame: Vec<LockBlame> = self.blame.lock().values().copied().collect();
        blame.sort_by_key(|blame| Reverse(blame.total_ns));
        let of_mode = |mode| holders.iter().filter(move |holder| holder.mode == mode);
        LockReport {
            name: self.name,
            read: self.read.report(of_mode(LockMode::Read), now_ns),
            write: self.write.report(of_mode(LockMode::Write), now_ns),
            blame,
        }
    }

    pub(crate) fn reset(&self) {
        self.read.reset();
        self.write.reset();
        self.blame.lock().clear();
    }

    #[inline]
    fn mode_metrics(&self, mode: LockMode) -> &ModeMetrics {
        match mode {
            LockMode::Read => &self.read,
            LockMode::Write => &self.write,
        }
    }
}

#[derive(Debug)]
struct ModeMetrics {
    waits: Histogram,
    /// The holds, indexed by label. A histogram is created at its label's first hold, because most
    /// labels hold few locks.
    holds: [OnceLock<Histogram>; TaskLabel::COUNT_MAX],
}

impl ModeMetrics {
    fn report<'a>(
        &self,
        current: impl Iterator<Item = &'a Acquisition>,
        now_ns: u64,
    ) -> ModeReport {
        let mut holds = HistogramSnapshot::default();
        let mut holders = BTreeMap::new();
        let mut add = |task, count, longest_ns| {
            let none = LockHolder { task, count: 0, longest_ns: 0 };
            let holder: &mut LockHolder = holders.entry(task).or_insert(none);
            holder.count += count;
            holder.longest_ns = holder.longest_ns.max(longest_ns);
        };
        for (index, histogram) in self.holds.iter().enumerate() {
            let Some(snapshot) = histogram.get().map(Histogram::snapshot) else { continue };
            holds.merge(&snapshot);
            // A reset empties the histogram of a label, but does not remove it.
            if snapshot.count > 0 {
                add(TaskLabel::from_index(index), snapshot.count, snapshot.max);
            }
        }
        for holder in current {
            add(holder.task, 1, now_ns.saturating_sub(holder.since_ns));
        }
        let mut holders: Vec<LockHolder> = holders.into_values().collect();
        holders.sort_by_key(|holder| Reverse(holder.longest_ns));
        let acquisitions: u64 = holders.iter().map(|holder| holder.count).sum();
        let mut waits = self.waits.snapshot();
        waits.add_zeros(acquisitions.saturating_sub(waits.count));
        ModeReport { acquisitions, waits, holds, holders }
    }

    fn reset(&self) {
        self.waits.reset();
        self.holds.iter().filter_map(OnceLock::get).for_each(Histogram::reset);
    }
}

impl Default for ModeMetrics {
    fn default() -> Self {
        ModeMetrics {
            waits: Histogram::new(),
            holds: [const { OnceLock::new() }; TaskLabel::COUNT_MAX],
        }
    }
}
