//! Watchers run together with everything else that a store does, in every store.
//!
//! A writer, readers, hashes, commits, compactions, deliveries and steps for unsynced watchers run
//! at the same time, while clients open streams, send requests, and close. So every lock is used by
//! all kinds of work. All threads must end; if they do not, a watchdog reports which thread waits
//! for which. Each watcher that stays to the end must receive each event once and in order. Other
//! watchers must receive events without a gap, possibly only up to a compaction.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use clearlane_backend::{Config, Era, PreCommit};
use clearlane_contention::{Registry, TaskLabel};
use clearlane_engine::{KeyRange, MemoryEngine};
use clearlane_mvcc::watch::{
    CurrentWatchableStore, Event, Response, ResponseKind, WakeSet, WatchConfig, WatchRequest,
    WatchStream, WatchableStore, WatchedKeys,
};
use clearlane_mvcc::{Change, RangeOptions, StoreConfig, WatchableKv, open};

/// The newest revision at the end of a run. The first revision of a run is 2.
const LAST: i64 = 300;
/// The time limit of a run, which usually takes one or two seconds.
const DEADLINE: Duration = Duration::from_secs(60);

/// Returns the changes of a revision, in order: `a` is put in each, and `b` is sometimes put or
/// deleted. Revision 1 has no changes. If `only_b` is true, returns only the changes of `b`. The
/// flag of a change is true for a put.
fn happens(revision: i64, only_b: bool) -> Vec<(&'static [u8], bool)> {
    if revision < 2 {
        return Vec::new();
    }
    let mut changes: Vec<(&[u8], bool)> = vec![(b"a", true)];
    match revision % 3 {
        0 => changes.push((b"b", true)),
        1 if revision > 3 => changes.push((b"b", false)),
        _ => {}
    }
    changes.retain(|(key, _)| !only_b || *key == b"b");
    changes
}

#[derive(Debug)]
struct WatcherProgress {
    /// Everything below this revision was delivered. `None` until the watcher is created, if it
    /// starts with "now".
    next: Option<i64>,
    only_b: bool,
    compacted: bool,
}

impl WatcherProgress {
    fn of(request: &WatchRequest) -> WatcherProgress {
        let only_b = request.keys == WatchedKeys::Single(Bytes::from_static(b"b"));
        let next = (request.start_revision > 0).then_some(request.start_revision);
        WatcherProgress { next, only_b, compacted: false }
    }

    fn up_to(&self) -> i64 {
        self.next.map_or(0, |next| next - 1)
    }

    fn is_all(&self) -> bool {
        let is_quiet = |revision| happens(revision, self.only_b).is_empty();
        self.next.is_some_and(|next| (next..=LAST).all(is_quiet))
    }

    fn check_response(&mut self, response: &Response) {
        assert!(!self.compacted, "{response:?} after the end");
        match &response.kind {
            ResponseKind::Created => self.next = self.next.or(Some(response.revision + 1)),
            ResponseKind::Events { events, .. } => {
                events
                    .chunk_by(|a, b| revision(a) == revision(b))
                    .for_each(|of| self.check_events(of));
            }
            ResponseKind::Progress => {
                let next = self.next.unwrap();
                let mut passed = next..=response.revision;
                assert!(
                    passed.all(|revision| happens(revision, self.only_b).is_empty()),
                    "progress at {}, but {next} was not delivered",
                    response.revision
                );
            }
            ResponseKind::Compacted(at) => {
                assert!(self.next.unwrap() < *at, "{response:?}, but {self:?}");
                self.compacted = true;
            }
            ResponseKind::Canceled => {}
            ResponseKind::Rejected(refusal) => panic!("{refusal}"),
        }
    }

    fn check_events(&mut self, events: &[Event]) {
        let mut next = self.next.unwrap();
        while happens(next, self.only_b).is_empty() {
            next += 1;
        }
        let delivered: Vec<(&[u8], bool)> = events.iter().map(change).collect();
        assert_eq!((revision(&events[0]), delivered), (next, happens(next, self.only_b)));
        self.next = Some(next + 1);
    }
}

fn revision(event: &Event) -> i64 {
    let (Change::Put(record) | Change::Delete(record)) = &event.change;
    record.mod_revision
}

fn change(event: &Event) -> (&[u8], bool) {
    match &event.change {
        Change::Put(record) => (&record.key, true),
        Change::Delete(record) => (&record.key, false),
    }
}

struct Scene {
    store: Arc<dyn WatchableKv<()>>,
    watchable_store: Arc<dyn WatchableStore>,
    /// If true, each watcher that stays has received everything, or a thread has failed.
    finished: AtomicBool,
    /// The watchers that stay have received everything up to this revision.
    delivered_revision: AtomicI64,
}

/// Ends the other threads if the thread that holds this value panics.
struct FinishOnPanic<'s>(&'s Scene);

impl Drop for FinishOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.finished.store(true, Ordering::SeqCst);
        }
    }
}

impl Scene {
    fn new(era: Era, locks: &Registry) -> Scene {
        let config = Config { batch_limit: 40, locks: locks.clone(), ..Config::default() };
        let store_config =
            StoreConfig::new(Arc::new(MemoryEngine::new()), config, PreCommit::none(), ());
        let store: Arc<dyn WatchableKv<()>> = Arc::from(open(era, store_config).unwrap().0);
        // The limits are small, so that channels fill up and the queue overflows.
        let watching = WatchConfig {
            stream_bytes_max: 2000,
            queue_bytes_max: 4000,
            sync_step_records: 10,
            ..WatchConfig::default()
        };
        let watchable_store =
            Arc::clone(&store).open_watchable_store(watching, locks, Box::new(|_| {}));
        let (finished, delivered) = (AtomicBool::new(false), AtomicI64::new(0));
        Scene { store, watchable_store, finished, delivered_revision: delivered }
    }

    fn stream(&self) -> WatchStream {
        WatchStream::open(
            CurrentWatchableStore::of(Arc::clone(&self.watchable_store)),
            WakeSet::new(|| {}),
        )
    }

    fn until_finished(&self, name: &str, mut work: impl FnMut()) {
        let _as = TaskLabel::named(name).enter();
        let _finish = FinishOnPanic(self);
        while !self.finished.load(Ordering::SeqCst) {
            work();
            thread::yield_now();
        }
    }

    fn write_all(&self) {
        let _as = TaskLabel::named("writer").enter();
        let _finish = FinishOnPanic(self);
        for revision in 2..=LAST {
            let mut txn = self.store.begin_write().unwrap();
            for (key, put) in happens(revision, false) {
                if put {
                    txn.put(key, b"value", 0).unwrap();
                } else {
                    let end = [key, b"\0"].concat();
                    assert_eq!(txn.delete_range(KeyRange::new(key, &end)).unwrap(), 1);
                }
            }
            let ended = txn.end(()).unwrap();
            assert_eq!(ended.revision, revision);
            self.watchable_store.publish_all(vec![(revision, ended.changes)]);
        }
    }

    fn read(&self) {
        let answer = self.store.begin_read().range(KeyRange::ALL, RangeOptions::default());
        assert!(answer.unwrap().count <= 2);
    }

    fn hash(&self) {
        let Ok(mut job) = self.store.hash(0) else { return };
        while matches!(job.step(5), Ok(None)) {}
    }

    fn deliver(&self) {
        self.watchable_store.deliver().unwrap();
    }

    fn catch_up(&self) {
        self.watchable_store.sync_watchers().unwrap();
    }

    /// Compacts at `delivered_revision`. All watchers that stay have received the events up to this
    /// revision, so they do not miss an event.
    fn compact(&self) {
        let Ok((mut job, ended)) =
            self.store.compact(self.delivered_revision.load(Ordering::SeqCst), ())
        else {
            return;
        };
        drop(ended);
        while !self.store.compact_step(&mut job, 7).unwrap() {}
    }

    /// Runs the watchers that stay. Returns when they have received everything, or when another
    /// thread has failed.
    fn run_lasting_watchers(&self, staying: &[(WatchStream, WatchRequest)]) {
        let mut delivered: Vec<WatcherProgress> =
            staying.iter().map(|(_, request)| WatcherProgress::of(request)).collect();
        self.until_finished("staying", || {
            for ((stream, _), delivered) in staying.iter().zip(&mut delivered) {
                stream
                    .take_responses(500)
                    .unwrap()
                    .iter()
                    .for_each(|response| delivered.check_response(response));
                stream.notify_progress();
                assert!(!delivered.compacted, "no watcher that stays is overtaken");
            }
            let least = delivered.iter().map(WatcherProgress::up_to).min().unwrap();
            self.delivered_revision.store(least, Ordering::SeqCst);
            if delivered.iter().all(WatcherProgress::is_all) {
                self.finished.store(true, Ordering::SeqCst);
            }
        });
    }

    /// Runs a watcher that does not stay. It starts at the current revision or at an older one, and
    /// takes responses for a while. It may request progress during this time. At the end it is
    /// canceled, or only its stream is dropped.
    fn run_passing_watcher(&self, visit: i64) {
        let now = self.store.begin_read().revision();
        let start = if visit % 4 == 0 { 0 } else { (now - visit % 50).max(1) };
        let request = WatchRequest { start_revision: start, ..request(visit % 3 == 0) };
        let (stream, mut delivered) = (self.stream(), WatcherProgress::of(&request));
        stream.watch(request);
        for ask in 0..visit % 20 {
            if ask % 5 == 0 {
                stream.request_progress();
            }
            stream
                .take_responses(300)
                .unwrap()
                .iter()
                .for_each(|response| delivered.check_response(response));
            thread::yield_now();
        }
        if visit % 2 == 0 {
            stream.cancel(0);
            let rest = stream.take_responses(usize::MAX).unwrap();
            rest.iter().for_each(|response| delivered.check_response(response));
            let end = rest.last().map(|response| &response.kind);
            assert!(delivered.compacted || end == Some(&ResponseKind::Canceled), "{rest:?}");
        }
    }
}

fn request(only_b: bool) -> WatchRequest {
    let keys = if only_b {
        WatchedKeys::Single(Bytes::from_static(b"b"))
    } else {
        WatchedKeys::From(Bytes::new())
    };
    WatchRequest { progress_notify: true, ..WatchRequest::new(keys) }
}

fn play(era: Era, locks: &Registry) {
    let scene = Scene::new(era, locks);
    let requests = [
        WatchRequest { prev_kv: true, ..request(false) },
        WatchRequest { start_revision: 1, ..request(false) },
        WatchRequest { start_revision: LAST / 2, ..request(false) },
        request(true),
    ];
    let staying = requests.map(|request| {
        let stream = scene.stream();
        stream.watch(request.clone());
        (stream, request)
    });
    thread::scope(|threads| {
        let scene = &scene;
        threads.spawn(|| scene.run_lasting_watchers(&staying));
        threads.spawn(|| scene.write_all());
        threads.spawn(|| scene.until_finished("reader", || scene.read()));
        threads.spawn(|| scene.until_finished("hash", || scene.hash()));
        threads.spawn(|| scene.until_finished("commit", || scene.store.commit().unwrap()));
        threads.spawn(|| scene.until_finished("compaction", || scene.compact()));
        threads.spawn(|| scene.until_finished("deliver", || scene.deliver()));
        for _ in 0..2 {
            threads.spawn(|| scene.until_finished("catch_up", || scene.catch_up()));
            threads.spawn(|| {
                let mut visit = 0;
                scene.until_finished("visitor", || {
                    scene.run_passing_watcher(visit);
                    visit += 1;
                });
            });
        }
        threads.spawn(|| {
            let mut now = Duration::ZERO;
            scene.until_finished("tick", || {
                now += Duration::from_millis(200);
                scene.store.commit_if_due(now).unwrap();
            });
        });
    });
    assert_eq!(scene.store.begin_read().revision(), LAST);
    drop(staying);
    let figures = scene.watchable_store.metrics();
    assert_eq!((figures.streams, figures.watchers, figures.unsynced), (0, 0, 0));
}

#[test]
fn each_watcher_gets_each_event_once_and_in_order() {
    for era in Era::DISTINCT_STORES {
        let locks = Registry::new();
        let (alive, ended) = channel::<()>();
        let of_the_play = locks.clone();
        let player = thread::spawn(move || {
            let _alive = alive;
            play(era, &of_the_play);
        });
        // No message is sent on this channel. The thread drops the sender when it ends.
        if ended.recv_timeout(DEADLINE) == Err(RecvTimeoutError::Timeout) {
            panic!("{era:?} does not end; waiting are {:?}", locks.waiting());
        }
        player.join().unwrap_or_else(|panic| resume_unwind(panic));
    }
}
