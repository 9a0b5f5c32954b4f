//! Watch streams on a network thread, and the wake set that wakes them. See `docs/watch.md`.
//!
//! ```text
//!   delivery thread   channel 3, channel 7, channel 9 ──▶ wake set: [3 7 9], wake once
//!   network thread    wake set's task: wake tasks 3 7 9 │ 3 takes, sends │ 7 takes, sends │ ...
//! ```
//!
//! Waking a thread costs more than notifying a stream. So each network thread has a [`WakeSet`],
//! which wakes the thread once for several streams.
//! When a raft snapshot replaces the store, the streams move to the new store: see
//! [`CurrentWatchableStore`].

mod calls;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use clearlane_contention::Registry;
use clearlane_mvcc::WatchableKv;
use clearlane_mvcc::watch::{
    CurrentWatchableStore, Response, WakeSet, WatchConfig, WatchId, WatchMetrics, WatchRequest,
    WatchStream, WatchWork, WatchableStore,
};
use clearlane_replica::applied_position::AppliedPosition;
use clearlane_replica::{EraPolicy, Result};
use tokio::sync::Notify;

use crate::threads::watch_thread::ThreadSignal;
use crate::watch::calls::QueuedCalls;

/// etcd's default of `--watch-progress-notify-interval`.
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
        era: EraPolicy,
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
            calls_may_wait: era.waits_for_locks,
        }
    }

    pub fn metrics(&self) -> WatchMetrics {
        self.store.read().metrics()
    }

    pub fn progress_interval(&self) -> Duration {
        Duration::from_millis(self.progress_interval_ms.load(Ordering::Relaxed))
    }

    /// Sets the interval for streams that are opened after this call.
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

/// Opens the streams of one network thread, and wakes their tasks.
#[derive(Clone, Debug)]
pub struct WatchWakeSet {
    watch_server: Arc<WatchServer>,
    wake_set: Arc<WakeSet>,
    notify: Arc<Notify>,
}

impl WatchWakeSet {
    /// Creates a wake set. Its [task](WatchWakeSet::run) must run on the thread that opens its
    /// streams.
    pub fn new(watching: &Arc<WatchServer>) -> WatchWakeSet {
        let notify = Arc::new(Notify::new());
        let wake = Arc::clone(&notify);
        let wake_set = WakeSet::new(move || wake.notify_one());
        WatchWakeSet { watch_server: Arc::clone(watching), wake_set, notify }
    }

    pub fn watch_server(&self) -> &Arc<WatchServer> {
        &self.watch_server
    }

    /// Opens a stream. Dropping the stream ends its watchers.
    pub fn open(&self) -> Stream {
        let watch_server = Arc::clone(&self.watch_server);
        let is_first = watch_server.streams.fetch_add(1, Ordering::Relaxed) == 0;
        let (store, wake_set) = (Arc::clone(&watch_server.store), Arc::clone(&self.wake_set));
        let calls = if watch_server.calls_may_wait {
            WatchCalls::Queued(QueuedCalls::open(store, wake_set))
        } else {
            WatchCalls::Direct(WatchStream::open(store, wake_set))
        };
        if is_first {
            watch_server.signals.both().into_iter().for_each(ThreadSignal::notify);
        }
        Stream { calls, watch_server }
    }

    /// Wakes the streams' tasks until this future is dropped.
    pub async fn run(self) {
        loop {
            self.notify.notified().await;
            self.wake_set.wake_tasks();
        }
    }
}

/// A watch stream of a client, with its watchers.
#[derive(Debug)]
pub struct Stream {
    calls: WatchCalls,
    watch_server: Arc<WatchServer>,
}

#[derive(Debug)]
enum WatchCalls {
    /// Calls run on the network thread. This variant is for an era where no lock is held for a long
    /// time.
    Direct(WatchStream),
    /// Calls run on another thread, because each call may wait for locks.
    Queued(QueuedCalls),
}

impl Stream {
    /// Creates a watcher. A response reports whether it was created.
    pub fn watch(&self, request: WatchRequest) {
        self.call(|stream| stream.watch(request));
    }

    pub fn cancel(&self, id: WatchId) {
        self.call(move |stream| stream.cancel(id));
    }

    /// Requests a progress notice. The notice is sent only if the stream has a watcher and all its
    /// watchers are synced and have reached their start revision.
    pub fn request_progress(&self) {
        self.call(WatchStream::request_progress);
    }

    /// Sends the periodic progress notices. The caller calls this function after each interval. It
    /// sends no notice if too many calls of the stream are waiting.
    pub fn interval_passed(&self) {
        if !matches!(&self.calls, WatchCalls::Queued(calls) if calls.is_full()) {
            self.call(WatchStream::notify_progress);
        }
    }

    /// Runs a call after all earlier calls.
    fn call(&self, call: impl FnOnce(&WatchStream) + Send + 'static) {
        match &self.calls {
            WatchCalls::Direct(stream) => call(stream),
            WatchCalls::Queued(calls) => calls.push(Box::new(call)),
        }
    }

    /// Returns `Pending` while too many calls wait. During this time, no further requests of the
    /// client should be read.
    pub fn poll_ready(&self, context: &mut Context<'_>) -> Poll<()> {
        match &self.calls {
            WatchCalls::Direct(_) => Poll::Ready(()),
            WatchCalls::Queued(calls) => calls.poll_ready(context),
        }
    }

    /// Returns responses of up to about `bytes_max` bytes. Returns `Pending` until there are
    /// responses.
    pub fn poll_responses(
        &mut self,
        bytes_max: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<Vec<Response>>> {
        match &mut self.calls {
            WatchCalls::Direct(stream) => stream.poll_responses(bytes_max, context).map(Ok),
            WatchCalls::Queued(calls) => calls.poll_responses(bytes_max, context),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.watch_server.streams.fetch_sub(1, Ordering::Relaxed);
    }
}
