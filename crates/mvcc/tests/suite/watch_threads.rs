//! Tests watching with real threads: no thread may miss a wake-up, and no watcher may miss an
//! event.
//!
//! One thread writes at full speed and publishes, one delivers, one syncs and one compacts. A few
//! consumers create watchers and take responses: as fast as possible, a few bytes at a time, or
//! with pauses. Each thread sleeps until it is woken. If the watchable store forgets to wake a
//! thread, the test hangs, and a deadline then ends it with a report.
//!
//! The events of a watcher depend only on its keys and the revision: revision R puts the keys R mod
//! [`KEYS`], R + 1 mod [`KEYS`], and so on, and the value is R.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clearlane_backend::{Config, PreCommit};
use clearlane_contention::Registry;
use clearlane_engine::MemoryEngine;
use clearlane_mvcc::watch::{
    CurrentWatchableStore, Event, Response, ResponseKind, WakeSet, WatchConfig, WatchRequest,
    WatchStream, WatchWork, WatchableStore, WatchedKeys,
};
use clearlane_mvcc::{
    Change, CompactionJob, ReadTxn as _, SnapshotStore, SnapshotWatchableStore, Store as _,
    StoreConfig,
};

/// The newest revision at the end of a run.
const LAST: i64 = 6000;
const KEYS: i64 = 40;
const WATCHERS_PER_CONSUMER: usize = 24;
/// Time limit of a run, which is much longer than the test needs. After this time the test reports
/// a hang.
const DEADLINE: Duration = Duration::from_secs(60);

/// A signal that stays set until a thread has waited for it.
#[derive(Clone, Default)]
struct WakeFlag(Arc<(Mutex<bool>, Condvar)>);

impl WakeFlag {
    fn set(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    /// Sleeps until the flag is set, and clears it. Returns false if the deadline passes first.
    fn wait(&self, until: Instant) -> bool {
        let mut rung = self.0.0.lock().unwrap();
        while !*rung {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            rung = self.0.1.wait_timeout(rung, left).unwrap().0;
        }
        *rung = false;
        true
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

struct World {
    store: Arc<SnapshotStore<()>>,
    /// The newest revision that is written and published.
    revision: Mutex<i64>,
    risen: Condvar,
    finished: AtomicBool,
    /// A compaction keeps this number of revisions.
    kept: i64,
    deadline: Instant,
}

impl World {
    fn revision(&self) -> i64 {
        *self.revision.lock().unwrap()
    }

    fn wait_for(&self, revision: i64) {
        let reached = self.revision.lock().unwrap();
        drop(self.risen.wait_while(reached, |reached| *reached < revision).unwrap());
    }
}

fn key(number: i64) -> Bytes {
    Bytes::from(format!("key-{:03}", number % KEYS))
}

/// Returns how many keys a revision changes: usually one, sometimes three.
fn changes_at(revision: i64) -> i64 {
    match revision {
        ..=1 => 0, // The revision of the empty store has no transaction.
        revision if revision % 7 == 0 => 3,
        _ => 1,
    }
}

/// Returns the keys that a watcher must receive for a revision, in the order of the changes.
fn wanted(keys: &WatchedKeys, revision: i64) -> Vec<Bytes> {
    let changed = (0..changes_at(revision)).map(|change| key(revision + change));
    changed.filter(|key| keys.contains(key)).collect()
}

fn write(world: &World, watchable_store: &dyn WatchableStore, compactor: &Sender<CompactionJob>) {
    for revision in 2..=LAST {
        let mut txn = world.store.begin_write().unwrap();
        for change in 0..changes_at(revision) {
            txn.put(&key(revision + change), revision.to_string().as_bytes(), 0).unwrap();
        }
        let ended = txn.end(()).unwrap();
        assert_eq!(ended.revision, revision);
        watchable_store.publish_all(vec![(revision, ended.changes)]);
        *world.revision.lock().unwrap() = revision;
        world.risen.notify_all();
        if revision % 300 == 0 && revision > world.kept {
            let (job, ended) = world.store.compact(revision - world.kept, ()).unwrap();
            drop(ended);
            compactor.send(job).unwrap();
        }
    }
}

/// Runs steps until a step has nothing to do, then sleeps until the signal is set, and starts
/// again. Returns once the run is finished.
fn run_steps(world: &World, signal: &WakeFlag, step: impl Fn() -> bool) {
    loop {
        while step() {}
        if world.finished.load(Ordering::Acquire) {
            return;
        }
        assert!(signal.wait(world.deadline), "a thread of the watchable store is not woken");
    }
}

fn compact(world: &World, jobs: &Receiver<CompactionJob>) {
    for mut job in jobs {
        while !world.store.compact_step(&mut job, 100).unwrap() {}
    }
}

#[derive(Clone, Copy, Debug)]
enum Pace {
    Fast,
    FewBytes,
    /// Reads nothing for this number of revisions, and then reads for as many revisions.
    StopAndGo(i64),
}

#[derive(Debug)]
struct WatcherProgress {
    keys: WatchedKeys,
    next: i64,
    previous: bool,
    created: bool,
    is_ended: bool,
}

struct Consumer<'w> {
    world: &'w World,
    stream: WatchStream,
    watchers: BTreeMap<i64, WatcherProgress>,
    random: Random,
    pace: Pace,
    compacted: usize,
    events: usize,
}

impl Consumer<'_> {
    fn watch(&mut self) {
        let revision = self.world.revision();
        let id = self.watchers.len() as i64 + 1;
        let first = self.random.below(KEYS as u64) as i64;
        let keys = match self.random.below(4) {
            0 => WatchedKeys::From(Bytes::new()),
            1 => WatchedKeys::Range(key(first), Bytes::from_static(b"key-z")),
            _ => WatchedKeys::Single(key(first)),
        };
        let start = match self.random.below(4) {
            0 => revision + 1 + self.random.below(300) as i64,
            1 => 1 + self.random.below(revision as u64) as i64,
            2 => (revision - self.random.below(600) as i64).max(1),
            _ => revision + 1,
        };
        let previous = self.random.below(3) == 0;
        let request = WatchRequest {
            start_revision: start,
            id,
            prev_kv: previous,
            ..WatchRequest::new(keys.clone())
        };
        let delivered =
            WatcherProgress { keys, next: start, previous, created: false, is_ended: false };
        self.watchers.insert(id, delivered);
        self.stream.watch(request);
    }

    fn take(&mut self) -> bool {
        let bytes = match self.pace {
            Pace::Fast => 1 << 20,
            Pace::FewBytes => 1 + self.random.below(600) as usize,
            Pace::StopAndGo(_) => 1 << 14,
        };
        let responses = self.stream.take_responses(bytes).unwrap();
        responses.iter().for_each(|response| self.check_response(response));
        !responses.is_empty()
    }

    fn check_response(&mut self, response: &Response) {
        let delivered = self.watchers.get_mut(&response.id).unwrap();
        assert!(
            !delivered.is_ended && delivered.created != (response.kind == ResponseKind::Created),
            "{response:?}"
        );
        match &response.kind {
            ResponseKind::Created => delivered.created = true,
            ResponseKind::Compacted(at) => {
                assert!(delivered.next < *at, "{delivered:?} is compacted at {at}");
                assert!(*at <= self.world.store.begin_read().compact_revision());
                delivered.is_ended = true;
                self.compacted += 1;
            }
            ResponseKind::Events { events, .. } => {
                self.events += events.len();
                check_events(delivered, events);
            }
            other => panic!("not asked for: {other:?}"),
        }
    }

    /// Returns true if each watcher has received everything, or was ended by a compaction.
    fn has_finished(&self) -> bool {
        let done = |delivered: &WatcherProgress| {
            delivered.is_ended
                || delivered.created
                    && (delivered.next..=LAST)
                        .all(|revision| wanted(&delivered.keys, revision).is_empty())
        };
        self.watchers.len() == WATCHERS_PER_CONSUMER && self.watchers.values().all(done)
    }

    fn run(&mut self, signal: &WakeFlag) {
        let mut next_stop = 0;
        loop {
            let count = self.watchers.len();
            let due = count as i64 * (LAST * 3 / 4) / WATCHERS_PER_CONSUMER as i64;
            if count < WATCHERS_PER_CONSUMER && self.world.revision() >= due {
                self.watch();
            }
            if let Pace::StopAndGo(pause) = self.pace
                && self.world.revision() >= next_stop
            {
                let until = (self.world.revision() + pause).min(LAST);
                self.world.wait_for(until);
                next_stop = if until < LAST { until + pause } else { i64::MAX };
            }
            if self.take() {
                thread::yield_now();
            } else if self.has_finished() {
                return;
            } else if count < WATCHERS_PER_CONSUMER {
                self.world.wait_for(due);
            } else {
                assert!(signal.wait(self.world.deadline), "{}", self.describe_missing());
            }
        }
    }

    fn describe_missing(&self) -> String {
        let lacks = self.watchers.iter().filter(|(_, delivered)| !delivered.is_ended);
        format!("{:?} sleeps for ever: {:?}", self.pace, lacks.collect::<Vec<_>>())
    }
}

fn check_events(delivered: &mut WatcherProgress, events: &[Event]) {
    for of_revision in events.chunk_by(|a, b| record(a).mod_revision == record(b).mod_revision) {
        let revision = record(&of_revision[0]).mod_revision;
        for skipped in delivered.next..revision {
            assert!(
                wanted(&delivered.keys, skipped).is_empty(),
                "{delivered:?} has missed {skipped}"
            );
        }
        assert!(revision >= delivered.next, "{delivered:?} got {revision} before");
        let keys: Vec<Bytes> = of_revision.iter().map(|event| record(event).key.clone()).collect();
        assert_eq!(keys, wanted(&delivered.keys, revision), "{delivered:?} at {revision}");
        for event in of_revision {
            assert_eq!(record(event).value, revision.to_string());
            if let Some(previous) = &event.prev_kv {
                assert!(delivered.previous && previous.mod_revision < revision);
                assert_eq!(previous.version + 1, record(event).version);
            }
        }
        delivered.next = revision + 1;
    }
}

fn record(event: &Event) -> &clearlane_proto::mvccpb::KeyValue {
    let (Change::Put(record) | Change::Delete(record)) = &event.change;
    record
}

fn consume(
    world: &World,
    watchable_store: &Arc<dyn WatchableStore>,
    seed: u64,
    pace: Pace,
) -> (usize, usize) {
    let signal = WakeFlag::default();
    let wake = signal.clone();
    let stream = WatchStream::open(
        CurrentWatchableStore::of(Arc::clone(watchable_store)),
        WakeSet::new(move || wake.set()),
    );
    let (watchers, random) = (BTreeMap::new(), Random(seed));
    let mut consumer = Consumer { world, stream, watchers, random, pace, compacted: 0, events: 0 };
    consumer.run(&signal);
    (consumer.events, consumer.compacted)
}

/// Runs all threads to their end. Returns the number of delivered events, and the number of
/// watchers that a compaction ended.
fn run(config: WatchConfig, seed: u64, kept: i64) -> (usize, usize) {
    println!("seed {seed}, {config:?}");
    let store = SnapshotStore::open(StoreConfig::new(
        Arc::new(MemoryEngine::new()),
        Config::default(),
        PreCommit::none(),
        (),
    ));
    let world = World {
        store: Arc::new(store.unwrap().0),
        revision: Mutex::new(1),
        risen: Condvar::new(),
        finished: AtomicBool::new(false),
        kept,
        deadline: Instant::now() + DEADLINE,
    };
    let (deliver, catch_up) = (WakeFlag::default(), WakeFlag::default());
    let (compactor, jobs) = mpsc::channel();
    let bells = [deliver.clone(), catch_up.clone()];
    let wake = Box::new(move |due| match due {
        WatchWork::Delivery => bells[0].set(),
        WatchWork::SyncWatchers => bells[1].set(),
    });
    let watchable_store =
        SnapshotWatchableStore::new(Arc::clone(&world.store), config, &Registry::new(), wake);
    let watchable_store: Arc<dyn WatchableStore> = Arc::new(watchable_store);
    let paces = [Pace::Fast, Pace::FewBytes, Pace::StopAndGo(200), Pace::StopAndGo(900)];
    let (world, watchable_store) = (&world, &watchable_store);
    thread::scope(|scope| {
        scope.spawn(|| run_steps(world, &deliver, || watchable_store.deliver().unwrap()));
        scope.spawn(|| run_steps(world, &catch_up, || watchable_store.sync_watchers().unwrap()));
        scope.spawn(move || compact(world, &jobs));
        let consume = |(number, pace)| {
            scope.spawn(move || consume(world, watchable_store, seed * 100 + number, pace))
        };
        let consumers: Vec<_> = (0..).zip(paces).map(consume).collect();
        scope.spawn(move || write(world, &**watchable_store, &compactor));
        let delivered: Vec<_> = consumers.into_iter().map(|consumer| consumer.join()).collect();
        world.finished.store(true, Ordering::Release);
        [&deliver, &catch_up].into_iter().for_each(WakeFlag::set);
        delivered
            .into_iter()
            .map(Result::unwrap)
            .fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1))
    })
}

#[test]
fn each_watcher_gets_everything_with_large_bounds() {
    let (events, _) = run(WatchConfig::default(), 1, 500);
    assert!(events > 10_000, "{events} events were delivered");
}

#[test]
fn each_watcher_gets_everything_with_small_bounds() {
    for seed in 2..4 {
        let config = WatchConfig {
            stream_bytes_max: 4000,
            queue_bytes_max: 3000,
            sync_step_records: 100,
            sync_step_bytes: 2000,
        };
        let (events, compacted) = run(config, seed, 500);
        assert!(events > 1000 && compacted > 0, "{events} events, {compacted} compacted");
    }
}

#[test]
fn each_watcher_gets_everything_with_tiny_bounds() {
    let config = WatchConfig {
        stream_bytes_max: 1,
        queue_bytes_max: 1,
        sync_step_records: 1,
        sync_step_bytes: 1,
    };
    let (events, compacted) = run(config, 4, 3000);
    assert!(events > 500 && compacted > 0, "{events} events, {compacted} compacted");
}
