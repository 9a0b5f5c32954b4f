//! How much is read, kept and held up for watchers, and what happens if reading fails.
//!
//! For a watcher that is far behind about as much must be read as is delivered, however slowly its
//! client takes that. (In etcd's issue 22264 it was ten times as much, in rounds that stopped all
//! writes.) What waits for a client that does not read must stay below a bound, and nothing may be
//! lost when reading fails for a while.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod engine;
mod faults;
mod memory;
mod reads;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use clearlane_backend::{Config, PreCommit};
use clearlane_contention::Registry;
use clearlane_engine::KeyRange;
use clearlane_mvcc::watch::{
    CurrentWatchableStore, Event, Response, ResponseKind, WakeSet, WatchConfig, WatchRequest,
    WatchStream, WatchableStore, WatchedKeys,
};
use clearlane_mvcc::{Changes, SnapshotStore, SnapshotWatchableStore, Store as _, StoreConfig};

use self::engine::{CountingEngine, Reads};

/// A store whose reads are counted.
struct World {
    store: Arc<SnapshotStore<()>>,
    reads: Arc<Reads>,
}

impl World {
    fn new() -> World {
        let engine = CountingEngine::new();
        let reads = Arc::clone(&engine.reads);
        let opened = SnapshotStore::open(StoreConfig::new(
            Arc::new(engine),
            Config::default(),
            PreCommit::none(),
            (),
        ));
        World { store: Arc::new(opened.unwrap().0), reads }
    }

    fn watchable_store(&self, config: WatchConfig) -> TestWatchableStore {
        let woken = Arc::new(AtomicUsize::new(0));
        let wakes = Arc::clone(&woken);
        let wake = Box::new(move |_| {
            wakes.fetch_add(1, Ordering::Relaxed);
        });
        let watchable =
            SnapshotWatchableStore::new(Arc::clone(&self.store), config, &Registry::new(), wake);
        TestWatchableStore { store: Arc::new(watchable), wake_ups: woken }
    }

    /// Writes keys with values of `bytes` bytes. Returns the revision.
    fn put<K: AsRef<[u8]>>(&self, keys: &[K], bytes: usize) -> (i64, Changes) {
        let mut txn = self.store.begin_write().unwrap();
        let value = vec![7; bytes];
        keys.iter().for_each(|key| txn.put(key.as_ref(), &value, 0).unwrap());
        let ended = txn.end(()).unwrap();
        (ended.revision, ended.changes)
    }

    fn delete(&self, key: &[u8]) -> (i64, Changes) {
        let mut txn = self.store.begin_write().unwrap();
        txn.delete_range(KeyRange::new(key, &[key, &[0]].concat())).unwrap();
        let ended = txn.end(()).unwrap();
        (ended.revision, ended.changes)
    }

    /// From here on what was written is read from the engine, and counted.
    fn commit(&self) {
        self.store.commit().unwrap();
        self.reads.take_count();
    }
}

struct TestWatchableStore {
    store: Arc<dyn WatchableStore>,
    wake_ups: Arc<AtomicUsize>,
}

impl TestWatchableStore {
    fn stream(&self) -> WatchStream {
        WatchStream::open(CurrentWatchableStore::of(Arc::clone(&self.store)), WakeSet::new(|| {}))
    }

    fn publish(&self, (revision, changes): (i64, Changes)) {
        self.store.publish_all(vec![(revision, changes)]);
    }

    fn settle(&self) {
        while self.store.deliver().unwrap() {}
        while self.store.sync_watchers().unwrap() {}
    }

    fn wake_ups(&self) -> usize {
        self.wake_ups.load(Ordering::Relaxed)
    }
}

/// Takes `bytes` at a time until there is nothing more.
fn drain(watchable: &TestWatchableStore, stream: &WatchStream, bytes: usize) -> Vec<Response> {
    let mut all = Vec::new();
    loop {
        watchable.settle();
        let taken = stream.take_responses(bytes).unwrap();
        if taken.is_empty() {
            return all;
        }
        all.extend(taken);
    }
}

fn one(key: &str) -> WatchedKeys {
    WatchedKeys::Single(Bytes::copy_from_slice(key.as_bytes()))
}

fn everything() -> WatchRequest {
    WatchRequest::new(WatchedKeys::From(Bytes::new()))
}

fn events(responses: &[Response]) -> Vec<&Event> {
    let of = |response: &'_ Response| match &response.kind {
        ResponseKind::Events { events, .. } => events.len(),
        _ => 0,
    };
    let mut all = Vec::with_capacity(responses.iter().map(of).sum());
    for response in responses {
        if let ResponseKind::Events { events, .. } = &response.kind {
            all.extend(events.iter());
        }
    }
    all
}

fn bytes(responses: &[Response]) -> usize {
    events(responses).into_iter().map(Event::size).sum()
}
