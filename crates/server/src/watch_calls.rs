//! How a watch stream calls the watchable store: directly, or in an old era on a thread that may
//! wait for its locks.
//!
//! In an old era creating or cancelling a watcher and reading a previous value take the lock
//! `watchable` or those of a read, which may be held for long. In etcd a goroutine of the stream
//! waits. Here a thread runs the calls of a stream in order, for as long as there are calls.

use std::collections::VecDeque;
use std::future::Future as _;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use clearlane_mvcc::watch::{CurrentWatchableStore, Response, StreamConsumer, WatchStream};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::error::{Error, Result};

#[derive(Debug)]
pub(crate) enum WatchCalls {
    /// For an era in which no lock is held for long.
    Direct(WatchStream),
    /// Each call may wait for locks.
    Queued(QueuedCalls),
}

impl WatchCalls {
    pub(crate) fn open(
        store: Arc<CurrentWatchableStore>,
        consumer: Arc<dyn StreamConsumer>,
        name: u64,
        may_wait: bool,
    ) -> WatchCalls {
        if may_wait {
            WatchCalls::Queued(QueuedCalls::open(store, consumer, name))
        } else {
            WatchCalls::Direct(WatchStream::open(store, consumer, name))
        }
    }

    /// Runs after the calls before it.
    pub(crate) fn call(&self, call: impl FnOnce(&WatchStream) + Send + 'static) {
        match self {
            WatchCalls::Direct(stream) => call(stream),
            WatchCalls::Queued(calls) => calls.push(Box::new(call)),
        }
    }

    /// Whether [`CALLS_MAX`] calls wait. The stream's task is woken when this is over.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            WatchCalls::Direct(_) => false,
            WatchCalls::Queued(calls) => calls.is_full(),
        }
    }
}

type Call = Box<dyn FnOnce(&WatchStream) + Send>;

/// With so many waiting calls no more requests of the client are taken.
const CALLS_MAX: usize = 64;

/// A stream whose calls run on a thread of their own.
pub(crate) struct QueuedCalls {
    shared: Arc<SharedCalls>,
    waker: StreamWaker,
    runtime: Handle,
    /// Responses whose previous values are being read.
    completing: Option<JoinHandle<Result<Vec<Response>>>>,
}

#[derive(Clone)]
struct StreamWaker {
    consumer: Arc<dyn StreamConsumer>,
    name: u64,
}

impl StreamWaker {
    fn wake(&self) {
        self.consumer.mark_ready(self.name);
        self.consumer.wake();
    }
}

#[derive(Default)]
struct SharedCalls {
    /// Set by the first call, which opens the stream.
    stream: OnceLock<WatchStream>,
    queue: Mutex<CallQueue>,
}

#[derive(Default)]
struct CallQueue {
    calls: VecDeque<Call>,
    /// A thread is running the calls.
    is_running: bool,
}

impl QueuedCalls {
    fn open(
        store: Arc<CurrentWatchableStore>,
        consumer: Arc<dyn StreamConsumer>,
        name: u64,
    ) -> QueuedCalls {
        let queue = Mutex::new(CallQueue { calls: VecDeque::new(), is_running: true });
        let shared = Arc::new(SharedCalls { stream: OnceLock::new(), queue });
        let waker = StreamWaker { consumer: Arc::clone(&consumer), name };
        let (runtime, opened) = (Handle::current(), Arc::clone(&shared));
        let when_open = waker.clone();
        runtime.spawn_blocking(move || {
            let _ = opened.stream.set(WatchStream::open(store, consumer, name));
            // The network thread may have looked before.
            when_open.wake();
            opened.run(&when_open);
        });
        QueuedCalls { shared, waker, runtime, completing: None }
    }

    fn is_full(&self) -> bool {
        self.shared.queue.lock().calls.len() >= CALLS_MAX
    }

    fn push(&self, call: Call) {
        {
            let mut queue = self.shared.queue.lock();
            queue.calls.push_back(call);
            if std::mem::replace(&mut queue.is_running, true) {
                return;
            }
        }
        let (shared, waker) = (Arc::clone(&self.shared), self.waker.clone());
        self.runtime.spawn_blocking(move || shared.run(&waker));
    }

    /// Takes up to about `bytes_max`, perhaps nothing. Pending while previous values are read.
    pub(crate) fn poll_responses(
        &mut self,
        bytes_max: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<Vec<Response>>> {
        if self.completing.is_none() {
            let Some(stream) = self.shared.stream.get() else { return Poll::Ready(Ok(Vec::new())) };
            // The old eras retry refused watchers by the clock, whether there is capacity or not.
            let (mut responses, _) = stream.take_responses(bytes_max);
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
        let Some(completing) = &mut self.completing else { return Poll::Ready(Ok(Vec::new())) };
        match Pin::new(completing).poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(done) => {
                self.completing = None;
                Poll::Ready(done.unwrap_or_else(|_| {
                    Err(Error::Panicked { thread: "a call of a watch stream".to_owned() })
                }))
            }
        }
    }
}

impl SharedCalls {
    fn run(&self, waker: &StreamWaker) {
        loop {
            let (call, was_full) = {
                let mut queue = self.queue.lock();
                let was_full = queue.calls.len() == CALLS_MAX;
                let call = queue.calls.pop_front();
                queue.is_running = call.is_some();
                (call, was_full)
            };
            if was_full {
                waker.wake();
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
        f.debug_struct("QueuedCalls").field("name", &self.waker.name).finish_non_exhaustive()
    }
}
