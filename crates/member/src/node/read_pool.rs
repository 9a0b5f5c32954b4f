//! The read pool: a few threads for what takes long to read.
//!
//! A network thread that reads twenty thousand records answers nobody else meanwhile. Such work is
//! left here. There are few threads, so that expensive reads never take the whole machine: the next
//! one waits, and what waits is only a request.

use std::collections::VecDeque;
use std::fmt;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

/// Work that waits, and the door at which the threads do.
#[derive(Default)]
pub struct ReadPool {
    queue: Mutex<Queue>,
    arrived: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Box<dyn FnOnce() + Send>>,
    is_stopped: bool,
}

impl ReadPool {
    /// Has something done. Nothing comes back if the pool has stopped. Whoever does not wait any
    /// more when his turn comes is passed over.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (done, waits) = oneshot::channel();
        let job = Box::new(move || {
            if !done.is_closed() {
                let _ = done.send(work());
            }
        });
        {
            let mut queue = self.queue.lock();
            if queue.is_stopped {
                return None;
            }
            queue.jobs.push_back(job);
        }
        self.arrived.notify_one();
        waits.await.ok()
    }

    /// How many jobs wait for a thread.
    pub fn waiting(&self) -> usize {
        self.queue.lock().jobs.len()
    }

    /// A thread of the pool, until it is stopped.
    pub(super) fn work(&self) {
        let mut queue = self.queue.lock();
        while !queue.is_stopped {
            match queue.jobs.pop_front() {
                Some(job) => {
                    drop(queue);
                    job();
                    queue = self.queue.lock();
                }
                None => self.arrived.wait(&mut queue),
            }
        }
        // Those who wait hear that nobody comes.
        queue.jobs.clear();
    }

    pub(super) fn stop(&self) {
        let mut queue = self.queue.lock();
        queue.is_stopped = true;
        queue.jobs.clear();
        drop(queue);
        self.arrived.notify_all();
    }
}

impl fmt::Debug for ReadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadPool").field("waiting", &self.waiting()).finish_non_exhaustive()
    }
}
