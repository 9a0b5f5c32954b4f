//! The calls of a watch stream in an old era, on a thread that may wait for the locks.
//!
//! Creating or cancelling a watcher takes the lock `watchable`, and reading a previous record takes
//! the locks of a read. Another thread may hold any of these locks for a long time. etcd lets a
//! goroutine of the stream wait. Here one thread runs the calls of a stream in order, and ends when
//! there are no more calls. Another thread reads the previous records of responses.

use std::collections::VecDeque;
use std::future::Future as _;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use atomic_waker::AtomicWaker;
use clearlane_mvcc::watch::{CurrentWatchableStore, Response, WakeSet, WatchStream};
use clearlane_replica::{Error, Result};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

type Call = Box<dyn FnOnce(&WatchStream) + Send>;

/// Number of waiting calls at which the queue is full. Then no further requests of the client are
/// read, and periodic progress notices are skipped. Calls that cancel watchers without a request of
/// the client, for example after a permission was revoked, are still queued.
const CALLS_MAX: usize = 64;

/// A stream whose calls run on a separate thread.
pub(crate) struct QueuedCalls {
    shared: Arc<SharedCalls>,
    runtime: Handle,
    /// The task that is reading the previous records of responses. `None` if there is no such task.
    completing: Option<JoinHandle<Result<Vec<Response>>>>,
}

#[derive(Default)]
struct SharedCalls {
    /// The stream. The separate thread opens it before the first call; until then the cell is
    /// empty.
    stream: OnceLock<WatchStream>,
    queue: Mutex<CallQueue>,
    /// The network thread's task. It is woken when the stream is open, and when the queue is no
    /// longer full.
    task: AtomicWaker,
}

#[derive(Default)]
struct CallQueue {
    calls: VecDeque<Call>,
    /// If true, a thread is running the calls.
    is_running: bool,
}

impl QueuedCalls {
    pub(crate) fn open(store: Arc<CurrentWatchableStore>, wake_set: Arc<WakeSet>) -> QueuedCalls {
        let shared = Arc::new(SharedCalls::default());
        shared.queue.lock().is_running = true;
        let (runtime, opened) = (Handle::current(), Arc::clone(&shared));
        runtime.spawn_blocking(move || {
            let _ = opened.stream.set(WatchStream::open(store, wake_set));
            // Wake the network thread's task, because it may have checked before the stream was
            // set.
            opened.task.wake();
            opened.run();
        });
        QueuedCalls { shared, runtime, completing: None }
    }

    /// Returns whether at least [`CALLS_MAX`] calls wait.
    pub(crate) fn is_full(&self) -> bool {
        self.shared.queue.lock().calls.len() >= CALLS_MAX
    }

    pub(crate) fn poll_ready(&self, context: &mut Context<'_>) -> Poll<()> {
        // Register the waker before the check, because the queue may be emptied right after the
        // check.
        self.shared.task.register(context.waker());
        if self.is_full() { Poll::Pending } else { Poll::Ready(()) }
    }

    pub(crate) fn push(&self, call: Call) {
        {
            let mut queue = self.shared.queue.lock();
            queue.calls.push_back(call);
            if std::mem::replace(&mut queue.is_running, true) {
                return;
            }
        }
        let shared = Arc::clone(&self.shared);
        self.runtime.spawn_blocking(move || shared.run());
    }

    /// Returns responses of up to about `bytes_max` bytes. Returns `Pending` until there are
    /// responses, and while their previous records are being read.
    pub(crate) fn poll_responses(
        &mut self,
        bytes_max: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<Vec<Response>>> {
        loop {
            if let Some(completing) = &mut self.completing {
                let completed = ready!(Pin::new(completing).poll(context));
                self.completing = None;
                return Poll::Ready(completed.unwrap_or_else(|_| {
                    Err(Error::Panicked { thread: "a call of a watch stream".to_owned() })
                }));
            }
            self.shared.task.register(context.waker());
            let Some(stream) = self.shared.stream.get() else { return Poll::Pending };
            let mut responses = ready!(stream.poll_responses(bytes_max, context));
            if !stream.lacks_previous_records(&responses) {
                return Poll::Ready(Ok(responses));
            }
            let shared = Arc::clone(&self.shared);
            self.completing = Some(self.runtime.spawn_blocking(move || {
                if let Some(stream) = shared.stream.get() {
                    stream.add_previous_records(&mut responses)?;
                }
                Ok(responses)
            }));
        }
    }
}

impl SharedCalls {
    fn run(&self) {
        loop {
            let (call, was_full) = {
                let mut queue = self.queue.lock();
                let was_full = queue.calls.len() == CALLS_MAX;
                let call = queue.calls.pop_front();
                queue.is_running = call.is_some();
                (call, was_full)
            };
            if was_full {
                self.task.wake();
            }
            let (Some(call), Some(stream)) = (call, self.stream.get()) else { return };
            call(stream);
        }
    }
}

/// Closes the stream after the last call, on a thread that may wait, unless the runtime has ended.
impl Drop for QueuedCalls {
    fn drop(&mut self) {
        let shared = std::mem::take(&mut self.shared);
        self.runtime.spawn_blocking(move || drop(shared));
    }
}

impl std::fmt::Debug for QueuedCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuedCalls").finish_non_exhaustive()
    }
}
