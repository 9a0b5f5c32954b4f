//! What was counted? The figures of all locks of one name, and the report made of them.
//!
//! Figures belong to a *name* in a registry, not to one lock: the thousand short-lived locks of a
//! thousand read transactions are one line of the report, and dropping a lock loses nothing.
//!
//! Holds are counted per actor, each actor with a histogram of its own that is made at its first
//! hold. That answers "which actor was seen holding, how often, how long" with the same two atomic
//! additions that one histogram for all actors would cost; the total is the sum of the actors.
//! Waits and blame are written only by threads that waited, so they may cost more.

use std::{collections::BTreeMap, sync::OnceLock};

use crate::{
    BlockerState, Histogram, HistogramSnapshot, LockMode, TaskLabel,
    rules::{Acquisition, BlockedInterval},
};

/// What happened on the locks of one name.
#[derive(Clone, Debug)]
pub struct LockReport {
    /// The name of the locks.
    pub name: &'static str,
    /// Taken to read; all zero for a mutex.
    pub read: ModeReport,
    /// Taken to write; a mutex is always taken to write.
    pub write: ModeReport,
    /// The pairs of waiter and blocker, the largest total first.
    pub blame: Vec<LockBlame>,
}

/// What happened on the locks of one name in one mode.
#[derive(Clone, Debug, Default)]
pub struct ModeReport {
    /// How often a lock was taken, those not yet released included.
    pub acquisitions: u64,
    /// How long it took to get in: from the call to the running thread, so the time to wake up is
    /// part of it. Acquisitions that did not wait count as 0.
    pub waits: HistogramSnapshot,
    /// How long locks were held; only those released.
    pub holds: HistogramSnapshot,
    /// The actors seen holding, the longest hold first: the first entry is the longest hold of all.
    pub holders: Vec<LockHolder>,
}

/// An actor that was seen holding a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// The label under which it was held.
    pub task: TaskLabel,
    /// How often, those not yet released included.
    pub count: u64,
    /// How long at most; of a hold that still lasts, the time until the report.
    pub longest_ns: u64,
}

/// One kind of waiter and the kind of its blocker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockBlame {
    /// The label of the waiter.
    pub waiter: TaskLabel,
    /// To do what.
    pub mode: LockMode,
    /// The label of the blocker.
    pub blocker: TaskLabel,
    /// To do what.
    pub blocker_mode: LockMode,
    /// Whether it held the lock or was itself a writer that waited.
    pub blocker_state: BlockerState,
    /// How many stretches of waiting.
    pub count: u64,
    /// Their sum.
    pub total_ns: u64,
    /// The longest.
    pub longest_ns: u64,
}

/// A pair of waiter and blocker: waiter and mode, holder and mode, stance.
type BlameKey = (TaskLabel, LockMode, TaskLabel, LockMode, BlockerState);

/// The figures that all locks of one name write to.
#[derive(Debug)]
pub(crate) struct LockMetrics {
    pub(crate) name: &'static str,
    read: ModeMetrics,
    write: ModeMetrics,
    /// Only threads that waited get here. A leaf lock: nothing is locked under it.
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

    /// The report, given the holders at this moment and what time it is.
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

/// The figures of one mode.
#[derive(Debug)]
struct ModeMetrics {
    waits: Histogram,
    /// Indexed by actor. Filled at an actor's first hold, because most hold few locks.
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
    // After a reset an actor's histogram is there but empty.
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
