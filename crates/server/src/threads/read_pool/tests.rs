//! Tests of the pool's threads. The module `read_schedule` decides which job runs, and has its own
//! tests.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use clearlane_contention::YieldPoints;

use super::JobKind::{Long, Short};
use super::*;

/// Returns a pool without a member. It can start at most `threads_max` threads.
fn pool_of(limits: ScheduleLimits, threads_max: usize) -> Arc<ReadPool> {
    let pool = ReadPool::new(limits);
    let weak = Arc::downgrade(&pool);
    pool.set_start_thread(Box::new(move |number| {
        let pool = weak.upgrade().filter(|_| number < threads_max);
        let pool = pool.ok_or_else(|| io::Error::other("there are no more threads"))?;
        Ok(thread::spawn(move || pool.run_worker().unwrap()))
    }));
    pool
}

fn read_pool() -> Arc<ReadPool> {
    pool_of(ScheduleLimits::READ_POOL, usize::MAX)
}

fn stop(pool: &ReadPool) {
    pool.stop().into_iter().for_each(|thread| thread.join().unwrap());
}

/// Computes until `ends` is set, with a yield point after each step.
fn spin(ends: &AtomicBool) {
    let mut steps = YieldPoints::default();
    while !ends.load(Ordering::Relaxed) {
        steps.advance(YieldPoints::BYTES_PER_STEP);
        thread::yield_now();
    }
}

/// Sends a number when it is dropped.
struct Notifies(Sender<usize>, usize);

impl Drop for Notifies {
    fn drop(&mut self) {
        let _ = self.0.send(self.1);
    }
}

/// Jobs that spin. The receivers get the number of each job when it has started, and when it has
/// ended.
struct Spinning {
    answers: Vec<oneshot::Receiver<()>>,
    begun: Receiver<usize>,
    ended: Receiver<usize>,
    ends: Arc<AtomicBool>,
}

impl Spinning {
    fn start(pool: &ReadPool, kind: JobKind, count: usize) -> Spinning {
        let ((begins, begun), (stops, ended)) = (mpsc::channel(), mpsc::channel());
        let ends = Arc::new(AtomicBool::new(false));
        let answers = (0..count).map(|number| {
            let (begins, end, ends) = (begins.clone(), stops.clone(), Arc::clone(&ends));
            pool.submit(kind, move || {
                let _at_end = Notifies(end, number);
                begins.send(number).unwrap();
                spin(&ends);
            })
        });
        Spinning { answers: answers.collect(), begun, ended, ends }
    }
}

#[test]
fn a_short_job_passes_eight_long_ones() {
    let pool = read_pool();
    let long = Spinning::start(&pool, Long, 8);
    // Four long jobs may start. Two of them run, and two are suspended.
    assert_eq!(long.begun.iter().take(4).count(), 4);
    let short = Spinning::start(&pool, Short, 3);
    assert_eq!(short.begun.iter().take(3).count(), 3);
    short.ends.store(true, Ordering::Relaxed);
    assert_eq!(short.ended.iter().take(3).count(), 3);
    assert!(long.ended.try_recv().is_err() && long.begun.try_recv().is_err());
    long.ends.store(true, Ordering::Relaxed);
    for answer in long.answers {
        answer.blocking_recv().unwrap();
    }
    stop(&pool);
}

#[test]
fn a_job_whose_request_is_gone_leaves() {
    let pool = read_pool();
    let mut long = Spinning::start(&pool, Long, 5);
    assert_eq!(long.begun.iter().take(4).count(), 4);
    // Drop the requests of one job that has not started (4), and of two jobs that have started (3
    // and 0). A started job runs or is suspended.
    for gone in [4, 3, 0] {
        drop(long.answers.remove(gone));
    }
    let mut ended = [long.ended.recv().unwrap(), long.ended.recv().unwrap()];
    ended.sort_unstable();
    assert_eq!(ended, [0, 3]);
    long.ends.store(true, Ordering::Relaxed);
    for answer in long.answers {
        answer.blocking_recv().unwrap();
    }
    assert!(long.begun.try_recv().is_err(), "what waited has not begun");
    stop(&pool);
}

#[test]
fn suspended_jobs_end_with_the_pool() {
    let pool = read_pool();
    let long = Spinning::start(&pool, Long, 6);
    assert_eq!(long.begun.iter().take(4).count(), 4);
    stop(&pool);
    for answer in long.answers {
        assert!(answer.blocking_recv().is_err(), "it was not done");
    }
    assert_eq!(long.ended.iter().count(), 4);
    assert!(pool.submit(Short, || ()).blocking_recv().is_err(), "it has stopped");
}

#[test]
fn a_panic_takes_its_thread_and_no_place() {
    let pool = read_pool();
    for _ in 0..3 {
        let failed = pool.submit(Long, || resume_unwind(Box::new("a bug")));
        assert!(failed.blocking_recv().is_err());
    }
    let both = Arc::new(Barrier::new(2));
    let meet = [(); 2].map(|()| {
        let both = Arc::clone(&both);
        pool.submit(Long, move || both.wait().is_leader())
    });
    let leaders = meet.map(|met| met.blocking_recv().unwrap());
    assert_ne!(leaders[0], leaders[1]);
    // The pool drops the handles of ended threads when it starts another one. So fewer than three
    // panics may be found here. In a real member, the first panic makes the member fail.
    let failed = pool.stop().into_iter().filter_map(|thread| thread.join().err());
    assert!(failed.count() <= 3);
}

#[test]
fn without_more_threads_the_jobs_wait_for_each_other() {
    let pool = pool_of(ScheduleLimits::READ_POOL, 1);
    let done = Arc::new(AtomicBool::new(false));
    let first = {
        let done = Arc::clone(&done);
        pool.submit(Long, move || spin(&done))
    };
    let others: Vec<_> = (0..8).map(|number| pool.submit(Short, move || number)).collect();
    done.store(true, Ordering::Relaxed);
    first.blocking_recv().unwrap();
    let sum: usize = others.into_iter().map(|answer| answer.blocking_recv().unwrap()).sum();
    assert_eq!(sum, 28);
    stop(&pool);
}

#[test]
fn in_the_pool_of_small_reads_none_is_suspended() {
    let pool = pool_of(ScheduleLimits::UNCACHED_POOL, usize::MAX);
    let small = Spinning::start(&pool, Short, 5);
    let mut begun: Vec<usize> = (0..4).map(|_| small.begun.recv().unwrap()).collect();
    begun.sort_unstable();
    assert_eq!(begun, [0, 1, 2, 3]);
    assert!(small.begun.try_recv().is_err());
    small.ends.store(true, Ordering::Relaxed);
    for answer in small.answers {
        answer.blocking_recv().unwrap();
    }
    stop(&pool);
}
