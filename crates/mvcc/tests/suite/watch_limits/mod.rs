//! Tests of the limits for watchers: how much is read and kept for them, which sleeping threads are
//! woken, and what happens if a read fails.
//!
//! For a watcher that lags far behind, the number of records read must be close to the number
//! delivered, even if its client reads slowly. (In etcd's issue 22264, ten times as many records
//! were read as delivered, in sync rounds that stopped all writes.) The memory for a client that
//! does not read must stay below a limit. No event may be lost if reads fail for a while.

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

/// A store that counts the records that are read.
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

    /// Writes keys with values of `bytes` bytes. Returns the revision and the changes.
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

    /// Commits, and sets the counter to 0. Later reads of the committed records come from the
    /// engine and are counted.
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

/// Takes responses, `bytes` bytes at a time, until nothing is left.
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
