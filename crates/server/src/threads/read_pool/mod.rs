//! The read pool: threads for reads and other jobs that may be long. [Few of the jobs run at a
//! time](super::read_schedule).
//!
//! A network thread that reads twenty thousand records answers no other request during that time.
//! So long reads run in this pool, where a short read usually waits only for slices of the long
//! reads. A job that has used up its slice may have to wait at a [yield
//! point](clearlane_contention::YieldPoints), on its thread, while another job runs. More threads
//! start when they are needed, and end when they are not. At a yield point
//!
//! * a job whose request has been dropped ends by unwinding, and so does a job that has used up its
//!   slice after the pool was stopped. So no caller gets an incomplete result;
//! * a job must hold no lock, because other jobs may need the lock. So it reads from a snapshot,
//!   which needs none.
//!
//! A second pool, the uncached pool, performs the small reads that wait for the disk. A third pool
//! checks and hashes passwords, and signs tokens. In each of these two pools all started jobs run
//! at the same time, so no job waits at a yield point.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use clearlane_contention::{now_ns, set_yield_hook};
use clearlane_net::sched::offer_core;
use clearlane_replica::Result;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::read_schedule::{JobId, JobKind, ReadSchedule, SLICE_NS, ScheduleLimits, Start};

/// A thread ends after this time without a job, unless only [`KEPT_THREADS`] threads are left.
const IDLE_TIME: Duration = Duration::from_secs(10);
const KEPT_THREADS: usize = 2;

pub struct ReadPool {
    state: Mutex<PoolState>,
    arrived: Condvar,
    start_thread: OnceLock<StartThread>,
}

/// Starts the thread with the given number. The thread must call [`ReadPool::run_worker`].
pub(super) type StartThread = Box<dyn Fn(usize) -> io::Result<JoinHandle<()>> + Send + Sync>;

struct PoolState {
    schedule: ReadSchedule,
    queued: HashMap<JobId, Job>,
    /// Jobs that have a place among the running jobs, but no thread yet. A thread takes a job as
    /// soon as the thread is awake.
    to_begin: VecDeque<(JobId, Job)>,
    /// The condition variables of the suspended jobs. When a job's turn comes or the pool stops,
    /// its entry is removed and its thread is woken.
    suspended: HashMap<JobId, Arc<Condvar>>,
    last_id: JobId,
    thread_count: usize,
    /// Number of threads that wait for a job, or will wait as soon as they are awake.
    idle_threads: usize,
    threads: Vec<JoinHandle<()>>,
    is_stopped: bool,
}

type Job = Box<dyn FnOnce(&Arc<ReadPool>, JobId) + Send>;

/// The payload for unwinding a job whose result is no longer needed.
struct Abandoned;

impl ReadPool {
    pub(super) fn new(limits: ScheduleLimits) -> Arc<ReadPool> {
        let state = PoolState {
            schedule: ReadSchedule::new(limits),
            queued: HashMap::new(),
            to_begin: VecDeque::new(),
            suspended: HashMap::new(),
            last_id: 0,
            thread_count: 0,
            idle_threads: 0,
            threads: Vec::new(),
            is_stopped: false,
        };
        let (state, arrived) = (Mutex::new(state), Condvar::new());
        Arc::new(ReadPool { state, arrived, start_thread: OnceLock::new() })
    }

    /// Sets how threads are started. Call it before the first job is submitted.
    pub(super) fn set_start_thread(&self, start: StartThread) {
        let _ = self.start_thread.set(start);
    }

    pub fn queued_jobs(&self) -> usize {
        self.state.lock().queued.len()
    }

    /// Runs a job. Returns `None` if the pool has stopped or the job has panicked. A job whose
    /// request has been dropped is skipped.
    pub async fn run<T: Send + 'static>(
        &self,
        kind: JobKind,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.submit(kind, work).await.ok()
    }

    /// Submits a job. The receiver gets an error if the pool has stopped or the job has panicked.
    pub fn submit<T: Send + 'static>(
        &self,
        kind: JobKind,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (done, waits) = oneshot::channel();
        let job = job(done, work);
        let mut state = self.state.lock();
        if state.is_stopped {
            // Dropping the job drops its sender, which wakes the waiting request.
            return waits;
        }
        state.last_id += 1;
        let id = state.last_id;
        state.queued.insert(id, job);
        state.schedule.add(id, kind);
        let begun = self.start_ready(&mut state);
        drop(state);
        self.wake(begun);
        waits
    }

    /// Runs jobs. Returns when the pool stops, or when this thread has had no job for [`IDLE_TIME`]
    /// and is not one of the last [`KEPT_THREADS`].
    pub(super) fn run_worker(self: &Arc<Self>) -> Result<()> {
        set_yield_hook(yield_point);
        let mut state = self.state.lock();
        while !state.is_stopped {
            let Some((id, job)) = state.to_begin.pop_front() else {
                if self.is_idle_for_long(&mut state) {
                    break;
                }
                continue;
            };
            state.idle_threads -= 1;
            let run = || catch_unwind(AssertUnwindSafe(|| job(self, id)));
            let ended = MutexGuard::unlocked(&mut state, run);
            state.schedule.finish(id);
            if let Err(payload) = ended
                && !payload.is::<Abandoned>()
            {
                state.thread_count -= 1;
                let begun = self.start_ready(&mut state);
                drop(state);
                self.wake(begun);
                // The `catch_unwind` around `run_worker` turns the panic into the member's failure.
                resume_unwind(payload);
            }
            state.idle_threads += 1;
            let begun = self.start_ready(&mut state);
            // This thread itself takes one of the jobs, so one fewer thread must be woken.
            self.wake(begun.saturating_sub(1));
        }
        state.idle_threads -= 1;
        state.thread_count -= 1;
        Ok(())
    }

    fn is_idle_for_long(&self, state: &mut MutexGuard<'_, PoolState>) -> bool {
        if state.thread_count <= KEPT_THREADS {
            self.arrived.wait(state);
            return false;
        }
        let is_late = self.arrived.wait_for(state, IDLE_TIME).timed_out();
        is_late && state.to_begin.is_empty() && state.thread_count > KEPT_THREADS
    }

    fn wake(&self, threads: usize) {
        for _ in 0..threads {
            self.arrived.notify_one();
        }
    }

    /// Starts or resumes jobs until no place among the running jobs is free, or no job may run.
    /// Returns the number of threads that must be woken.
    fn start_ready(&self, state: &mut MutexGuard<'_, PoolState>) -> usize {
        let mut begun = 0;
        while !state.is_stopped
            && let Some(start) = state.schedule.start_next(now_ns())
        {
            begun += usize::from(self.start(state, start));
        }
        begun
    }

    /// Starts or resumes a job. Returns whether a thread must be woken.
    fn start(&self, state: &mut MutexGuard<'_, PoolState>, start: Start) -> bool {
        let id = match start {
            Start::Resume(id) => {
                if let Some(turn) = state.suspended.remove(&id) {
                    turn.notify_one();
                }
                return false;
            }
            Start::Begin(id) => id,
        };
        let Some(job) = state.queued.remove(&id) else { return false };
        state.to_begin.push_back((id, job));
        if state.to_begin.len() > state.idle_threads {
            self.add_thread(state);
        }
        true
    }

    fn add_thread(&self, state: &mut MutexGuard<'_, PoolState>) {
        let number = state.thread_count;
        state.thread_count += 1;
        state.idle_threads += 1;
        let start = || self.start_thread.get().map(|start| start(number));
        match MutexGuard::unlocked(state, start) {
            // The pool was stopped while the thread started. The thread ends immediately. It is
            // joined here, because `stop` does not know about it.
            Some(Ok(thread)) if state.is_stopped => {
                let _ = MutexGuard::unlocked(state, || thread.join());
            }
            Some(Ok(thread)) => {
                state.threads.retain(|thread| !thread.is_finished());
                state.threads.push(thread);
            }
            // No thread was started, so the job waits for one of the existing threads.
            _ => {
                state.thread_count -= 1;
                state.idle_threads -= 1;
                if let Some((id, job)) = state.to_begin.pop_back() {
                    state.queued.insert(id, job);
                    let threads = state.thread_count;
                    state.schedule.return_job(id, threads, now_ns());
                }
            }
        }
    }

    /// Called at a yield point. If this job must yield, waits for its next turn. Returns false if
    /// the pool has stopped and the job must end.
    fn give_way(&self, id: JobId) -> bool {
        let mut state = self.state.lock();
        if state.is_stopped {
            return false;
        }
        let Some(start) = state.schedule.give_way(id, now_ns()) else { return true };
        let turn = Arc::new(Condvar::new());
        state.suspended.insert(id, Arc::clone(&turn));
        let begun = usize::from(self.start(&mut state, start));
        // If no thread could be started, the place is free again.
        let begun = begun + self.start_ready(&mut state);
        self.wake(begun);
        while state.suspended.contains_key(&id) {
            turn.wait(&mut state);
        }
        !state.is_stopped
    }

    /// Stops the pool. A suspended job ends immediately. A running job ends at the first yield
    /// point after its slice. All other jobs are dropped, which informs the requests that wait for
    /// them. Returns the threads, which the caller must join.
    pub(super) fn stop(&self) -> Vec<JoinHandle<()>> {
        let mut state = self.state.lock();
        state.is_stopped = true;
        for (_, turn) in state.suspended.drain() {
            turn.notify_one();
        }
        let jobs = (std::mem::take(&mut state.queued), std::mem::take(&mut state.to_begin));
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.arrived.notify_all();
        drop(jobs);
        threads
    }
}

impl fmt::Debug for ReadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadPool").finish_non_exhaustive()
    }
}

thread_local! {
    /// The job of this thread.
    static CURRENT: RefCell<Option<Rc<CurrentJob>>> = const { RefCell::new(None) };
}

struct CurrentJob {
    pool: Arc<ReadPool>,
    id: JobId,
    is_request_gone: Box<dyn Fn() -> bool>,
    slice_began_ns: Cell<u64>,
}

/// While this value exists, `CURRENT` is the job of the thread.
struct CurrentJobScope;

impl CurrentJobScope {
    fn enter(job: CurrentJob) -> CurrentJobScope {
        CURRENT.set(Some(Rc::new(job)));
        CurrentJobScope
    }
}

impl Drop for CurrentJobScope {
    fn drop(&mut self) {
        CURRENT.set(None);
    }
}

fn job<T: Send + 'static>(
    done: oneshot::Sender<T>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Job {
    Box::new(move |pool, id| {
        if done.is_closed() {
            return;
        }
        let done = Rc::new(RefCell::new(Some(done)));
        let asks = Rc::clone(&done);
        let is_request_gone =
            Box::new(move || asks.borrow().as_ref().is_some_and(oneshot::Sender::is_closed));
        let (pool, slice_began_ns) = (Arc::clone(pool), Cell::new(now_ns()));
        let current = CurrentJob { pool, id, is_request_gone, slice_began_ns };
        let result = {
            let _until_done = CurrentJobScope::enter(current);
            work()
        };
        if let Some(done) = done.take() {
            let _ = done.send(result);
        }
    })
}

/// The hook that runs at each yield point of the pool's threads.
fn yield_point() {
    if let Some(job) = CURRENT.with_borrow(Option::clone) {
        take_turns(&job);
    }
    offer_core();
}

fn take_turns(job: &CurrentJob) {
    let is_slice_over = now_ns().saturating_sub(job.slice_began_ns.get()) >= SLICE_NS;
    if (job.is_request_gone)() || (is_slice_over && !job.pool.give_way(job.id)) {
        // Unwind without a panic, because the panic hook would print a panic.
        resume_unwind(Box::new(Abandoned));
    }
    if is_slice_over {
        job.slice_began_ns.set(now_ns());
    }
}

#[cfg(test)]
mod tests;
