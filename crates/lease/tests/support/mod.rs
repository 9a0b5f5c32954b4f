//! A lessor in front of a store in memory, and a clock that a test moves.

// Each test binary uses its own part of this module.
#![allow(dead_code, reason = "shared by several test binaries, none of which uses all of it")]

use std::sync::Arc;
use std::time::Duration;

use clearlane_backend::{Config as BackendConfig, Design, PreCommit};
use clearlane_engine::{Engine, KeyRange, MemoryEngine};
use clearlane_lease::{Checkpoint, Config, Lessor, Refused};
use clearlane_locks::Registry;
use clearlane_mvcc::{Ground, KeyLeases, RangeOptions, Store, StoreParts, WriteTxn, open};

pub(crate) struct Lab {
    engine: Arc<dyn Engine>,
    pub(crate) config: Config,
    pub(crate) store: Arc<dyn Store<()>>,
    pub(crate) lessor: Arc<Lessor>,
    pub(crate) now: Duration,
}

impl Lab {
    pub(crate) fn new(config: Config) -> Lab {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let (store, lessor) = restored(&engine, config);
        Lab { engine, config, store, lessor, now: Duration::ZERO }
    }

    /// What was not committed is lost, the rest is read again.
    pub(crate) fn crash(&mut self) {
        (self.store, self.lessor) = restored(&self.engine, self.config);
    }

    pub(crate) fn grant(&self, id: i64, ttl: i64) -> Result<i64, Refused> {
        let mut txn = self.store.write().unwrap();
        let granted = self.lessor.grant(id, ttl, &mut *txn).unwrap();
        txn.end(()).unwrap();
        if granted.is_ok() {
            self.lessor.begin(id, self.now);
        }
        granted
    }

    /// Revokes, and says at which revision the store is then.
    pub(crate) fn revoke(&self, id: i64) -> Result<i64, Refused> {
        let mut txn = self.store.write().unwrap();
        let deleted = self.lessor.delete(id, &mut *txn).unwrap();
        let ended = txn.end(()).unwrap();
        deleted?;
        self.lessor.forget(id);
        Ok(ended.revision)
    }

    pub(crate) fn checkpoint(&self, checkpoints: &[Checkpoint]) {
        let mut txn = self.store.write().unwrap();
        self.lessor.checkpoint(checkpoints, &mut *txn).unwrap();
        txn.end(()).unwrap();
    }

    pub(crate) fn write(&self, change: impl FnOnce(&mut dyn WriteTxn<()>)) {
        let mut txn = self.store.write().unwrap();
        change(&mut *txn);
        txn.end(()).unwrap();
    }

    /// The keys that are there.
    pub(crate) fn keys(&self) -> Vec<String> {
        let found = self.store.read().range(KeyRange::ALL, RangeOptions::default()).unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        found.records.iter().map(|record| text(&record.key)).collect()
    }
}

fn restored(engine: &Arc<dyn Engine>, config: Config) -> (Arc<dyn Store<()>>, Arc<Lessor>) {
    let lessor = Arc::new(Lessor::new(config, &Registry::new()));
    let pre_commit = PreCommit::none();
    let ground = Ground::new(Arc::clone(engine), BackendConfig::default(), pre_commit, ());
    let leases = Arc::clone(&lessor) as Arc<dyn KeyLeases>;
    let parts = StoreParts::from(Design::SnapshotReadTx);
    let (store, opened) = open(parts, Ground { leases, ..ground }).unwrap();
    lessor.restore(&*store.read(), &opened.leases).unwrap();
    (Arc::from(store), lessor)
}
