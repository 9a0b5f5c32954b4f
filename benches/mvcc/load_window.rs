//! One window: open-loop puts, and all other work on threads beside them.
//!
//! Arrivals are random and do not depend on what became of the ones before, and the thread that
//! puts spins until one is due. **Timed** is from then until the transaction has ended and its
//! client could be answered; publishing it to the watchers comes after that, as in a server, and
//! delays the next put only. What is queued when a window ends counts with its wait so far and is
//! not served. What puts waited for locks is shown apart: a busy processor does not hide that.
//!
//! `spin` is a window without watchers, beside threads that keep the processor as busy as those of
//! the window named after it. What watchers cost beyond `spin` is the price of the era's way to
//! notify them; on two cores the rest is the price of the core.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use crate::bench_store::{BenchStore, ThreadSignal, Writer};
use crate::pace::{OpenLoopTimes, Schedule, burn, open_loop, processor_time};
use crate::watch_threads::WatchThreads;

/// From the threads' start to the first put.
const START_DELAY: Duration = Duration::from_millis(10);
/// What is published must be delivered within this time behind the last put.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(60);

/// The store, its watch threads and the load of one window.
pub(crate) struct LoadWindow<'s> {
    pub(crate) store: &'s BenchStore,
    pub(crate) watch_threads: &'s WatchThreads,
    pub(crate) schedule: &'s Schedule,
    /// Threads that keep processors busy for such shares of the time.
    pub(crate) busy_shares: &'s [f64],
}

/// How far it is, for the threads that take responses.
pub(crate) struct Progress {
    /// When the first put is due.
    pub(crate) start: Instant,
    /// The store's revision behind the newest put.
    pub(crate) revision: AtomicI64,
    /// Nothing is put any more.
    pub(crate) window_over: AtomicBool,
    over: AtomicBool,
}

impl Progress {
    /// Whether a consumer should go on that has something to wait for.
    pub(crate) fn should_continue(&self, waits: bool) -> bool {
        let patient = self.start.elapsed() < DELIVERY_TIMEOUT;
        assert!(patient || !waits, "what is published is delivered in the end");
        !self.over.load(Ordering::Relaxed) && (waits || !self.window_over.load(Ordering::Acquire))
    }
}

/// What came out.
pub(crate) struct WindowResult<T> {
    pub(crate) puts: OpenLoopTimes,
    pub(crate) consumed: Vec<T>,
    /// From the first put until everything was delivered.
    pub(crate) elapsed: Duration,
    /// How long each thread was on a processor that delivers, synchronises or takes.
    pub(crate) processor_times: Vec<Duration>,
}

impl<T> WindowResult<T> {
    /// The share of the time that each of these threads was on a processor.
    pub(crate) fn shares(&self) -> Vec<f64> {
        let whole = self.elapsed.as_secs_f64();
        self.processor_times.iter().map(|time| (time.as_secs_f64() / whole).min(1.0)).collect()
    }
}

/// Lets all threads end, even if one has panicked.
struct StopOnDrop<'p>(&'p Progress);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

impl LoadWindow<'_> {
    /// Plays a window. `put` makes the put of a number; each of `consumers` has a thread.
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
