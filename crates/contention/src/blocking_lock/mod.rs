//! How threads wait at a [`LockState`]: the common part of both kinds of lock.
//!
//! A small inner lock protects the state. It is held for a few dozen instructions, plus a few for
//! each holder and each waiter. It is never held while a thread is parked or works with the data.
//!
//! The data has a separate ordinary lock. A thread takes this data lock after the state has
//! admitted the thread, and releases it before it leaves the state. So `try_lock` on the data lock
//! must succeed, and the code asserts that it does (`docs/locks.md`). There is one exception: the
//! `Debug` output of a lock takes the data lock without entering the state.
//!
//! ```text
//! enter   clock ─▶ [inner: state.acquire] ─▶ inside? ── yes ─▶ continue
//!                                             └─ no ─▶ park ─▶ [inner: state.poll] ─▶ inside? …
//! leave   clock ─▶ [inner: state.release] ─▶ wake admitted threads ─▶ write figures, events
//! ```
//!
//! If a thread that enters finds the inner lock taken, it records the time until it gets the inner
//! lock as a wait. Such a wait has no blocker unless the thread must also wait at the state. A
//! thread that leaves does not record its time at the inner lock. Neither time is part of a hold.
//! But if a releasing thread admits a waiter, the waiter's hold starts then. So this hold includes
//! the time to wake up and to get the inner lock again. See `docs/locks.md`.

use std::{
    cell::Cell,
    collections::BTreeMap,
    sync::Arc,
    thread::{self, Thread},
};

use parking_lot::MutexGuard;

use crate::{
    BlockerState, LockEvent, LockEventKind, LockMode, TaskLabel,
    events::EventSink,
    lock_metrics::LockMetrics,
    now_ns,
    rules::{Acquisition, BlockedAcquisition, LockState, ReleaseResult, Ticket},
};

#[cfg(test)]
mod tests;

thread_local! {
    static WAITED_NS: Cell<u64> = const { Cell::new(0) };
    static LONGEST_WAIT: Cell<Option<LockWait>> = const { Cell::new(None) };
}

/// One wait of a thread for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWait {
    pub lock: &'static str,
    pub waited_ns: u64,
    /// The blocker when the wait started. `None` if the thread waited only for the inner lock, or
    /// if the turn was kept for a writer that was not awake yet.
    pub blocker: Option<(TaskLabel, BlockerState)>,
    /// The first holder when the wait started. `None` if no thread held the lock, or if the thread
    /// waited only for the inner lock. The holder is not the blocker if the blocker itself was
    /// waiting.
    pub holder: Option<TaskLabel>,
}

/// Returns this thread's total wait for locks of this crate. To measure the wait of an operation,
/// call this function before and after the operation, and subtract the results.
pub fn waited_ns() -> u64 {
    WAITED_NS.get()
}

/// Returns the longest wait of this thread since the last call, or since the last
/// [`LockWaitMark::now`]; `None` if the thread has not waited. Together with [`waited_ns`], the
/// result explains why an operation took a long time.
pub fn take_longest_wait() -> Option<LockWait> {
    LONGEST_WAIT.take()
}

/// A mark at the start of an operation. It stores the thread's total wait up to then.
#[derive(Clone, Copy, Debug)]
pub struct LockWaitMark {
    waited_ns: u64,
}

/// The waits of an operation.
#[derive(Clone, Copy, Debug, Default)]
pub struct LockWaits {
    pub total_ns: u64,
    pub longest: Option<LockWait>,
}

impl LockWaitMark {
    pub fn now() -> LockWaitMark {
        // Discards the longest wait so far, which belongs to an earlier operation.
        take_longest_wait();
        LockWaitMark { waited_ns: waited_ns() }
    }

    /// Returns the waits since the mark. The mark must be from this thread. `longest` omits waits
    /// that ended before a later mark was made, or before a later call of [`take_longest_wait`].
    pub fn waits(self) -> LockWaits {
        let total_ns = waited_ns() - self.waited_ns;
        let longest = if total_ns > 0 { take_longest_wait() } else { None };
        LockWaits { total_ns, longest }
    }
}

#[derive(Debug)]
pub(crate) struct BlockingLock {
    pub(crate) metrics: Arc<LockMetrics>,
    event_sink: Arc<EventSink>,
    inner: parking_lot::Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    state: LockState,
    parked_threads: BTreeMap<Ticket, Thread>,
}

struct InnerGuard<'a> {
    inner: MutexGuard<'a, Inner>,
    /// The time at which the inner lock was requested. Equal to `acquired_ns` if the lock was free.
    requested_ns: u64,
    /// The time at which the inner lock was acquired. If the lock was not free, the clock was read
    /// again under the lock.
    acquired_ns: u64,
}

impl BlockingLock {
    pub(crate) fn new(metrics: Arc<LockMetrics>, event_sink: Arc<EventSink>) -> BlockingLock {
        BlockingLock { metrics, event_sink, inner: parking_lot::Mutex::default() }
    }

    /// Blocks until the lock state admits this thread.
    #[inline]
    pub(crate) fn acquire(&self, mode: LockMode) -> BlockingLockGuard<'_> {
        let InnerGuard { mut inner, requested_ns, acquired_ns } = self.lock_inner();
        let (task, number) = TaskLabel::current_numbered();
        let arrival = inner.state.acquire(task, mode, acquired_ns);
        if !arrival.is_acquired {
            self.wait(inner, arrival.ticket, mode, requested_ns);
        } else if requested_ns < acquired_ns {
            drop(inner);
            self.record_wait(mode, (requested_ns, acquired_ns), None, None);
        }
        BlockingLockGuard { lock: self, ticket: arrival.ticket, mode, number }
    }

    pub(crate) fn holders(&self) -> Vec<Acquisition> {
        self.inner.lock().state.holders().copied().collect()
    }

    pub(crate) fn waiters(&self) -> Vec<BlockedAcquisition> {
        self.inner.lock().state.waiters().collect()
    }

    /// Acquires the inner lock and records the times of request and acquisition. If the lock is
    /// free, the clock is read once, before the lock is acquired: reading it after the lock's
    /// atomic operation costs 9 ns more.
    #[inline]
    fn lock_inner(&self) -> InnerGuard<'_> {
        let requested_ns = now_ns();
        match self.inner.try_lock() {
            Some(inner) => InnerGuard { inner, requested_ns, acquired_ns: requested_ns },
            None => self.lock_inner_contended(requested_ns),
        }
    }

    #[cold]
    fn lock_inner_contended(&self, requested_ns: u64) -> InnerGuard<'_> {
        let inner = self.inner.lock();
        InnerGuard { inner, requested_ns, acquired_ns: now_ns() }
    }

    /// Parks the thread until the lock state has admitted its ticket, and records the wait. The
    /// thread may be unparked before it is admitted, so it polls the lock state each time.
    #[cold]
    fn wait(
        &self,
        mut inner: MutexGuard<'_, Inner>,
        ticket: Ticket,
        mode: LockMode,
        requested_ns: u64,
    ) {
        inner.parked_threads.insert(ticket, thread::current());
        let own = inner.state.waiters().find(|waiting| waiting.waiter.ticket == ticket);
        let blocker = own.and_then(|own| own.blocker).map(|blocker| (blocker.task, blocker.state));
        let holder = inner.state.holders().next().map(|holder| holder.task);
        let mut is_admitted = false;
        while !is_admitted {
            MutexGuard::unlocked(&mut inner, thread::park);
            is_admitted = inner.state.poll(ticket, now_ns());
        }
        inner.parked_threads.remove(&ticket);
        drop(inner);

        self.record_wait(mode, (requested_ns, now_ns()), blocker, holder);
    }

    #[cold]
    fn record_wait(
        &self,
        mode: LockMode,
        (start_ns, end_ns): (u64, u64),
        blocker: Option<(TaskLabel, BlockerState)>,
        holder: Option<TaskLabel>,
    ) {
        let (lock, waited_ns) = (self.metrics.name, end_ns.saturating_sub(start_ns));
        WAITED_NS.set(WAITED_NS.get() + waited_ns);
        if LONGEST_WAIT.get().is_none_or(|longest| longest.waited_ns < waited_ns) {
            LONGEST_WAIT.set(Some(LockWait { lock, waited_ns, blocker, holder }));
        }
        self.metrics.record_wait(mode, waited_ns);
        if self.event_sink.is_on() {
            let (task, number) = TaskLabel::current_numbered();
            let kind = LockEventKind::Wait { blocker };
            self.event_sink.write(LockEvent { kind, lock, task, number, start_ns, end_ns });
        }
    }

    #[inline]
    fn release(&self, ticket: Ticket, mode: LockMode, number: u32) {
        let InnerGuard { mut inner, requested_ns, acquired_ns } = self.lock_inner();
        let ReleaseResult { acquisition, wake } = inner.state.release(ticket, mode, acquired_ns);
        if wake.is_empty() {
            drop(inner);
        } else {
            self.wake(inner, &wake);
        }
        let Acquisition { task, since_ns: start_ns, .. } = acquisition;
        self.metrics.record_hold(task, mode, requested_ns.saturating_sub(start_ns));
        if self.event_sink.is_on() {
            let (kind, lock, end_ns) = (LockEventKind::Hold, self.metrics.name, requested_ns);
            self.event_sink.write(LockEvent { kind, lock, task, number, start_ns, end_ns });
        }
    }

    /// Unparks the threads of `tickets`, and records the blame of the ended intervals. Both happen
    /// after the inner lock is released, so that the woken threads do not block on it.
    #[cold]
    fn wake(&self, mut inner: MutexGuard<'_, Inner>, tickets: &[Ticket]) {
        let parked = &inner.parked_threads;
        let threads = tickets.iter().filter_map(|ticket| parked.get(ticket).cloned());
        let threads: Vec<Thread> = threads.collect();
        let intervals = inner.state.take_blocked_intervals();
        drop(inner);

        threads.iter().for_each(Thread::unpark);
        self.metrics.record_blame(&intervals);
    }
}

/// Releases the lock when the guard is dropped, even during a panic.
#[derive(Debug)]
pub(crate) struct BlockingLockGuard<'a> {
    lock: &'a BlockingLock,
    ticket: Ticket,
    mode: LockMode,
    /// The request number of the thread's label at arrival. The thread may have a different number
    /// when it releases the lock.
    number: u32,
}

impl Drop for BlockingLockGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lock.release(self.ticket, self.mode, self.number);
    }
}
