//! The registry that every lock is created with: figures by name, and the locks that are alive.
//!
//! One member (or one bench) has one registry. There is no global one, so two members in one
//! process do not see each other's figures.

use std::sync::{Arc, Weak};

use crate::{
    BlockerState, EventRecorder, LockMode, LockReport, TaskLabel,
    blocking_lock::BlockingLock,
    events::EventSink,
    lock_metrics::LockMetrics,
    now_ns,
    rules::{self, Acquisition},
};

/// The figures of all locks created with it. A clone is the same registry.
///
/// ```
/// use clearlane_contention::{TaskLabel, Registry, RwLock};
///
/// let registry = Registry::new();
/// let read_tx = RwLock::new(&registry, "readTx", 0);
/// {
///     let _as = TaskLabel::named("put").enter();
///     *read_tx.write() += 1;
/// }
/// let report = &registry.report()[0];
/// assert_eq!(report.name, "readTx");
/// assert_eq!(report.write.acquisitions, 1);
/// assert_eq!(report.write.holders[0].task.name(), "put");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Registry {
    registered: Arc<parking_lot::Mutex<RegisteredLocks>>,
    event_sink: Arc<EventSink>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldingTask {
    pub lock: &'static str,
    pub holder: TaskLabel,
    pub mode: LockMode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingTask {
    pub lock: &'static str,
    pub waiter: TaskLabel,
    pub mode: LockMode,
    pub blocker: TaskLabel,
    pub blocker_state: BlockerState,
}

#[derive(Debug, Default)]
struct RegisteredLocks {
    /// One entry per name, in the order in which the names were first used.
    metrics: Vec<Arc<LockMetrics>>,
    /// Dropped locks are included until the next sweep.
    locks: Vec<Weak<BlockingLock>>,
    /// Dropped locks are swept out when there are this many entries.
    sweep_at: usize,
}

impl Registry {
    pub fn new() -> Registry {
        Registry::default()
    }

    /// One report per name, in the order in which the names were first used. Dropped locks are
    /// included.
    pub fn report(&self) -> Vec<LockReport> {
        let (figures, locks) = self.all();
        let now_ns = now_ns();
        let report = |figures: &Arc<LockMetrics>| {
            let same_name =
                locks.iter().filter(|blocking_lock| Arc::ptr_eq(&blocking_lock.metrics, figures));
            let inside: Vec<Acquisition> =
                same_name.flat_map(|blocking_lock| blocking_lock.holders()).collect();
            figures.report(&inside, now_ns)
        };
        figures.iter().map(report).collect()
    }

    /// Starts all figures anew. A hold or wait that ends afterwards counts in full, even if it
    /// began before.
    pub fn reset(&self) {
        let (figures, _) = self.all();
        figures.iter().for_each(|figures| figures.reset());
    }

    pub fn holding(&self) -> Vec<HoldingTask> {
        let (_, locks) = self.all();
        locks.iter().flat_map(|blocking_lock| holding(blocking_lock)).collect()
    }

    /// The threads that wait for a lock right now. A thread whose way is already free and that is
    /// only not awake yet is not listed: it waits for a processor.
    pub fn waiting(&self) -> Vec<WaitingTask> {
        let (_, locks) = self.all();
        locks.iter().flat_map(|blocking_lock| waiting(blocking_lock)).collect()
    }

    /// Records the next `capacity` events of all locks of this registry, until the recorder is
    /// stopped or dropped. An earlier recording gets no further events.
    #[must_use = "recording ends when the recorder is dropped"]
    pub fn record(&self, capacity: usize) -> EventRecorder {
        self.event_sink.record(capacity)
    }

    pub(crate) fn register(&self, name: &'static str) -> Arc<BlockingLock> {
        let mut registered = self.registered.lock();
        let blocking_lock =
            Arc::new(BlockingLock::new(registered.metrics_of(name), Arc::clone(&self.event_sink)));
        registered.add(&blocking_lock);
        blocking_lock
    }

    /// Copies, because a lock's inner lock must not be taken under the lock of the registry.
    fn all(&self) -> (Vec<Arc<LockMetrics>>, Vec<Arc<BlockingLock>>) {
        let registered = self.registered.lock();
        let locks = registered.locks.iter().filter_map(Weak::upgrade).collect();
        (registered.metrics.clone(), locks)
    }
}

impl RegisteredLocks {
    fn metrics_of(&mut self, name: &'static str) -> Arc<LockMetrics> {
        if let Some(figures) = self.metrics.iter().find(|figures| figures.name == name) {
            return Arc::clone(figures);
        }
        let figures = Arc::new(LockMetrics::new(name));
        self.metrics.push(Arc::clone(&figures));
        figures
    }

    /// Sweeps at twice the number that was alive at the last sweep: constant cost per lock.
    fn add(&mut self, blocking_lock: &Arc<BlockingLock>) {
        if self.locks.len() >= self.sweep_at {
            self.locks.retain(|blocking_lock| blocking_lock.strong_count() > 0);
            self.sweep_at = 2 * self.locks.len() + 16;
        }
        self.locks.push(Arc::downgrade(blocking_lock));
    }
}

fn holding(blocking_lock: &BlockingLock) -> Vec<HoldingTask> {
    let lock = blocking_lock.metrics.name;
    let to_holding =
        |party: Acquisition| HoldingTask { lock, holder: party.task, mode: party.mode };
    blocking_lock.holders().into_iter().map(to_holding).collect()
}

fn waiting(blocking_lock: &BlockingLock) -> Vec<WaitingTask> {
    let lock = blocking_lock.metrics.name;
    let to_waiting = |waiting: rules::BlockedAcquisition| {
        let Acquisition { task: waiter, mode, .. } = waiting.waiter;
        waiting.blocker.map(|front| WaitingTask {
            lock,
            waiter,
            mode,
            blocker: front.task,
            blocker_state: front.state,
        })
    };
    blocking_lock.waiters().into_iter().filter_map(to_waiting).collect()
}
