//! A lessor with a store in memory and a clock that the test moves.

// Only the test binary `suite` includes this module.
#![allow(dead_code, reason = "a test may use only some of the helpers")]

use std::sync::Arc;
use std::time::Duration;

use clearlane_backend::{Config as BackendConfig, Era, PreCommit};
use clearlane_contention::Registry;
use clearlane_engine::{Engine, KeyRange, MemoryEngine};
use clearlane_lease::{Config, LeaseRejection, Lessor};
use clearlane_mvcc::{KeyLeases, RangeOptions, StoreConfig, WatchableKv, WriteTxn, open};
use clearlane_proto::etcdserverpb::LeaseCheckpoint;

pub(crate) struct TestLessor {
    engine: Arc<dyn Engine>,
    pub(crate) config: Config,
    pub(crate) store: Arc<dyn WatchableKv<()>>,
    pub(crate) inner: Arc<Lessor>,
    pub(crate) now: Duration,
}

impl TestLessor {
    pub(crate) fn new(config: Config) -> TestLessor {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let (store, lessor) = restored(&engine, config);
        TestLessor { engine, config, store, inner: lessor, now: Duration::ZERO }
    }

    /// Loses everything that was not committed, and restores the rest.
    pub(crate) fn crash(&mut self) {
        (self.store, self.inner) = restored(&self.engine, self.config);
    }

    pub(crate) fn grant(&self, id: i64, ttl: i64) -> Result<i64, LeaseRejection> {
        let mut txn = self.store.begin_write().unwrap();
        let granted = self.inner.grant(id, ttl, &mut *txn).unwrap();
        txn.end(()).unwrap();
        if granted.is_ok() {
            self.inner.start_expiry(id, self.now);
        }
        granted
    }

    /// Revokes a lease, and returns the store's revision after the revocation.
    pub(crate) fn revoke(&self, id: i64) -> Result<i64, LeaseRejection> {
        let mut txn = self.store.begin_write().unwrap();
        let deleted = self.inner.delete(id, &mut *txn).unwrap();
        let ended = txn.end(()).unwrap();
        deleted?;
        self.inner.finish_delete(id);
        Ok(ended.revision)
    }

    pub(crate) fn checkpoint(&self, checkpoints: &[LeaseCheckpoint]) {
        let mut txn = self.store.begin_write().unwrap();
        self.inner.checkpoint(checkpoints, &mut *txn).unwrap();
        txn.end(()).unwrap();
    }

    pub(crate) fn write(&self, change: impl FnOnce(&mut dyn WriteTxn<()>)) {
        let mut txn = self.store.begin_write().unwrap();
        change(&mut *txn);
        txn.end(()).unwrap();
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        let found = self.store.begin_read().range(KeyRange::ALL, RangeOptions::default()).unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        found.records.iter().map(|record| text(&record.key)).collect()
    }
}

fn restored(engine: &Arc<dyn Engine>, config: Config) -> (Arc<dyn WatchableKv<()>>, Arc<Lessor>) {
    let lessor = Arc::new(Lessor::new(config, &Registry::new()));
    let pre_commit = PreCommit::none();
    let ground = StoreConfig::new(Arc::clone(engine), BackendConfig::default(), pre_commit, ());
    let leases = Arc::clone(&lessor) as Arc<dyn KeyLeases>;
    let era = Era::Clearlane;
    let (store, opened) = open(era, StoreConfig { leases, ..ground }).unwrap();
    lessor.restore(&*store.begin_read(), &opened.leases).unwrap();
    (Arc::from(store), lessor)
}
