//! One window: open-loop puts, and all other work on other threads.
//!
//! Arrivals are random, and do not depend on the results of earlier puts. The thread that puts
//! spins until a put is due. **Timed** is the time from when a put is due until its transaction has
//! ended and its client could get a response. As in a server, the transaction is published to the
//! watchers after that, which delays only the next put. A put that is still queued when a window
//! ends is recorded with its wait so far, and as not served. The time that puts wait for locks is
//! shown separately, because a busy processor does not hide it.
//!
//! `spin` is a window without watchers. Its threads keep the processor as busy as the watch threads
//! of another window; its name contains the name of that window. If watchers delay puts more than
//! `spin` does, the cause is the way in which the era notifies them. On two cores, the rest of the
//! delay is the cost of the busy core.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use crate::bench_store::{BenchStore, ThreadSignal, Writer};
use crate::pace::{OpenLoopTimes, Schedule, burn, open_loop, processor_time};
use crate::watch_threads::WatchThreads;

/// The time from the threads' start to the first put.
const START_DELAY: Duration = Duration::from_millis(10);
/// Maximum time from the first put until all published events are delivered.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(60);

/// The store, its watch threads and the load of one window.
pub(crate) struct LoadWindow<'s> {
    pub(crate) store: &'s BenchStore,
    pub(crate) watch_threads: &'s WatchThreads,
    pub(crate) schedule: &'s Schedule,
    /// The shares of time for which additional threads keep processors busy.
    pub(crate) busy_shares: &'s [f64],
}

/// The progress of a window, for the threads that take responses.
pub(crate) struct Progress {
    /// The due time of the first put.
    pub(crate) start: Instant,
    /// The store's revision after the newest put.
    pub(crate) revision: AtomicI64,
    /// If true, no more puts are made.
    pub(crate) window_over: AtomicBool,
    over: AtomicBool,
}

impl Progress {
    /// Returns whether a consumer continues. `waits` is true if the consumer still expects events.
    /// Panics if it still expects them [`DELIVERY_TIMEOUT`] after the first put was due.
    pub(crate) fn should_continue(&self, waits: bool) -> bool {
        let patient = self.start.elapsed() < DELIVERY_TIMEOUT;
        assert!(patient || !waits, "what is published is delivered in the end");
        !self.over.load(Ordering::Relaxed) && (waits || !self.window_over.load(Ordering::Acquire))
    }
}

/// The results of a window.
pub(crate) struct WindowResult<T> {
    pub(crate) puts: OpenLoopTimes,
    pub(crate) consumed: Vec<T>,
    /// The time from the first put until everything was delivered.
    pub(crate) elapsed: Duration,
    /// Processor time of each thread that delivers, synchronizes or takes responses.
    pub(crate) processor_times: Vec<Duration>,
}

impl<T> WindowResult<T> {
    /// Returns, for each thread in `processor_times`, the share of `elapsed` for which it used a
    /// processor. The share is at most 1.
    pub(crate) fn shares(&self) -> Vec<f64> {
        let whole = self.elapsed.as_secs_f64();
        self.processor_times.iter().map(|time| (time.as_secs_f64() / whole).min(1.0)).collect()
    }
}

/// When the value is dropped, all threads end, even if one has panicked.
struct StopOnDrop<'p>(&'p Progress);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

impl LoadWindow<'_> {
    /// Runs a window. `put` makes the put with the given number, from 0. Each of `consumers` runs
    /// on a separate thread.
    pub(crate) fn run<T: Send>(
        &self,
        mut put: impl FnMut(&mut Writer<'_>, usize) -> (i64, Instant),
        consumers: Vec<impl FnOnce(&Progress) -> T + Send>,
    ) -> WindowResult<T> {
        let progress = Progress {
            start: Instant::now() + START_DELAY,
            revision: AtomicI64::new(self.store.store.begin_read().revision()),
            window_over: AtomicBool::new(false),
            over: AtomicBool::new(false),
        };
        let (progress, commit_due) = (&progress, &ThreadSignal::default());
        let watchable_store = &*self.watch_threads.watchable_store;
        let (mut writer, old_views) = Writer::new(self.store, Some(watchable_store), commit_due);
        let no_panic = "a thread of the bench does not panic";
        std::thread::scope(|threads| {
            let _ends = StopOnDrop(progress);
            let over = &progress.over;
            threads.spawn(move || self.store.run_commits(commit_due, over));
            threads.spawn(move || old_views.into_iter().for_each(drop));
            let workers = [
                threads.spawn(move || self.watch_threads.run_delivery(over)),
                threads.spawn(move || self.watch_threads.run_sync(over)),
            ];
            for share in self.busy_shares {
                threads.spawn(move || burn(*share, over));
            }
            let consumers: Vec<_> = consumers
                .into_iter()
                .map(|take| threads.spawn(move || (take(progress), processor_time())))
                .collect();
            let met = open_loop(self.schedule, progress.start, |number| {
                let (revision, answered) = put(&mut writer, number);
                progress.revision.store(revision, Ordering::Release);
                answered
            });
            drop(writer);
            progress.window_over.store(true, Ordering::Release);
            let took = consumers.into_iter().map(|consumer| consumer.join().expect(no_panic));
            let (took, mut processor): (Vec<T>, Vec<Duration>) = took.unzip();
            let time = progress.start.elapsed();
            progress.over.store(true, Ordering::Relaxed);
            let workers = workers.into_iter().map(|worker| worker.join().expect(no_panic));
            processor.extend(workers);
            WindowResult { puts: met, consumed: took, elapsed: time, processor_times: processor }
        })
    }
}
