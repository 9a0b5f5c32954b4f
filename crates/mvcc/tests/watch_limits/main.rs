//! How much do watchers read, keep and hold up? And what if reading fails?
//!
//! A watcher that is far behind must read about as much as it delivers, however slowly its client
//! takes that. (In etcd's issue 22264 it was ten times as much, in rounds that stopped all writes.)
//! What waits for a client that does not read must stay below a bound, and nothing may be lost
//! when reading fails for a while.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod engine;
mod faults;
mod memory;
mod reads;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use clearlane_backend::{Config, PreCommit};
use clearlane_engine::KeyRange;
use clearlane_locks::Registry;
use clearlane_mvcc::watch::{
    Event, Response, Says, SnapshotHub, WatchConfig, WatchHub, WatchRequest, WatchStream,
    WatchedKeys,
};
use clearlane_mvcc::{Change, Ground, SnapshotStore, Store as _};

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
        let opened = SnapshotStore::open(Ground::new(
            Arc::new(engine),
            Config::default(),
            PreCommit::none(),
            (),
        ));
        World { store: Arc::new(opened.unwrap().0), reads }
    }

    fn hub(&self, config: WatchConfig) -> Hub {
        let woken = Arc::new(AtomicUsize::new(0));
        let wakes = Arc::clone(&woken);
        let wake = Box::new(move |_| {
            wakes.fetch_add(1, Ordering::Relaxed);
        });
        let hub = SnapshotHub::new(Arc::clone(&self.store), config, &Registry::new(), wake);
        Hub { hub: Arc::new(hub), woken }
    }

    /// Writes keys with values of so many bytes. Returns the revision.
    fn put<K: AsRef<[u8]>>(&self, keys: &[K], bytes: usize) -> (i64, Vec<Change>) {
        let mut txn = self.store.write().unwrap();
        let value = vec![7; bytes];
        keys.iter().for_each(|key| txn.put(key.as_ref(), &value, 0).unwrap());
        let ended = txn.end(()).unwrap();
        (ended.revision, ended.changes)
    }

    fn delete(&self, key: &[u8]) -> (i64, Vec<Change>) {
        let mut txn = self.store.write().unwrap();
        txn.delete_range(KeyRange::new(key, &[key, &[0]].concat())).unwrap();
        let ended = txn.end(()).unwrap();
        (ended.revision, ended.changes)
    }

    /// From here on what was written is read from the engine, and counted.
    fn commit(&self) {
        self.store.commit().unwrap();
        self.reads.take();
    }
}

/// A hub and how often it has woken.
struct Hub {
    hub: Arc<dyn WatchHub>,
    woken: Arc<AtomicUsize>,
}

impl Hub {
    fn stream(&self) -> WatchStream {
        WatchStream::open(Arc::clone(&self.hub), Arc::new(|| {}), 0)
    }

    fn publish(&self, (revision, changes): (i64, Vec<Change>)) {
        self.hub.publish(revision, changes);
    }

    fn settle(&self) {
        while self.hub.deliver().unwrap() {}
        while self.hub.catch_up().unwrap() {}
    }

    fn woken(&self) -> usize {
        self.woken.load(Ordering::Relaxed)
    }
}

/// Takes so many bytes at a time until there is nothing more.
fn drain(hub: &Hub, stream: &WatchStream, bytes: usize) -> Vec<Response> {
    let mut all = Vec::new();
    loop {
        hub.settle();
        let taken = stream.take(bytes).unwrap();
        if taken.is_empty() {
            return all;
        }
        all.extend(taken);
    }
}

fn one(key: &str) -> WatchedKeys {
    WatchedKeys::One(Bytes::copy_from_slice(key.as_bytes()))
}

fn everything() -> WatchRequest {
    WatchRequest::of(WatchedKeys::From(Bytes::new()))
}

fn events(responses: &[Response]) -> Vec<&Event> {
    let of = |response: &'_ Response| match &response.says {
        Says::Events { events, .. } => events.len(),
        _ => 0,
    };
    let mut all = Vec::with_capacity(responses.iter().map(of).sum());
    for response in responses {
        if let Says::Events { events, .. } = &response.says {
            all.extend(events.iter());
        }
    }
    all
}

fn bytes(responses: &[Response]) -> usize {
    events(responses).into_iter().map(Event::size).sum()
}
