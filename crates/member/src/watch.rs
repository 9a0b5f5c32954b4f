//! What a network thread has of watching: streams, and a desk that wakes them.
//!
//! # The idea
//!
//! A transaction may be told to a thousand streams, and they are served by a few threads. To wake a
//! thread costs more than to tell a stream, so each network thread has a [`WatchDesk`]: whoever hands
//! a transaction on leaves there the numbers of the streams that have something now, and wakes the
//! thread once. The desk's own task then wakes the streams' tasks, all on its thread.
//!
//! ```text
//!   delivery thread    outbox 3, outbox 7, outbox 9 ──▶ desk: [3 7 9], wake once
//!   net thread         desk: wake tasks 3 7 9 │ 3 takes, sends │ 7 takes, sends │ 9 takes, sends
//! ```
//!
//! # A client that does not read
//!
//! Its task takes nothing, its outbox fills up to a bound, and from there on nothing is kept for its
//! watchers but a revision each. It is in nobody's way. When it reads again, it is told the rest from
//! the store. See [`clearlane_mvcc::watch`].
//!
//! # When the store is replaced
//!
//! A copy of another member's store takes the place of this one's: the streams move to it, and miss
//! nothing. See [`CurrentHub`].

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use clearlane_locks::Registry;
use clearlane_mvcc::watch::{
    CurrentHub, Due, Response, Takers, WatchConfig, WatchFigures, WatchHub, WatchId, WatchRequest,
    WatchStream,
};
use clearlane_mvcc::{Change, Store};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::error::Result;
use crate::node::watch_thread::Bell;
use crate::progress::Progress;

/// etcd's `--watch-progress-notify-interval`.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10 * 60);

/// The watchers of a member.
#[derive(Debug)]
pub struct Watching {
    pub(crate) hub: Arc<CurrentHub>,
    pub(crate) bells: Arc<Bells>,
    config: WatchConfig,
    locks: Registry,
    streams: AtomicUsize,
    progress_interval_ms: AtomicU64,
}

/// One for each thread that tells watchers.
#[derive(Debug, Default)]
pub(crate) struct Bells {
    pub(crate) delivery: Bell,
    pub(crate) catch_up: Bell,
}

impl Bells {
    fn both(&self) -> [&Bell; 2] {
        [&self.delivery, &self.catch_up]
    }
}

impl Watching {
    pub(crate) fn new(store: &Arc<dyn Store<Progress>>, locks: &Registry) -> Watching {
        let (config, bells) = (WatchConfig::default(), Arc::new(Bells::default()));
        let hub = hub_of(store, config, locks, &bells);
        Watching {
            hub: Arc::new(CurrentHub::new(hub, locks)),
            bells,
            config,
            locks: locks.clone(),
            streams: AtomicUsize::new(0),
            progress_interval_ms: AtomicU64::new(PROGRESS_INTERVAL.as_millis() as u64),
        }
    }

    /// How many watchers there are, and how they are.
    pub fn figures(&self) -> WatchFigures {
        self.hub.figures()
    }

    /// How long a watcher that wants notices of its progress may hear nothing.
    pub fn progress_interval(&self) -> Duration {
        Duration::from_millis(self.progress_interval_ms.load(Ordering::Relaxed))
    }

    /// Sets that, for streams that are opened from now on.
    pub fn set_progress_interval(&self, interval: Duration) {
        self.progress_interval_ms.store(interval.as_millis() as u64, Ordering::Relaxed);
    }

    pub(crate) fn publish(&self, changes: Vec<(i64, Vec<Change>)>) {
        if !changes.is_empty() {
            self.hub.publish_all(changes);
        }
    }

    /// Another store answers from here on.
    pub(crate) fn replace(&self, store: &Arc<dyn Store<Progress>>) {
        self.hub.replace(hub_of(store, self.config, &self.locks, &self.bells));
        self.bells.both().into_iter().for_each(Bell::ring);
    }

    pub(crate) fn has_streams(&self) -> bool {
        self.streams.load(Ordering::Relaxed) > 0
    }

    /// The threads that tell watchers end.
    pub(crate) fn end(&self) {
        self.bells.both().into_iter().for_each(Bell::end);
    }
}

fn hub_of(
    store: &Arc<dyn Store<Progress>>,
    config: WatchConfig,
    locks: &Registry,
    bells: &Arc<Bells>,
) -> Arc<dyn WatchHub> {
    let bells = Arc::clone(bells);
    let wake = move |due| match due {
        Due::Delivery => bells.delivery.ring(),
        Due::CatchUp => bells.catch_up.ring(),
    };
    Arc::clone(store).watch_hub(config, locks, Box::new(wake))
}

/// Where the streams of one thread are woken.
#[derive(Clone, Debug)]
pub struct WatchDesk {
    watching: Arc<Watching>,
    board: Arc<Board>,
}

/// What the hub's threads write on.
#[derive(Debug, Default)]
struct Board {
    ready: Mutex<Vec<u64>>,
    written: Notify,
    streams: Mutex<Sleepers>,
}

impl Takers for Board {
    fn ready(&self, name: u64) {
        self.ready.lock().push(name);
    }

    fn wake(&self) {
        self.written.notify_one();
    }
}

/// The streams of a desk by number, each with the task that sleeps over it.
#[derive(Default)]
struct Sleepers {
    places: Vec<Sleeper>,
    free: Vec<usize>,
}

#[derive(Default)]
struct Sleeper {
    task: Option<Waker>,
    /// Something has come since the task looked.
    rung: bool,
}

impl WatchDesk {
    /// For one thread, where its [task](WatchDesk::run) must run.
    pub fn new(watching: &Arc<Watching>) -> WatchDesk {
        WatchDesk { watching: Arc::clone(watching), board: Arc::default() }
    }

    /// The watchers of the member.
    pub fn watching(&self) -> &Arc<Watching> {
        &self.watching
    }

    /// Opens a stream. Dropping it ends its watchers.
    pub fn open(&self) -> Stream {
        let place = {
            let mut streams = self.board.streams.lock();
            streams.free.pop().unwrap_or_else(|| {
                streams.places.push(Sleeper::default());
                streams.places.len() - 1
            })
        };
        let is_first = self.watching.streams.fetch_add(1, Ordering::Relaxed) == 0;
        let (hub, takers) = (Arc::clone(&self.watching.hub), Arc::clone(&self.board));
        let inner = WatchStream::open(hub, takers, place as u64);
        if is_first {
            // Threads that go by the clock have stopped theirs.
            self.watching.bells.both().into_iter().for_each(Bell::ring);
        }
        Stream { inner, place, desk: self.clone() }
    }

    /// The desk's task. It ends when it is dropped.
    pub async fn run(self) {
        loop {
            self.board.written.notified().await;
            let ready = std::mem::take(&mut *self.board.ready.lock());
            let mut streams = self.board.streams.lock();
            for name in ready {
                let sleeper = &mut streams.places[name as usize];
                sleeper.rung = true;
                if let Some(task) = sleeper.task.take() {
                    task.wake();
                }
            }
        }
    }
}

/// One client's watchers.
#[derive(Debug)]
pub struct Stream {
    inner: WatchStream,
    place: usize,
    desk: WatchDesk,
}

impl Stream {
    /// Makes a watcher; what is taken from the stream says whether it was made.
    pub fn watch(&self, request: WatchRequest) {
        self.inner.watch(request);
    }

    /// Ends a watcher, if there is one of this number.
    pub fn cancel(&self, id: WatchId) {
        self.inner.cancel(id);
    }

    /// Asks how far the stream is: answered if all its watchers are up to date.
    pub fn request_progress(&self) {
        self.inner.request_progress();
    }

    /// The interval of progress notices has passed.
    pub fn interval_passed(&self) {
        self.inner.interval_passed();
    }

    /// Takes what there is, up to about so many bytes, or sleeps until there is something.
    pub fn poll_take(
        &self,
        bytes_max: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<Vec<Response>>> {
        loop {
            self.with_sleeper(|sleeper| sleeper.rung = false);
            let taken = self.inner.take(bytes_max)?;
            if !taken.is_empty() {
                return Poll::Ready(Ok(taken));
            }
            let sleeps = self.with_sleeper(|sleeper| {
                sleeper.task = Some(context.waker().clone());
                !sleeper.rung
            });
            if sleeps {
                return Poll::Pending;
            }
        }
    }

    fn with_sleeper<R>(&self, look: impl FnOnce(&mut Sleeper) -> R) -> R {
        look(&mut self.desk.board.streams.lock().places[self.place])
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.desk.watching.streams.fetch_sub(1, Ordering::Relaxed);
        let mut streams = self.desk.board.streams.lock();
        // Who has the place next may be woken once for nothing.
        streams.places[self.place] = Sleeper::default();
        streams.free.push(self.place);
    }
}

impl fmt::Debug for Sleepers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleepers").field("places", &self.places.len()).finish_non_exhaustive()
    }
}
