//! A store with the threads that it has in a server: a thread that puts, a thread that commits, and
//! a thread that drops old states.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use clearlane_backend::{Config, DroppedStates, Era, PreCommit};
use clearlane_benches::store::fail;
use clearlane_engine::{Bucket, EngineKind, Options};
use clearlane_mvcc::watch::WatchableStore;
use clearlane_mvcc::{StoreConfig, WatchableKv};
use parking_lot::{Condvar, Mutex};
use tempfile::TempDir;

/// The payload of a write transaction: the number of the applied entry.
pub(crate) type Entry = u64;

/// How often the commit thread checks whether a commit is due. The store commits every 100 ms.
const COMMIT_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Number of old states that are sent together to be dropped.
const RETIRED_BATCH: usize = 64;
const HEALTHY: &str = "a healthy store takes writes and commits";

/// A store. Its directory is removed when the store is dropped.
pub(crate) struct BenchStore {
    pub(crate) era: Era,
    pub(crate) store: Arc<dyn WatchableKv<Entry>>,
    began: Instant,
    _directory: TempDir,
}

impl BenchStore {
    /// Creates an empty store.
    pub(crate) fn open(era: Era) -> BenchStore {
        let directory = TempDir::new().unwrap_or_else(|error| fail(&error));
        let path = directory.path().join("store");
        let engine = clearlane_engine::open(EngineKind::Bolt, &path, Options::default());
        let engine = engine.unwrap_or_else(|error| fail(&error));
        // Like etcd, saves a consistent index with every commit.
        let pre_commit = PreCommit::new(|entry: &Entry, put| {
            put(Bucket::Meta, b"consistent_index", &entry.to_be_bytes())
        });
        let store_config = StoreConfig::new(engine, Config::default(), pre_commit, 0);
        let opened = clearlane_mvcc::open(era, store_config);
        let (store, _) = opened.expect("an empty engine can be opened");
        BenchStore { era, store: Arc::from(store), began: Instant::now(), _directory: directory }
    }

    /// Puts each of these keys, with `per_transaction` keys in each transaction, and commits.
    pub(crate) fn fill(
        &self,
        keys: impl Iterator<Item = impl AsRef<[u8]>>,
        value: &[u8],
        per_transaction: usize,
    ) {
        let mut keys = keys.peekable();
        while keys.peek().is_some() {
            let mut txn = self.store.begin_write().expect(HEALTHY);
            for key in keys.by_ref().take(per_transaction) {
                txn.put(key.as_ref(), value, 0).expect(HEALTHY);
            }
            if txn.end(0).expect(HEALTHY).commit_due {
                self.store.commit().expect(HEALTHY);
            }
        }
        self.store.commit().expect(HEALTHY);
    }

    /// Commits like a server: at fixed times, and when the writer reports that much is pending.
    pub(crate) fn run_commits(&self, due: &ThreadSignal, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            if due.wait(COMMIT_POLL_INTERVAL) {
                self.store.commit().expect(HEALTHY);
            } else {
                self.store.commit_if_due(self.began.elapsed()).expect(HEALTHY);
            }
        }
    }
}

/// The writer of the puts.
pub(crate) struct Writer<'s> {
    stage: &'s BenchStore,
    watchable_store: Option<&'s dyn WatchableStore>,
    commit_due: &'s ThreadSignal,
    entry: Entry,
    dropped_states: Vec<DroppedStates>,
    drop_sender: Sender<Vec<DroppedStates>>,
}

impl<'s> Writer<'s> {
    /// Returns a writer, and the receiver of its old states.
    pub(crate) fn new(
        stage: &'s BenchStore,
        watchable_store: Option<&'s dyn WatchableStore>,
        commit_due: &'s ThreadSignal,
    ) -> (Writer<'s>, Receiver<Vec<DroppedStates>>) {
        let (drops, dropped) = std::sync::mpsc::channel();
        let retired = Vec::with_capacity(RETIRED_BATCH);
        (
            Writer {
                stage,
                watchable_store,
                commit_due,
                entry: 0,
                dropped_states: retired,
                drop_sender: drops,
            },
            dropped,
        )
    }

    /// Makes one put in a separate transaction. Returns the store's revision after the put, and the
    /// time when the client could get its response. As in a server, watchers are notified after
    /// this time.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> (i64, Instant) {
        self.entry += 1;
        let mut txn = self.stage.store.begin_write().expect(HEALTHY);
        txn.put(key, value, 0).expect(HEALTHY);
        let ended = txn.end(self.entry).expect(HEALTHY);
        let answered = Instant::now();
        if let Some(watchable_store) = self.watchable_store {
            watchable_store.publish_all(vec![(ended.revision, ended.changes)]);
        }
        if ended.commit_due {
            self.commit_due.notify();
        }
        self.dropped_states.push(ended.dropped_states);
        if self.dropped_states.len() == RETIRED_BATCH {
            let batch = Vec::with_capacity(RETIRED_BATCH);
            let batch = std::mem::replace(&mut self.dropped_states, batch);
            self.drop_sender.send(batch).expect("the thread that drops outlives the writer");
        }
        (ended.revision, answered)
    }
}

/// Wakes a sleeping thread. If no thread is sleeping when the signal is set, the next wait returns
/// immediately.
#[derive(Default)]
pub(crate) struct ThreadSignal {
    is_set: Mutex<bool>,
    condvar: Condvar,
}

impl ThreadSignal {
    pub(crate) fn notify(&self) {
        if !std::mem::replace(&mut *self.is_set.lock(), true) {
            self.condvar.notify_one();
        }
    }

    /// Waits until the signal is set, for at most `longest`. Returns whether it was set.
    pub(crate) fn wait(&self, longest: Duration) -> bool {
        let mut rung = self.is_set.lock();
        if !*rung {
            self.condvar.wait_for(&mut rung, longest);
        }
        std::mem::take(&mut *rung)
    }
}

/// Returns 32 bytes that look random, different for each number.
pub(crate) fn random_key(number: u64) -> Vec<u8> {
    (0..4).flat_map(|part| scramble(number * 4 + part).to_be_bytes()).collect()
}

/// Returns the key of a pod, in one of a hundred namespaces.
pub(crate) fn pod_key(number: u64) -> Vec<u8> {
    format!("/registry/pods/namespace-{}/pod-name-{}", number % 100, number / 100).into_bytes()
}

fn scramble(number: u64) -> u64 {
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
