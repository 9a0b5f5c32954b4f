//! The threads that a server gives to its watchers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clearlane_backend::Design;
use clearlane_locks::Registry;
use clearlane_mvcc::watch::{
    Due, Response, Takers, WatchConfig, WatchHub, WatchRequest, WatchStream,
};
use parking_lot::Mutex;

use crate::pace::processor_time;
use crate::stage::{Bell, Stage};

/// How often an old era tries again to tell those whose stream was full.
const RETRY: Duration = Duration::from_millis(10);
/// How often it synchronises.
const SYNCHRONISE: Duration = Duration::from_millis(100);
/// A thread that sleeps looks so often whether all is over.
const LOOK: Duration = Duration::from_millis(20);
/// So many bytes of responses are taken at once.
const TAKEN_MAX: usize = 256 << 10;

/// A hub, and the bells of those who work for it.
pub(crate) struct Watching {
    pub(crate) hub: Arc<dyn WatchHub>,
    era: Design,
    deliver: Arc<Bell>,
    catch_up: Arc<Bell>,
}

impl Watching {
    pub(crate) fn of(stage: &Stage) -> Watching {
        let (deliver, catch_up) = (Arc::new(Bell::default()), Arc::new(Bell::default()));
        let bells = (Arc::clone(&deliver), Arc::clone(&catch_up));
        let wake = Box::new(move |due| match due {
            Due::Delivery => bells.0.ring(),
            Due::CatchUp => bells.1.ring(),
        });
        let store = Arc::clone(&stage.store);
        let hub = store.watch_hub(WatchConfig::default(), &Registry::new(), wake);
        Watching { hub, era: stage.era, deliver, catch_up }
    }

    fn is_old(&self) -> bool {
        self.era != Design::SnapshotReadTx
    }

    /// Delivers until it is over. Returns the time that it took on a processor.
    pub(crate) fn deliver(&self, over: &AtomicBool) -> Duration {
        while !over.load(Ordering::Relaxed) {
            let more = self.hub.deliver().expect("a healthy store can be read");
            if self.is_old() {
                std::thread::sleep(RETRY);
            } else if !more {
                self.deliver.wait(LOOK);
            }
        }
        processor_time()
    }

    /// The same for those who are behind.
    pub(crate) fn catch_up(&self, over: &AtomicBool) -> Duration {
        while !over.load(Ordering::Relaxed) {
            let more = self.hub.catch_up().expect("a healthy store can be read");
            if self.is_old() {
                std::thread::sleep(SYNCHRONISE);
            } else if !more {
                self.catch_up.wait(LOOK);
            }
        }
        processor_time()
    }
}

/// Streams that one thread takes responses from.
pub(crate) struct Streams<'w> {
    watching: &'w Watching,
    streams: Vec<WatchStream>,
    ready: Arc<Ready>,
}

/// The streams that have something.
#[derive(Default)]
struct Ready {
    streams: Mutex<Vec<usize>>,
    bell: Bell,
}

impl Takers for Ready {
    fn ready(&self, name: u64) {
        self.streams.lock().push(name as usize);
    }

    fn wake(&self) {
        self.bell.ring();
    }
}

impl<'w> Streams<'w> {
    pub(crate) fn new(watching: &'w Watching) -> Streams<'w> {
        Streams { watching, streams: Vec::new(), ready: Arc::default() }
    }

    /// Opens a stream with these watchers.
    pub(crate) fn open(&mut self, requests: impl Iterator<Item = WatchRequest>) {
        let name = self.streams.len() as u64;
        let takers: Arc<dyn Takers> = Arc::<Ready>::clone(&self.ready);
        let stream = WatchStream::open(Arc::clone(&self.watching.hub), takers, name);
        requests.for_each(|request| stream.watch(request));
        self.streams.push(stream);
    }

    /// Sleeps until a stream has something, but not for long; then calls `each` with all there is,
    /// and the number of the stream.
    pub(crate) fn take(&self, each: &mut dyn FnMut(usize, &[Response])) {
        self.ready.bell.wait(LOOK);
        let mut ready = std::mem::take(&mut *self.ready.streams.lock());
        ready.sort_unstable();
        ready.dedup();
        for number in ready {
            loop {
                let responses =
                    self.streams[number].take(TAKEN_MAX).expect("the store can be read");
                if responses.is_empty() {
                    break;
                }
                each(number, &responses);
            }
        }
    }
}
