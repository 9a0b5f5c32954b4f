//! Watching on a network thread: streams, and a wake set that wakes them. See `docs/watch.md`.
//!
//! ```text
//!   delivery thread    channel 3, channel 7, channel 9 ──▶ wake set: [3 7 9], wake once
//!   net thread         wake set's task: wake tasks 3 7 9 │ 3 takes, sends │ 7 takes, sends │ ...
//! ```
//!
//! To wake a thread costs more than to notify a stream. So the delivery thread leaves the numbers
//! of the streams in the [`WatchWakeSet`] of their net thread, and wakes that once. A slow client
//! blocks no other one: its channel is bounded, and what does not fit is read from the store later
//! ([`clearlane_mvcc::watch`]). When a raft snapshot replaces the store, the streams move to the
//! new one: see [`CurrentWatchableStore`].

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use clearlane_backend::Era;
use clearlane_contention::Registry;
use clearlane_mvcc::WatchableKv;
use clearlane_mvcc::watch::{
    CurrentWatchableStore, Response, StreamConsumer, WatchConfig, WatchId, WatchMetrics,
    WatchRequest, WatchStream, WatchWork, WatchableStore,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::applied_position::AppliedPosition;
use crate::error::Result;
use crate::threads::watch_thread::ThreadSignal;
use crate::watch_calls::WatchCalls;

/// etcd's `--watch-progress-notify-interval`.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10 * 60);

#[derive(Debug)]
pub struct WatchServer {
    pub(crate) store: Arc<CurrentWatchableStore>,
    pub(crate) signals: Arc<WatchSignals>,
    config: WatchConfig,
    locks: Registry,
    streams: AtomicUsize,
    progress_interval_ms: AtomicU64,
    calls_may_wait: bool,
}

#[derive(Debug, Default)]
pub(crate) struct WatchSignals {
    pub(crate) delivery: ThreadSignal,
    pub(crate) sync: ThreadSignal,
}

impl WatchSignals {
    fn both(&self) -> [&ThreadSignal; 2] {
        [&self.delivery, &self.sync]
    }
}

impl WatchServer {
    pub(crate) fn new(
        store: &Arc<dyn WatchableKv<AppliedPosition>>,
        locks: &Registry,
    ) -> WatchServer {
        let (config, signals) = (WatchConfig::default(), Arc::new(WatchSignals::default()));
        let watchable = watchable_store(store, config, locks, &signals);
        WatchServer {
            store: Arc::new(CurrentWatchableStore::new(watchable, locks)),
            signals,
            config,
            locks: locks.clone(),
            streams: AtomicUsize::new(0),
            progress_interval_ms: AtomicU64::new(PROGRESS_INTERVAL.as_millis() as u64),
            calls_may_wait: store.era() != Era::Clearlane,
        }
    }

    pub fn metrics(&self) -> WatchMetrics {
        self.store.read().metrics()
    }

    pub fn progress_interval(&self) -> Duration {
        Duration::from_millis(self.progress_interval_ms.load(Ordering::Relaxed))
    }

    /// Applies to streams that are opened from now on.
    pub fn set_progress_interval(&self, interval: Duration) {
        self.progress_interval_ms.store(interval.as_millis() as u64, Ordering::Relaxed);
    }

    pub(crate) fn replace_store(&self, store: &Arc<dyn WatchableKv<AppliedPosition>>) {
        self.store.replace(watchable_store(store, self.config, &self.locks, &self.signals));
        self.signals.both().into_iter().for_each(ThreadSignal::notify);
    }

    pub(crate) fn has_streams(&self) -> bool {
        self.streams.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn close(&self) {
        self.signals.both().into_iter().for_each(ThreadSignal::close);
    }
}

fn watchable_store(
    store: &Arc<dyn WatchableKv<AppliedPosition>>,
    config: WatchConfig,
    locks: &Registry,
    signals: &Arc<WatchSignals>,
) -> Arc<dyn WatchableStore> {
    let signals = Arc::clone(signals);
    let wake = move |due| match due {
        WatchWork::Delivery => signals.delivery.notify(),
        WatchWork::SyncWatchers => signals.sync.notify(),
    };
    Arc::clone(store).open_watchable_store(config, locks, Box::new(wake))
}

/// Wakes the streams of one network thread.
#[derive(Clone, Debug)]
pub struct WatchWakeSet {
    watch_server: Arc<WatchServer>,
    wake_queue: Arc<WakeQueue>,
}

/// Filled by the threads that notify watchers, emptied by one network thread.
#[derive(Debug, Default)]
struct WakeQueue {
    ready: Mutex<Vec<u64>>,
    notify: Notify,
    streams: Mutex<StreamSlots>,
}

impl StreamConsumer for WakeQueue {
    fn mark_ready(&self, stream: u64) {
        self.ready.lock().push(stream);
    }

    fn wake(&self) {
        self.notify.notify_one();
    }
}

/// The streams of a wake set by number.
#[derive(Default)]
struct StreamSlots {
    slots: Vec<StreamSlot>,
    free: Vec<usize>,
}

#[derive(Default)]
struct StreamSlot {
    waker: Option<Waker>,
    /// A notification came since the task last polled.
    is_notified: bool,
}

impl WatchWakeSet {
    /// The set's [task](WatchWakeSet::run) must run on the thread that opens its streams.
    pub fn new(watching: &Arc<WatchServer>) -> WatchWakeSet {
        WatchWakeSet { watch_server: Arc::clone(watching), wake_queue: Arc::default() }
    }

    pub fn watch_server(&self) -> &Arc<WatchServer> {
        &self.watch_server
    }

    /// Dropping the stream ends its watchers.
    pub fn open(&self) -> Stream {
        let number = {
            let mut streams = self.wake_queue.streams.lock();
            streams.free.pop().unwrap_or_else(|| {
                streams.slots.push(StreamSlot::default());
                streams.slots.len() - 1
            })
        };
        let is_first = self.watch_server.streams.fetch_add(1, Ordering::Relaxed) == 0;
        let (store, consumer) =
            (Arc::clone(&self.watch_server.store), Arc::clone(&self.wake_queue));
        let may_wait = self.watch_server.calls_may_wait;
        let calls = WatchCalls::open(store, consumer, number as u64, may_wait);
        if is_first {
            self.watch_server.signals.both().into_iter().for_each(ThreadSignal::notify);
        }
        Stream { calls, slot: number, wake_set: self.clone() }
    }

    /// Wakes the streams' tasks, until it is dropped.
    pub async fn run(self) {
        loop {
            self.wake_queue.notify.notified().await;
            let ready = std::mem::take(&mut *self.wake_queue.ready.lock());
            let mut streams = self.wake_queue.streams.lock();
            for stream in ready {
                let slot = &mut streams.slots[stream as usize];
                slot.is_notified = true;
                if let Some(task) = slot.waker.take() {
                    task.wake();
                }
            }
        }
    }
}

#[derive(Debug)]
pub struct Stream {
    calls: WatchCalls,
    slot: usize,
    wake_set: WatchWakeSet,
}

impl Stream {
    /// Whether the watcher was created is told by a response.
    pub fn watch(&self, request: WatchRequest) {
        self.calls.call(|stream| stream.watch(request));
    }

    pub fn cancel(&self, id: WatchId) {
        self.calls.call(move |stream| stream.cancel(id));
    }

    /// Answered only if all watchers of the stream are synced.
    pub fn request_progress(&self) {
        self.calls.call(WatchStream::request_progress);
    }

    /// Sends progress notices, unless calls of the stream are waiting.
    pub fn interval_passed(&self) {
        if !self.is_full() {
            self.calls.call(WatchStream::notify_progress);
        }
    }

    /// Whether so many calls wait that no more requests of the client should be taken. The polling
    /// task is woken when this is over.
    pub fn is_full(&self) -> bool {
        self.calls.is_full()
    }

    /// Takes up to about `bytes_max`; pending until there is something.
    pub fn poll_responses(
        &mut self,
        bytes_max: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<Vec<Response>>> {
        loop {
            self.with_slot(|slot| slot.is_notified = false);
            let taken = match &mut self.calls {
                WatchCalls::Direct(stream) => stream.poll_responses(bytes_max)?,
                WatchCalls::Queued(calls) => {
                    std::task::ready!(calls.poll_responses(bytes_max, context))?
                }
            };
            if !taken.is_empty() {
                return Poll::Ready(Ok(taken));
            }
            let sleeps = self.with_slot(|slot| {
                slot.waker = Some(context.waker().clone());
                !slot.is_notified
            });
            if sleeps {
                return Poll::Pending;
            }
        }
    }

    fn with_slot<R>(&self, look: impl FnOnce(&mut StreamSlot) -> R) -> R {
        look(&mut self.wake_set.wake_queue.streams.lock().slots[self.slot])
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.wake_set.watch_server.streams.fetch_sub(1, Ordering::Relaxed);
        let mut streams = self.wake_set.wake_queue.streams.lock();
        // The next stream in this slot may be woken once for nothing.
        streams.slots[self.slot] = StreamSlot::default();
        streams.free.push(self.slot);
    }
}

impl fmt::Debug for StreamSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamSlots").field("slots", &self.slots.len()).finish_non_exhaustive()
    }
}
