//! The caller's threads.
//!
//! This crate starts no threads, so that a simulation may decide what runs when. Work that is too
//! much for one thread, such as a restore, is cut into jobs that do not know of each other, and the
//! caller runs them on threads of its own: that is a [`Workers`].
//!
//! ```text
//!   this crate                             the caller
//!   cut ─▶ [job job job job job] ─run_all─▶ thread 1: job  job ── job ─┐
//!                                           thread 2: job ──── job ────┤
//!   join ◀────────────── all have ended ──────────────────────────────┘
//! ```
//!
//! A job writes its outcome where no other job writes: it needs no lock, and the outcome of all
//! does not depend on their order.

/// A piece of work. It does not wait for another job.
pub type Job<'j> = Box<dyn FnOnce() + Send + 'j>;

/// Runs jobs. Two threads that take jobs from one list:
///
/// ```
/// use clearlane_mvcc::{Job, Workers};
///
/// struct TwoThreads;
///
/// impl Workers for TwoThreads {
///     fn parallelism(&self) -> usize {
///         2
///     }
///
///     fn run_all(&self, jobs: Vec<Job<'_>>) {
///         let jobs = std::sync::Mutex::new(jobs.into_iter());
///         let next = || jobs.lock().expect("a thread that takes a job cannot panic").next();
///         let work = || std::iter::from_fn(next).for_each(|job| job());
///         std::thread::scope(|scope| {
///             scope.spawn(work);
///             work();
///         });
///     }
/// }
/// ```
pub trait Workers {
    /// How many jobs run at the same time, to know into how many pieces work is worth cutting.
    fn parallelism(&self) -> usize;

    /// Runs every job once, in any order, and returns when the last of them has ended.
    fn run_all(&self, jobs: Vec<Job<'_>>);
}

/// The caller's own thread, and no other.
#[derive(Clone, Copy, Debug)]
pub struct SerialWorkers;

impl Workers for SerialWorkers {
    fn parallelism(&self) -> usize {
        1
    }

    fn run_all(&self, jobs: Vec<Job<'_>>) {
        jobs.into_iter().for_each(|job| job());
    }
}

/// What `work` makes of each item, in the order of the items.
pub(crate) fn map<I: Send, O: Send>(
    workers: &dyn Workers,
    items: Vec<I>,
    work: impl Fn(I) -> O + Sync,
) -> Vec<O> {
    let mut outcomes: Vec<Option<O>> = items.iter().map(|_| None).collect();
    let work = &work;
    let mut jobs: Vec<Job<'_>> = Vec::with_capacity(items.len());
    for (item, outcome) in items.into_iter().zip(&mut outcomes) {
        jobs.push(Box::new(move || *outcome = Some(work(item))));
    }
    workers.run_all(jobs);
    let outcomes = outcomes.into_iter();
    outcomes.map(|outcome| outcome.expect("workers run every job")).collect()
}
