//! The registry of locks. It has the figures of each name, and a list of the locks that exist.
//!
//! Every lock is created with a registry. Each member and each benchmark has its own registry.
//! There is no global registry, so two members in one process do not see each other's figures.

use std::sync::{Arc, Weak};

use crate::{
    EventRecorder, LockReport,
    blocking_lock::BlockingLock,
    events::EventSink,
    lock_metrics::LockMetrics,
    now_ns,
    rules::{Acquisition, BlockedAcquisition, Blocker},
};

/// The figures of all locks created with this registry. A clone refers to the same registry.
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
pub struct WaitingTask {
    pub lock: &'static str,
    pub waiter: Acquisition,
    pub blocker: Blocker,
}

#[derive(Debug, Default)]
struct RegisteredLocks {
    /// The figures of each name, in order of the first use of the names.
    metrics: Vec<Arc<LockMetrics>>,
    /// All locks created with this registry. A dropped lock stays listed until the next sweep.
    locks: Vec<Weak<BlockingLock>>,
    /// If `locks` has this length or more, the next [`RegisteredLocks::add`] first removes the
    /// dropped locks.
    sweep_at: usize,
}

impl Registry {
    pub fn new() -> Registry {
        Registry::default()
    }

    /// Returns one report for each name, in order of the first use of the names. Locks that were
    /// dropped are included.
    pub fn report(&self) -> Vec<LockReport> {
        let (metrics, locks) = self.all();
        let now_ns = now_ns();
        let report = |metrics: &Arc<LockMetrics>| {
            let same_name = locks.iter().filter(|lock| Arc::ptr_eq(&lock.metrics, metrics));
            let holders: Vec<Acquisition> = same_name.flat_map(|lock| lock.holders()).collect();
            metrics.report(&holders, now_ns)
        };
        metrics.iter().map(report).collect()
    }

    /// Sets all figures to zero. A hold or wait that ends after this call is recorded with its full
    /// length, even if it started before the call.
    pub fn reset(&self) {
        let (metrics, _) = self.all();
        metrics.iter().for_each(|metrics| metrics.reset());
    }

    /// Returns each current holder with the name of its lock.
    pub fn holding(&self) -> Vec<(&'static str, Acquisition)> {
        let (_, locks) = self.all();
        let holding = locks
            .iter()
            .flat_map(|lock| lock.holders().into_iter().map(|holder| (lock.metrics.name, holder)));
        holding.collect()
    }

    /// Returns the threads that wait for a lock right now. A thread that has been admitted but is
    /// not awake yet is not included, because it already counts as a holder. A queued writer is not
    /// included while no writer has the turn, because it has no blocker at that time.
    pub fn waiting(&self) -> Vec<WaitingTask> {
        let (_, locks) = self.all();
        let waiting = locks.iter().flat_map(|lock| {
            lock.waiters().into_iter().filter_map(|BlockedAcquisition { waiter, blocker }| {
                Some(WaitingTask { lock: lock.metrics.name, waiter, blocker: blocker? })
            })
        });
        waiting.collect()
    }

    /// Records the next `capacity` events of all locks of this registry, until the recorder is
    /// stopped or dropped. An earlier recording receives no further events.
    #[must_use = "recording ends when the recorder is dropped"]
    pub fn record(&self, capacity: usize) -> EventRecorder {
        self.event_sink.record(capacity)
    }

    pub(crate) fn register(&self, name: &'static str) -> Arc<BlockingLock> {
        let mut registered = self.registered.lock();
        let metrics = registered.metrics_of(name);
        let lock = Arc::new(BlockingLock::new(metrics, Arc::clone(&self.event_sink)));
        registered.add(&lock);
        lock
    }

    /// Returns the figures of all names, and the locks that exist. Both lists are copies, so the
    /// registry is not locked after this call. The caller may therefore take the inner locks of the
    /// returned locks.
    fn all(&self) -> (Vec<Arc<LockMetrics>>, Vec<Arc<BlockingLock>>) {
        let registered = self.registered.lock();
        let locks = registered.locks.iter().filter_map(Weak::upgrade).collect();
        (registered.metrics.clone(), locks)
    }
}

impl RegisteredLocks {
    fn metrics_of(&mut self, name: &'static str) -> Arc<LockMetrics> {
        if let Some(metrics) = self.metrics.iter().find(|metrics| metrics.name == name) {
            return Arc::clone(metrics);
        }
        let metrics = Arc::new(LockMetrics::new(name));
        self.metrics.push(Arc::clone(&metrics));
        metrics
    }

    /// Adds a lock. Removes the dropped locks once the list has reached twice its length after the
    /// last removal, plus 16. So the average cost per lock is constant.
    fn add(&mut self, lock: &Arc<BlockingLock>) {
        if self.locks.len() >= self.sweep_at {
            self.locks.retain(|lock| lock.strong_count() > 0);
            self.sweep_at = 2 * self.locks.len() + 16;
        }
        self.locks.push(Arc::downgrade(lock));
    }
}
