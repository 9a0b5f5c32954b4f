//! The read pool: a few threads for what takes long to read.
//!
//! A network thread that reads twenty thousand records answers no other request meanwhile. Such
//! work is left here. There are few threads, so that expensive reads take no more than these: the
//! next one waits, and what waits is only a request.
//!
//! A second pool has what is small and not in memory. Its threads wait for the disk, and behind a
//! long read it would wait for that, too.

use std::collections::VecDeque;
use std::fmt;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

/// Jobs, and the condition variable on which the pool's threads wait for one.
#[derive(Default)]
pub struct ReadPool {
    queue: Mutex<JobQueue>,
    arrived: Condvar,
}

#[derive(Default)]
struct JobQueue {
    /// What begins, and what goes on: they take turns, or an answer that is being sent would stand
    /// still behind many that have not begun.
    new_jobs: VecDeque<Job>,
    continued_jobs: VecDeque<Job>,
    prefers_new_job: bool,
    is_stopped: bool,
}

type Job = Box<dyn FnOnce() + Send>;

impl JobQueue {
    fn next(&mut self) -> Option<Job> {
        self.prefers_new_job = !self.prefers_new_job;
        if self.prefers_new_job {
            self.new_jobs.pop_front().or_else(|| self.continued_jobs.pop_front())
        } else {
            self.continued_jobs.pop_front().or_else(|| self.new_jobs.pop_front())
        }
    }

    fn clear(&mut self) {
        self.new_jobs.clear();
        self.continued_jobs.clear();
    }
}

impl ReadPool {
    /// Has something done. Nothing comes back if the pool has stopped. A request that does not
    /// wait any more when its turn comes is passed over.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.submit(work, |queue| &mut queue.new_jobs).await.ok()
    }

    /// Has the next part of something done that has begun.
    pub fn run_continuation<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        self.submit(work, |queue| &mut queue.continued_jobs)
    }

    fn submit<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
        place: impl FnOnce(&mut JobQueue) -> &mut VecDeque<Job>,
    ) -> oneshot::Receiver<T> {
        let (done, waits) = oneshot::channel();
        let job = Box::new(move || {
            if !done.is_closed() {
                let _ = done.send(work());
            }
        });
        {
            let mut queue = self.queue.lock();
            if queue.is_stopped {
                // The job goes, and with it the sender: this wakes the waiting request.
                return waits;
            }
            place(&mut queue).push_back(job);
        }
        self.arrived.notify_one();
        waits
    }

    /// A thread of the pool, until it is stopped.
    pub(super) fn run_worker(&self) {
        let mut queue = self.queue.lock();
        while !queue.is_stopped {
            match queue.next() {
                Some(job) => {
                    drop(queue);
                    job();
                    queue = self.queue.lock();
                }
                None => self.arrived.wait(&mut queue),
            }
        }
        // The waiting requests are notified that no thread will serve them.
        queue.clear();
    }

    pub(super) fn stop(&self) {
        let mut queue = self.queue.lock();
        queue.is_stopped = true;
        queue.clear();
        drop(queue);
        self.arrived.notify_all();
    }
}

impl fmt::Debug for ReadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadPool").finish_non_exhaustive()
    }
}
