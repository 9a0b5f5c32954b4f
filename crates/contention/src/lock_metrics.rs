//! The figures of all locks of one name, and the report made of them.
//!
//! Figures belong to a *name* in a registry, not to one lock: the short-lived locks of a thousand
//! read transactions are one line of the report, and dropping a lock loses nothing.
//!
//! Holds are counted per label, each with a histogram of its own that is made at the label's first
//! hold. That costs the same two atomic additions that one histogram for all labels would; the
//! total is the sum over the labels. Waits and blame are written only by threads that waited, so
//! they may cost more.

use std::{collections::BTreeMap, sync::OnceLock};

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
    pub(crate) fn record_hold(&self, actor: TaskLabel, mode: LockMode, held_ns: u64) {
        self.mode_metrics(mode).holds_of(actor).record(held_ns);
    }

    pub(crate) fn record_wait(&self, mode: LockMode, waited_ns: u64) {
        self.mode_metrics(mode).waits.record(waited_ns);
    }

    pub(crate) fn record_blame(&self, stretches: &[BlockedInterval]) {
        let mut table = self.blame.lock();
        for stretch in stretches {
            let pair = blame_key(stretch);
            table.entry(pair).or_insert_with(|| empty_blame(pair)).add(stretch);
        }
    }

    /// `inside` are the holders at `now_ns`.
    pub(crate) fn report(&self, inside: &[Acquisition], now_ns: u64) -> LockReport {
        let mut blame: Vec<LockBlame> = self.blame.lock().values().copied().collect();
        blame.sort_by_key(|blame| std::cmp::Reverse(blame.total_ns));
        let of_mode = |mode| inside.iter().filter(move |party| party.mode == mode);
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
    #[inline]
    fn holds_of(&self, actor: TaskLabel) -> &Histogram {
        self.holds[actor.index()].get_or_init(Histogram::new)
    }

    fn report<'a>(&self, inside: impl Iterator<Item = &'a Acquisition>, now_ns: u64) -> ModeReport {
        let mut holds = HistogramSnapshot::default();
        let mut holders = BTreeMap::new();
        for (index, histogram) in self.holds.iter().enumerate() {
            let Some(histogram) = histogram.get() else { continue };
            let snapshot = histogram.snapshot();
            holds.merge(&snapshot);
            add_holder(
                &mut holders,
                TaskLabel::from_index(index),
                snapshot.count(),
                snapshot.max(),
            );
        }
        for party in inside {
            let held_ns = now_ns.saturating_sub(party.since_ns);
            add_holder(&mut holders, party.task, 1, held_ns);
        }
        let acquisitions = holders.values().map(|holder| holder.count).sum();
        let mut waits = self.waits.snapshot();
        waits.add_zeros(u64::saturating_sub(acquisitions, waits.count()));
        ModeReport { acquisitions, waits, holds, holders: longest_first(holders) }
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

fn add_holder(
    holders: &mut BTreeMap<TaskLabel, LockHolder>,
    actor: TaskLabel,
    count: u64,
    longest_ns: u64,
) {
    // After a reset a label's histogram exists but is empty.
    if count == 0 {
        return;
    }
    let holder =
        holders.entry(actor).or_insert(LockHolder { task: actor, count: 0, longest_ns: 0 });
    holder.count += count;
    holder.longest_ns = holder.longest_ns.max(longest_ns);
}

fn longest_first(holders: BTreeMap<TaskLabel, LockHolder>) -> Vec<LockHolder> {
    let mut holders: Vec<LockHolder> = holders.into_values().collect();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.longest_ns));
    holders
}

fn blame_key(stretch: &BlockedInterval) -> BlameKey {
    let front = &stretch.blocker;
    (stretch.waiter, stretch.mode, front.task, front.mode, front.state)
}

fn empty_blame((waiter, mode, holder, holder_mode, stance): BlameKey) -> LockBlame {
    LockBlame {
        waiter,
        mode,
        blocker: holder,
        blocker_mode: holder_mode,
        blocker_state: stance,
        count: 0,
        total_ns: 0,
        longest_ns: 0,
    }
}

impl LockBlame {
    fn add(&mut self, stretch: &BlockedInterval) {
        let waited_ns = stretch.end_ns.saturating_sub(stretch.start_ns);
        self.count += 1;
        self.total_ns += waited_ns;
        self.longest_ns = self.longest_ns.max(waited_ns);
    }
}
