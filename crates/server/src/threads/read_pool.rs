//! The read pool: a few threads for long reads.
//!
//! A network thread that reads twenty thousand records answers no other request meanwhile. A second
//! pool has the small reads that wait for the disk, so that they do not wait behind long ones, too.

use std::collections::VecDeque;
use std::fmt;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::error::Result;

#[derive(Default)]
pub struct ReadPool {
    queue: Mutex<JobQueue>,
    arrived: Condvar,
}

#[derive(Default)]
struct JobQueue {
    /// New and continued jobs take turns, or an answer that is being sent would wait for many that
    /// have not begun.
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
}

impl ReadPool {
    /// `None` if the pool has stopped. A job whose request has been dropped is skipped.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.submit(work, |queue| &mut queue.new_jobs).await.ok()
    }

    /// Runs the next part of a job that has begun.
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
                // Dropping the job drops its sender, which wakes the waiting request.
                return waits;
            }
            place(&mut queue).push_back(job);
        }
        self.arrived.notify_one();
        waits
    }

    /// Returns when the pool stops.
    pub(super) fn run_worker(&self) -> Result<()> {
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
        Ok(())
    }

    /// Dropping the jobs tells the waiting requests that they are not run.
    pub(super) fn stop(&self) {
        *self.queue.lock() = JobQueue { is_stopped: true, ..JobQueue::default() };
        self.arrived.notify_all();
    }
}

impl fmt::Debug for ReadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadPool").finish_non_exhaustive()
    }
}
