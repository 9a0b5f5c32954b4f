//! Decides the order of the jobs of a read pool, and when a job yields to another job.
//!
//! ```text
//!   queued: Short │ Long │ Continued ──starts──▶ running, 3 at most ──is done──▶
//!                                                  │  ▲ in its turn
//!                                 its slice is over▼  │
//!                                              suspended, on a separate thread
//! ```
//!
//! A free place goes in turn to four kinds of jobs: the job that has run for the least time, the
//! next chunk of a response that is being sent, the job that was suspended first, and a new long
//! job. So no job waits forever. A short job waits only for slices of other jobs, unless eight
//! short jobs have already started. One place is reserved for short jobs, because parts of a long
//! job have no yield point.
//!
//! The number of started jobs of each kind is limited. This also limits the number of threads and
//! the records that the jobs have collected. [`ReadPool`](super::read_pool::ReadPool) has the
//! threads, the lock and the clock.

use std::collections::VecDeque;
use std::num::NonZero;
use std::thread;

pub(super) type JobId = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// A job that is expected to be short, for example because it visits few keys.
    Short,
    Long,
    /// The next chunk of a long response.
    Continued,
}

/// After a slice of this time, a job yields to a new job, or to a suspended job whose total running
/// time is less than half of the running time of the job itself.
pub(super) const SLICE_NS: u64 = 1_000_000;
/// After a slice of this time, a job may also yield to any other suspended job, however long that
/// job has run.
const LONG_SLICE_NS: u64 = 10_000_000;
/// Time during which the pool starts no more threads after the system has failed to start one.
const THREAD_RETRY_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct ScheduleLimits {
    running: usize,
    /// Maximum number of running jobs that are not short.
    long_running: usize,
    /// Maximum number of running and suspended jobs of each kind.
    begun: [usize; 3],
}

impl ScheduleLimits {
    /// At most two long jobs run at a time, so that they do not fill all cores. A third place is
    /// only for short jobs.
    pub(super) const READ_POOL: ScheduleLimits =
        ScheduleLimits { running: 3, long_running: 2, begun: [8, 4, 4] };

    /// All started jobs run at the same time, because they mostly wait for the disk.
    pub(super) const UNCACHED_POOL: ScheduleLimits =
        ScheduleLimits { running: 4, long_running: 0, begun: [4, 0, 0] };

    /// Returns limits with a thread for each core, because these jobs compute, and most of them
    /// take about the same time.
    pub(super) fn password_pool() -> ScheduleLimits {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        ScheduleLimits { running: cores, long_running: 0, begun: [cores, 0, 0] }
    }

    /// Returns the number of threads that the jobs may need.
    fn threads(&self) -> usize {
        self.begun.iter().sum()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Begin(JobId),
    Resume(JobId),
}

#[derive(Debug)]
pub(super) struct ReadSchedule {
    limits: ScheduleLimits,
    /// The queued jobs by kind, in the order of their arrival.
    queued: [VecDeque<JobId>; 3],
    running: Vec<BegunJob>,
    /// The suspended jobs. The job that was suspended first is at the front.
    suspended: VecDeque<BegunJob>,
    /// The turns of the place for short jobs, and of the other places. If all places shared one
    /// sequence of turns, one place might always get the same turn.
    turns: [Turn; 2],
    threads_max: usize,
    /// The time from which the pool may start more threads again.
    threads_full_until_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct BegunJob {
    id: JobId,
    kind: JobKind,
    /// The running time of the job before the current slice.
    served_ns: u64,
    slice_began_ns: u64,
}

impl BegunJob {
    fn served_at(&self, now_ns: u64) -> u64 {
        self.served_ns + now_ns.saturating_sub(self.slice_began_ns)
    }
}

#[derive(Clone, Copy, Debug)]
enum Turn {
    LeastServed,
    Continued,
    LongestSuspended,
    NewLong,
}

impl Turn {
    fn next(self) -> Turn {
        match self {
            Turn::LeastServed => Turn::Continued,
            Turn::Continued => Turn::LongestSuspended,
            Turn::LongestSuspended => Turn::NewLong,
            Turn::NewLong => Turn::LeastServed,
        }
    }
}

enum Candidate {
    Queued(JobKind),
    /// A suspended job, by its index in `suspended`.
    Suspended(usize),
}

impl ReadSchedule {
    pub(super) fn new(limits: ScheduleLimits) -> ReadSchedule {
        ReadSchedule {
            limits,
            threads_max: limits.threads(),
            threads_full_until_ns: 0,
            queued: Default::default(),
            running: Vec::new(),
            suspended: VecDeque::new(),
            turns: [Turn::LongestSuspended; 2],
        }
    }

    pub(super) fn add(&mut self, id: JobId, kind: JobKind) {
        self.queued[kind as usize].push_back(id);
    }

    /// Puts a job back into its queue, because no thread could be started for it. For one second
    /// after this call, at most `threads` jobs are running or suspended.
    pub(super) fn return_job(&mut self, id: JobId, threads: usize, now_ns: u64) {
        self.threads_max = threads;
        self.threads_full_until_ns = now_ns + THREAD_RETRY_NS;
        if let Some(at) = self.running.iter().position(|job| job.id == id) {
            let job = self.running.swap_remove(at);
            self.queued[job.kind as usize].push_front(id);
        }
    }

    /// Gives a free place to the job whose turn it is. Call it until it returns `None`.
    pub(super) fn start_next(&mut self, now_ns: u64) -> Option<Start> {
        if now_ns >= self.threads_full_until_ns {
            self.threads_max = self.limits.threads();
        }
        let (start, job) = match self.pick()? {
            Candidate::Queued(kind) => {
                let id = self.queued[kind as usize].pop_front()?;
                (Start::Begin(id), BegunJob { id, kind, served_ns: 0, slice_began_ns: now_ns })
            }
            Candidate::Suspended(at) => {
                let job = self.suspended.remove(at)?;
                (Start::Resume(job.id), BegunJob { slice_began_ns: now_ns, ..job })
            }
        };
        self.running.push(job);
        Some(start)
    }

    /// Called at a yield point of a running job. If the result is `None`, the job continues.
    /// Otherwise the job is suspended, and the returned job takes its place.
    pub(super) fn give_way(&mut self, id: JobId, now_ns: u64) -> Option<Start> {
        let at = self.running.iter().position(|job| job.id == id)?;
        let job = self.running[at];
        let slice_ns = now_ns.saturating_sub(job.slice_began_ns);
        if slice_ns < SLICE_NS {
            return None;
        }
        let served_ns = job.served_at(now_ns);
        self.running.swap_remove(at);
        self.suspended.push_back(BegunJob { served_ns, ..job });
        if slice_ns < LONG_SLICE_NS && !self.has_less_served(served_ns) {
            self.suspended.pop_back();
            self.running.push(job);
            return None;
        }
        self.start_next(now_ns).filter(|start| *start != Start::Resume(id))
    }

    pub(super) fn finish(&mut self, id: JobId) {
        self.running.retain(|job| job.id != id);
        // A stopped pool wakes all suspended jobs, so a job may end while it is listed as
        // suspended.
        self.suspended.retain(|job| job.id != id);
    }

    fn pick(&mut self) -> Option<Candidate> {
        let place = usize::from(self.may_run(JobKind::Long));
        self.turns[place] = self.turns[place].next();
        let queued = |kind| self.may_begin(kind).then_some(Candidate::Queued(kind));
        let may_resume = |(_, job): &(usize, &BegunJob)| self.may_run(job.kind);
        let suspended = || self.suspended.iter().enumerate().filter(may_resume);
        let least_served = || {
            let new = queued(JobKind::Short).or_else(|| queued(JobKind::Long));
            let begun = || suspended().min_by_key(|(_, job)| job.served_ns);
            let new = new.or_else(|| begun().map(|(at, _)| Candidate::Suspended(at)));
            new.or_else(|| queued(JobKind::Continued))
        };
        match self.turns[place] {
            Turn::LeastServed => least_served(),
            Turn::Continued => queued(JobKind::Continued).or_else(least_served),
            Turn::LongestSuspended => {
                let first = suspended().next().map(|(at, _)| Candidate::Suspended(at));
                first.or_else(|| queued(JobKind::Long)).or_else(least_served)
            }
            Turn::NewLong => queued(JobKind::Long).or_else(least_served),
        }
    }

    /// Returns whether another job should take the free place: a new job, or a suspended job that
    /// has run for less than half of `served_ns`. If any time below `served_ns` were enough,
    /// similar jobs would take turns in short slices.
    fn has_less_served(&self, served_ns: u64) -> bool {
        let kinds = [JobKind::Short, JobKind::Long, JobKind::Continued];
        kinds.into_iter().any(|kind| self.may_begin(kind))
            || self.suspended.iter().any(|it| 2 * it.served_ns < served_ns && self.may_run(it.kind))
    }

    fn may_begin(&self, kind: JobKind) -> bool {
        let begun = || self.running.iter().chain(&self.suspended);
        !self.queued[kind as usize].is_empty()
            && begun().count() < self.threads_max
            && begun().filter(|job| job.kind == kind).count() < self.limits.begun[kind as usize]
            && self.may_run(kind)
    }

    fn may_run(&self, kind: JobKind) -> bool {
        let is_long = |kind| kind != JobKind::Short;
        let long_running = || self.running.iter().filter(|job| is_long(job.kind)).count();
        self.running.len() < self.limits.running
            && (!is_long(kind) || long_running() < self.limits.long_running)
    }
}

#[cfg(test)]
mod tests {
    use super::JobKind::{Continued, Long, Short};
    use super::*;

    const MILLISECOND: u64 = 1_000_000;

    /// A simulated pool with one core for each place. In each round every running job computes for
    /// 100 µs, and is then done or reaches a yield point.
    struct Staged {
        schedule: ReadSchedule,
        now_ns: u64,
        /// For each ID: the remaining time of the job in nanoseconds, and the time at which the job
        /// was done.
        jobs: Vec<(u64, Option<u64>)>,
        running: Vec<JobId>,
    }

    impl Staged {
        fn new() -> Staged {
            let schedule = ReadSchedule::new(ScheduleLimits::READ_POOL);
            Staged { schedule, now_ns: 0, jobs: Vec::new(), running: Vec::new() }
        }

        fn add(&mut self, kind: JobKind, milliseconds: u64) -> JobId {
            let id = self.jobs.len() as JobId;
            self.jobs.push((milliseconds * MILLISECOND, None));
            self.schedule.add(id, kind);
            self.fill();
            id
        }

        fn fill(&mut self) {
            while let Some(start) = self.schedule.start_next(self.now_ns) {
                self.start(start);
            }
            assert!(self.running.len() <= 3 && self.schedule.suspended.len() <= 16);
        }

        fn start(&mut self, start: Start) {
            let (Start::Begin(id) | Start::Resume(id)) = start;
            assert!(!self.running.contains(&id));
            self.running.push(id);
        }

        fn round(&mut self) {
            self.now_ns += MILLISECOND / 10;
            for id in self.running.clone() {
                let (left, done_at) = &mut self.jobs[id as usize];
                *left = left.saturating_sub(MILLISECOND / 10);
                if *left == 0 {
                    *done_at = Some(self.now_ns);
                    self.running.retain(|running| *running != id);
                    self.schedule.finish(id);
                    self.fill();
                } else if let Some(start) = self.schedule.give_way(id, self.now_ns) {
                    self.running.retain(|running| *running != id);
                    self.start(start);
                }
            }
        }

        fn run_for(&mut self, milliseconds: u64) {
            (0..10 * milliseconds).for_each(|_| self.round());
        }

        /// Runs until the job is done. Returns the time that this took, in milliseconds.
        fn finish(&mut self, id: JobId) -> u64 {
            let since = self.now_ns;
            loop {
                if let Some(at) = self.jobs[id as usize].1 {
                    return (at - since) / MILLISECOND;
                }
                self.round();
            }
        }

        fn is_done(&self, id: JobId) -> bool {
            self.jobs[id as usize].1.is_some()
        }
    }

    #[test]
    fn a_short_job_does_not_wait_for_long_ones() {
        let mut pool = Staged::new();
        let long: Vec<JobId> = (0..8).map(|_| pool.add(Long, 500)).collect();
        pool.run_for(100);
        let short = pool.add(Short, 1);
        assert_eq!(pool.finish(short), 1);
        // Three jobs: two of them find the short place taken, and wait for slices.
        let short: Vec<JobId> = (0..3).map(|_| pool.add(Short, 4)).collect();
        let took = short.into_iter().map(|id| pool.finish(id)).sum::<u64>();
        assert!(took <= 15, "{took} ms");
        assert!(long.iter().all(|id| !pool.is_done(*id)));
    }

    /// The third job is long by its estimate, but needs little time. It must end long before the
    /// other two.
    #[test]
    fn a_job_that_has_had_little_goes_before_those_that_have_had_much() {
        let mut pool = Staged::new();
        let long = [pool.add(Long, 500), pool.add(Long, 500)];
        pool.run_for(50);
        let medium = pool.add(Long, 5);
        let took = pool.finish(medium);
        assert!(took <= 15, "{took} ms");
        assert!(long.iter().all(|id| !pool.is_done(*id)));
    }

    #[test]
    fn a_part_of_an_answer_is_not_kept_waiting_by_new_jobs() {
        let mut pool = Staged::new();
        for _ in 0..100 {
            pool.add(Long, 20);
            pool.add(Short, 20);
        }
        let part = pool.add(Continued, 3);
        let took = pool.finish(part);
        assert!(took <= 20, "{took} ms");
    }

    #[test]
    fn a_long_job_ends_while_short_ones_keep_coming() {
        let mut pool = Staged::new();
        let long: Vec<JobId> = (0..4).map(|_| pool.add(Long, 50)).collect();
        // Add more short jobs than the pool can finish, and also chunks of responses.
        while !long.iter().all(|id| pool.is_done(*id)) {
            for _ in 0..4 {
                pool.add(Short, 1);
            }
            pool.add(Continued, 1);
            pool.run_for(1);
            assert!(pool.now_ns < 2_000 * MILLISECOND, "they starve");
        }
    }

    #[test]
    fn a_long_job_begins_while_short_ones_and_parts_keep_coming() {
        let mut pool = Staged::new();
        let mut others = Vec::new();
        let mut long = None;
        while !long.is_some_and(|id| pool.is_done(id)) {
            others.retain(|(id, _)| !pool.is_done(*id));
            while others.iter().filter(|(_, kind)| *kind == Short).count() < 20 {
                others.push((pool.add(Short, 1), Short));
            }
            while others.iter().filter(|(_, kind)| *kind == Continued).count() < 6 {
                others.push((pool.add(Continued, 3), Continued));
            }
            if pool.now_ns > 100 * MILLISECOND {
                long.get_or_insert_with(|| pool.add(Long, 5));
            }
            pool.round();
            assert!(pool.now_ns < 300 * MILLISECOND, "it starves");
        }
    }

    #[test]
    fn as_many_have_begun_as_may() {
        let mut pool = Staged::new();
        let jobs: Vec<JobId> = (0..40).map(|_| pool.add(Long, 10)).collect();
        for _ in 0..3000 {
            pool.round();
            let begun = pool.running.len() + pool.schedule.suspended.len();
            assert!(begun <= 4 && pool.running.len() <= 2, "{begun}");
        }
        assert!(jobs.iter().all(|id| pool.is_done(*id)));
        assert!(pool.running.is_empty() && pool.schedule.running.is_empty());
    }

    #[test]
    fn a_job_alone_is_not_suspended() {
        let mut pool = Staged::new();
        let alone = pool.add(Long, 100);
        assert_eq!(pool.finish(alone), 100);
        let two = [pool.add(Long, 100), pool.add(Long, 100)];
        assert!(two.map(|id| pool.finish(id)).into_iter().sum::<u64>() <= 101);
    }

    #[test]
    fn long_jobs_take_turns_in_long_slices() {
        let mut pool = Staged::new();
        let jobs: Vec<JobId> = (0..4).map(|_| pool.add(Long, 300)).collect();
        let mut switches = 0;
        let mut before = pool.running.clone();
        for _ in 0..4000 {
            pool.round();
            switches += usize::from(before != pool.running);
            before.clone_from(&pool.running);
        }
        assert!((20..=250).contains(&switches), "{switches} in 400 ms");
        let left = jobs.iter().map(|id| pool.jobs[*id as usize].0);
        let (least, most) = (left.clone().min(), left.max());
        assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 60 * MILLISECOND));
    }

    #[test]
    fn a_job_without_a_thread_is_begun_later() {
        let mut schedule = ReadSchedule::new(ScheduleLimits::READ_POOL);
        schedule.add(1, Short);
        schedule.add(2, Short);
        assert_eq!(schedule.start_next(0), Some(Start::Begin(1)));
        assert_eq!(schedule.start_next(0), Some(Start::Begin(2)));
        schedule.return_job(2, 1, 0);
        assert_eq!(schedule.start_next(0), None);
        schedule.finish(1);
        assert_eq!(schedule.start_next(0), Some(Start::Begin(2)));
        schedule.add(3, Short);
        assert_eq!(schedule.start_next(0), None);
        assert_eq!(schedule.start_next(THREAD_RETRY_NS), Some(Start::Begin(3)));
    }
}
