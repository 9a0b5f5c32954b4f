//! The figures of all locks of one name, and the report made of them.
//!
//! Figures belong to a *name* in a registry, not to one lock: the short-lived locks of a thousand
//! read transactions are one line of the report, and dropping a lock loses nothing.
//!
//! Holds are counted per label, each with a histogram of its own that is made at the label's first
//! hold. That costs the same two atomic additions that one histogram for all labels would; the
//! total is the sum over the labels. Waits and blame are written only by threads that waited, so
//! they may cost more.

use std::{cmp::Reverse, collections::BTreeMap, sync::OnceLock};

use crate::{
    BlockerState, Histogram, HistogramSnapshot, LockMode, TaskLabel,
    rules::{Acquisition, BlockedInterval},
};

#[derive(Clone, Debug)]
pub struct LockReport {
    pub name: &'static str,
    /// All zero for a mutex.
    pub read: ModeReport,
    /// A mutex is always taken to write.
    pub write: ModeReport,
    /// The pairs of waiter and blocker, the largest total first.
    pub blame: Vec<LockBlame>,
}

#[derive(Clone, Debug, Default)]
pub struct ModeReport {
    /// Includes those not yet released.
    pub acquisitions: u64,
    /// From the call to the running thread, so the time to wake up is included. Acquisitions that
    /// did not wait count as 0.
    pub waits: HistogramSnapshot,
    /// Only those released.
    pub holds: HistogramSnapshot,
    /// The longest hold first.
    pub holders: Vec<LockHolder>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockHolder {
    pub task: TaskLabel,
    /// Includes holds not yet released.
    pub count: u64,
    /// Of a hold that still lasts, the time until the report.
    pub longest_ns: u64,
}

/// The waits of one label behind another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockBlame {
    pub waiter: TaskLabel,
    pub mode: LockMode,
    pub blocker: TaskLabel,
    pub blocker_mode: LockMode,
    pub blocker_state: BlockerState,
    /// The number of intervals, of which a wait may have several.
    pub count: u64,
    pub total_ns: u64,
    pub longest_ns: u64,
}

/// Waiter and its mode, blocker and its mode and state.
type BlameKey = (TaskLabel, LockMode, TaskLabel, LockMode, BlockerState);

#[derive(Debug)]
pub(crate) struct LockMetrics {
    pub(crate) name: &'static str,
    read: ModeMetrics,
    write: ModeMetrics,
    /// Only threads that waited take it. A leaf lock: nothing is locked under it.
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

    /// `holders` are those at `now_ns`.
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
    /// Indexed by label. Made at a label's first hold, because most labels hold few locks.
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
            // After a reset a label's histogram exists but is empty.
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
