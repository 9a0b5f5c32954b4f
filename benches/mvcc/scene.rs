//! One window: puts that wait for nobody, and everybody else on threads beside them.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use crate::pace::{Met, Schedule, burn, open_loop, processor_time};
use crate::stage::{Bell, Stage, Writer};
use crate::watching::Watching;

/// From the threads' start to the first put.
const PRELUDE: Duration = Duration::from_millis(10);
/// What is published must be told within this time behind the last put.
const PATIENCE: Duration = Duration::from_secs(60);

/// Who plays.
pub(crate) struct Scene<'s> {
    pub(crate) stage: &'s Stage,
    pub(crate) watching: &'s Watching,
    pub(crate) schedule: &'s Schedule,
    /// Threads that keep processors busy for such shares of the time.
    pub(crate) burners: &'s [f64],
}

/// How far it is, for those who take responses.
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
    /// Whether a taker should go on that has something to wait for.
    pub(crate) fn goes_on(&self, waits: bool) -> bool {
        let patient = self.start.elapsed() < PATIENCE;
        assert!(patient || !waits, "what is published is told in the end");
        !self.over.load(Ordering::Relaxed) && (waits || !self.window_over.load(Ordering::Acquire))
    }
}

/// What came out.
pub(crate) struct Played<T> {
    pub(crate) met: Met,
    pub(crate) took: Vec<T>,
    /// From the first put until everything was told.
    pub(crate) time: Duration,
    /// How long each thread was on a processor that delivers, catches up or takes.
    pub(crate) processor: Vec<Duration>,
}

impl<T> Played<T> {
    /// The share of the time that each of these threads was on a processor.
    pub(crate) fn shares(&self) -> Vec<f64> {
        let whole = self.time.as_secs_f64();
        self.processor.iter().map(|time| (time.as_secs_f64() / whole).min(1.0)).collect()
    }
}

/// Lets all threads end, even if one has panicked.
struct Ends<'p>(&'p Progress);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

impl Scene<'_> {
    /// Plays a window. `put` makes the put of a number; each of `takers` has a thread.
    pub(crate) fn play<T: Send>(
        &self,
        mut put: impl FnMut(&mut Writer<'_>, usize) -> (i64, Instant),
        takers: Vec<impl FnOnce(&Progress) -> T + Send>,
    ) -> Played<T> {
        let progress = Progress {
            start: Instant::now() + PRELUDE,
            revision: AtomicI64::new(self.stage.store.read().revision()),
            window_over: AtomicBool::new(false),
            over: AtomicBool::new(false),
        };
        let (progress, commit_due) = (&progress, &Bell::default());
        let hub = &*self.watching.hub;
        let (mut writer, old_views) = Writer::new(self.stage, Some(hub), commit_due);
        let no_panic = "a thread of the bench does not panic";
        std::thread::scope(|threads| {
            let _ends = Ends(progress);
            let over = &progress.over;
            threads.spawn(move || self.stage.commits(commit_due, over));
            threads.spawn(move || old_views.into_iter().for_each(drop));
            let workers = [
                threads.spawn(move || self.watching.deliver(over)),
                threads.spawn(move || self.watching.catch_up(over)),
            ];
            for share in self.burners {
                threads.spawn(move || burn(*share, over));
            }
            let takers: Vec<_> = takers
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
            let took = takers.into_iter().map(|taker| taker.join().expect(no_panic));
            let (took, mut processor): (Vec<T>, Vec<Duration>) = took.unzip();
            let time = progress.start.elapsed();
            progress.over.store(true, Ordering::Relaxed);
            let workers = workers.into_iter().map(|worker| worker.join().expect(no_panic));
            processor.extend(workers);
            Played { met, took, time, processor }
        })
    }
}
