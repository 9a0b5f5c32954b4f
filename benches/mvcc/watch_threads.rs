//! The threads that a server has for its watchers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use clearlane_backend::Era;
use clearlane_contention::Registry;
use clearlane_mvcc::watch::{
    CurrentWatchableStore, Response, WakeSet, WatchConfig, WatchRequest, WatchStream, WatchWork,
    WatchableStore,
};
use parking_lot::Mutex;

use crate::bench_store::{BenchStore, ThreadSignal};
use crate::pace::processor_time;

/// How often an old era retries watchers whose stream was full.
const VICTIM_RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// How often an old era synchronizes unsynced watchers.
const SYNC_INTERVAL: Duration = Duration::from_millis(100);
/// How often a sleeping thread checks whether the window is over.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of bytes of responses that are taken in one call.
const POLL_BYTES_MAX: usize = 256 << 10;

/// A watchable store, and the signals of its threads.
pub(crate) struct WatchThreads {
    pub(crate) watchable_store: Arc<dyn WatchableStore>,
    era: Era,
    delivery_signal: Arc<ThreadSignal>,
    sync_signal: Arc<ThreadSignal>,
}

impl WatchThreads {
    pub(crate) fn new(stage: &BenchStore) -> WatchThreads {
        let (deliver, catch_up) =
            (Arc::new(ThreadSignal::default()), Arc::new(ThreadSignal::default()));
        let signals = (Arc::clone(&deliver), Arc::clone(&catch_up));
        let wake = Box::new(move |due| match due {
            WatchWork::Delivery => signals.0.notify(),
            WatchWork::SyncWatchers => signals.1.notify(),
        });
        let store = Arc::clone(&stage.store);
        let watchable_store =
            store.open_watchable_store(WatchConfig::default(), &Registry::new(), wake);
        WatchThreads {
            watchable_store,
            era: stage.era,
            delivery_signal: deliver,
            sync_signal: catch_up,
        }
    }

    fn is_etcd_era(&self) -> bool {
        self.era != Era::Clearlane
    }

    /// Delivers until the window is over. Returns the processor time of this thread.
    pub(crate) fn run_delivery(&self, over: &AtomicBool) -> Duration {
        while !over.load(Ordering::Relaxed) {
            let more = self.watchable_store.deliver().expect("a healthy store can be read");
            if self.is_etcd_era() {
                std::thread::sleep(VICTIM_RETRY_INTERVAL);
            } else if !more {
                self.delivery_signal.wait(POLL_INTERVAL);
            }
        }
        processor_time()
    }

    /// Synchronizes unsynced watchers until the window is over. Returns the processor time of this
    /// thread.
    pub(crate) fn run_sync(&self, over: &AtomicBool) -> Duration {
        while !over.load(Ordering::Relaxed) {
            let more = self.watchable_store.sync_watchers().expect("a healthy store can be read");
            if self.is_etcd_era() {
                std::thread::sleep(SYNC_INTERVAL);
            } else if !more {
                self.sync_signal.wait(POLL_INTERVAL);
            }
        }
        processor_time()
    }
}

/// Streams from which one thread takes responses.
pub(crate) struct Streams<'w> {
    watch_threads: &'w WatchThreads,
    streams: Vec<(WatchStream, Waker)>,
    wake_set: Arc<WakeSet>,
    signal: Arc<ThreadSignal>,
    ready: ReadyStreams,
}

/// The numbers of the streams that have responses.
type ReadyStreams = Arc<Mutex<Vec<usize>>>;

/// The waker of a stream. When the stream has responses, it adds the stream's number to `ready`.
struct StreamTask {
    number: usize,
    ready: ReadyStreams,
}

impl Wake for StreamTask {
    fn wake(self: Arc<Self>) {
        self.ready.lock().push(self.number);
    }
}

impl<'w> Streams<'w> {
    pub(crate) fn new(watching: &'w WatchThreads) -> Streams<'w> {
        let signal = Arc::new(ThreadSignal::default());
        let wake = Arc::clone(&signal);
        Streams {
            watch_threads: watching,
            streams: Vec::new(),
            wake_set: WakeSet::new(move || wake.notify()),
            signal,
            ready: ReadyStreams::default(),
        }
    }

    /// Opens a stream with these watchers.
    pub(crate) fn open(&mut self, requests: impl Iterator<Item = WatchRequest>) {
        let store = CurrentWatchableStore::of(Arc::clone(&self.watch_threads.watchable_store));
        let stream = WatchStream::open(store, Arc::clone(&self.wake_set));
        requests.for_each(|request| stream.watch(request));
        let number = self.streams.len();
        let task = Waker::from(Arc::new(StreamTask { number, ready: Arc::clone(&self.ready) }));
        task.wake_by_ref();
        self.streams.push((stream, task));
    }

    /// Waits until a stream has responses, for at most [`POLL_INTERVAL`]. Then calls `each` with
    /// the number of each such stream, and with its responses, until it has none left.
    pub(crate) fn poll(&self, each: &mut dyn FnMut(usize, &[Response])) {
        self.signal.wait(POLL_INTERVAL);
        self.wake_set.wake_tasks();
        let ready = std::mem::take(&mut *self.ready.lock());
        for number in ready {
            let (stream, task) = &self.streams[number];
            let mut context = Context::from_waker(task);
            while let Poll::Ready(mut responses) =
                stream.poll_responses(POLL_BYTES_MAX, &mut context)
            {
                stream.add_previous_records(&mut responses).expect("the store can be read");
                each(number, &responses);
            }
        }
    }
}
