//! The calls of a watch stream in an old era: on a thread that may wait for the locks.
//!
//! Creating or cancelling a watcher and reading a previous value take the lock `watchable` or those
//! of a read, which may be held for long. In etcd a goroutine of the stream waits. Here a thread
//! runs the calls of a stream in order, for as long as there are calls.

use std::collections::VecDeque;
use std::future::Future as _;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use atomic_waker::AtomicWaker;
use clearlane_mvcc::watch::{CurrentWatchableStore, Response, WakeSet, WatchStream};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::error::{Error, Result};

type Call = Box<dyn FnOnce(&WatchStream) + Send>;

/// With so many waiting calls no more requests of the client are taken.
const CALLS_MAX: usize = 64;

/// A stream whose calls run on a thread of their own.
pub(crate) struct QueuedCalls {
    shared: Arc<SharedCalls>,
    runtime: Handle,
    /// Responses whose previous values are being read.
    completing: Option<JoinHandle<Result<Vec<Response>>>>,
}

#[derive(Default)]
struct SharedCalls {
    /// Set by the first call, which opens the stream.
    stream: OnceLock<WatchStream>,
    queue: Mutex<CallQueue>,
    /// Woken when the stream is open, and when the queue is not full any more.
    task: AtomicWaker,
}

#[derive(Default)]
struct CallQueue {
    calls: VecDeque<Call>,
    /// A thread is running the calls.
    is_running: bool,
}

impl QueuedCalls {
    pub(crate) fn open(store: Arc<CurrentWatchableStore>, wake_set: Arc<WakeSet>) -> QueuedCalls {
        let shared = Arc::new(SharedCalls::default());
        shared.queue.lock().is_running = true;
        let (runtime, opened) = (Handle::current(), Arc::clone(&shared));
        runtime.spawn_blocking(move || {
            let _ = opened.stream.set(WatchStream::open(store, wake_set));
            // The network thread may have looked before.
            opened.task.wake();
            opened.run();
        });
        QueuedCalls { shared, runtime, completing: None }
    }

    /// Whether [`CALLS_MAX`] calls wait.
    pub(crate) fn is_full(&self) -> bool {
        self.shared.queue.lock().calls.len() >= CALLS_MAX
    }

    pub(crate) fn poll_ready(&self, context: &mut Context<'_>) -> Poll<()> {
        // Before the look: the queue may be emptied right after it.
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

    /// Takes up to about `bytes_max`. Pending until there is something, and while the records
    /// before are read.
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

/// Closes the stream after the last call, on a thread that may wait unless the runtime has ended.
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
