//! Compares every store with a simple model: a whole map for every revision.
//!
//! Reads stay open only in stores where they block no other call, because one thread runs the whole
//! history.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_backend::{Config, Era, PreCommit};
use clearlane_engine::{Engine, KeyRange, MemoryEngine};
use clearlane_mvcc::{
    CompactionJob, Error, RangeOptions, ReadTxn, RecoveryInfo, SnapshotStore, StoreConfig,
    StoreReadTxn, WatchableKv,
};
use proptest::prelude::*;

/// A record of the model: value, create revision, mod revision, version.
type Entry = (u8, i64, i64, i64);
type Map = BTreeMap<u8, Entry>;

#[derive(Clone, Debug)]
enum Operation {
    Txn(Vec<RandomChange>),
    /// Compacts at this number of revisions before the current one.
    Compact(i64),
    CompactStep,
    Commit,
    View,
    Crash,
    Abandon,
}

#[derive(Clone, Debug)]
enum RandomChange {
    Put(u8, u8),
    Delete(u8, u8),
    /// Deletes the keys of a range as a list of single keys.
    DeleteKeys(u8, u8),
}

fn change() -> impl Strategy<Value = RandomChange> {
    prop_oneof![
        3 => (0..8_u8, any::<u8>()).prop_map(|(key, value)| RandomChange::Put(key, value)),
        1 => (0..8_u8, 0..4_u8).prop_map(|(from, len)| RandomChange::Delete(from, from + len)),
        1 => (0..8_u8, 0..4_u8).prop_map(|(from, len)| RandomChange::DeleteKeys(from, from + len)),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        8 => prop::collection::vec(change(), 0..4).prop_map(Operation::Txn),
        1 => (-1..4_i64).prop_map(Operation::Compact),
        3 => Just(Operation::CompactStep),
        2 => Just(Operation::Commit),
        1 => Just(Operation::View),
        1 => Just(Operation::Crash),
        1 => Just(Operation::Abandon),
    ]
}

/// The maps by revision, and the compact revision. -1 if there was no compaction.
#[derive(Clone, Debug)]
struct Model {
    maps: Vec<Map>,
    compacted: i64,
}

impl Model {
    fn new() -> Model {
        // Revision 0 belongs to no transaction. Revision 1 is the empty store.
        Model { maps: vec![Map::new(), Map::new()], compacted: -1 }
    }

    fn revision(&self) -> i64 {
        self.maps.len() as i64 - 1
    }

    fn txn(&mut self, changes: &[RandomChange]) {
        let (revision, mut map) = (self.revision() + 1, self.maps[self.maps.len() - 1].clone());
        let mut changed = false;
        for change in changes {
            match change {
                RandomChange::Put(key, value) => {
                    let (created, version) =
                        map.get(key).map_or((revision, 0), |old| (old.1, old.3));
                    map.insert(*key, (*value, created, revision, version + 1));
                    changed = true;
                }
                RandomChange::Delete(from, to) | RandomChange::DeleteKeys(from, to) => {
                    let before = map.len();
                    map.retain(|key, _| !(from..to).contains(&key));
                    changed |= map.len() < before;
                }
            }
        }
        if changed {
            self.maps.push(map);
        }
    }
}

struct World {
    era: Era,
    engine: Arc<dyn Engine>,
    store: Arc<dyn WatchableKv<Model>>,
    /// The same store, in eras where reads may stay open. `None` in the other eras.
    snapshot_store: Option<Arc<SnapshotStore<Model>>>,
    model: Model,
    job: Option<CompactionJob>,
    open_reads: Vec<(StoreReadTxn<Model>, Model)>,
}

/// The model that is durable. The payload of a state is the model itself, and each commit copies it
/// here. So the test knows which state is durable without asking the store.
type Durable = Arc<std::sync::Mutex<Model>>;

type OpenStore = (Arc<dyn WatchableKv<Model>>, Option<Arc<SnapshotStore<Model>>>, RecoveryInfo);

fn open(era: Era, engine: &Arc<dyn Engine>, durable: &Durable) -> OpenStore {
    let (noted, model) = (Arc::clone(durable), durable.lock().unwrap().clone());
    let hook = PreCommit::new(move |model: &Model, _| {
        noted.lock().unwrap().clone_from(model);
        Ok(())
    });
    let store_config = StoreConfig::new(Arc::clone(engine), Config::default(), hook, model);
    if era == Era::Clearlane {
        let (store, opened) = SnapshotStore::open(store_config).unwrap();
        let store = Arc::new(store);
        return (Arc::<SnapshotStore<Model>>::clone(&store), Some(store), opened);
    }
    let (store, opened) = clearlane_mvcc::open(era, store_config).unwrap();
    (Arc::from(store), None, opened)
}

fn check(read_txn: &dyn ReadTxn, model: &Model) {
    assert_eq!(
        (read_txn.revision(), read_txn.compact_revision()),
        (model.revision(), model.compacted)
    );
    for revision in 1..=model.revision() + 1 {
        let options = RangeOptions { revision, ..RangeOptions::default() };
        let found = read_txn.range(KeyRange::ALL, options);
        if revision > model.revision() {
            assert!(matches!(found, Err(Error::FutureRevision)));
        } else if revision < model.compacted {
            assert!(matches!(found, Err(Error::Compacted)));
        } else {
            let answer = found.unwrap();
            let map: Map = answer
                .records
                .iter()
                .map(|kv| {
                    (kv.key[0], (kv.value[0], kv.create_revision, kv.mod_revision, kv.version))
                })
                .collect();
            assert_eq!(map, model.maps[revision as usize], "at revision {revision}");
            assert_eq!(answer.count, map.len() as u64);
            let page = RangeOptions { limit: 2, ..options };
            let page = read_txn.range(KeyRange::new(&[2], &[6]), page).unwrap();
            let within = map.range(2..6).count();
            assert_eq!((page.records.len(), page.count), (within.min(2), within as u64));
        }
    }
}

impl World {
    fn run(&mut self, operation: &Operation, durable: &Durable) {
        match operation {
            Operation::Txn(changes) => self.txn(changes),
            Operation::Compact(back) => self.compact(self.model.revision() - back),
            Operation::CompactStep => {
                if let Some(job) = &mut self.job
                    && self.store.compact_step(job, 2).unwrap()
                {
                    self.job = None;
                }
            }
            Operation::Commit => self.store.commit().unwrap(),
            Operation::View => {
                let open_reads = self
                    .snapshot_store
                    .iter()
                    .map(|store| (store.begin_read(), self.model.clone()));
                self.open_reads.extend(open_reads);
            }
            Operation::Crash => {
                self.open_reads.clear();
                let model = durable.lock().unwrap().clone();
                // First replaces the old store with a store on another engine. This drops the old
                // store, and with it its handle on the engine.
                let empty: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
                (self.store, self.snapshot_store, _) = open(self.era, &empty, durable);
                let opened;
                (self.store, self.snapshot_store, opened) = open(self.era, &self.engine, durable);
                (self.model, self.job) = (model, opened.compaction);
            }
            Operation::Abandon => self.job = None,
        }
        check(&*self.store.begin_read(), &self.model);
        check(&*self.store.begin_read_for_writer(), &self.model);
        self.open_reads.iter().for_each(|(read_txn, model)| check(read_txn, model));
    }

    fn txn(&mut self, changes: &[RandomChange]) {
        self.model.txn(changes);
        let mut txn = self.store.begin_write().unwrap();
        for change in changes {
            match change {
                RandomChange::Put(key, value) => txn.put(&[*key], &[*value], 0).unwrap(),
                RandomChange::Delete(from, to) => {
                    txn.delete_range(KeyRange::new(&[*from], &[*to])).map(drop).unwrap();
                }
                RandomChange::DeleteKeys(from, to) => {
                    let keys: Vec<Bytes> = (*from..*to).map(|key| vec![key].into()).collect();
                    txn.delete_keys(&keys).map(drop).unwrap();
                }
            }
        }
        let ended = txn.end(self.model.clone()).unwrap();
        assert_eq!(ended.revision, self.model.revision());
    }

    fn compact(&mut self, at: i64) {
        if self.job.is_some() {
            return;
        }
        let mut model = self.model.clone();
        model.compacted = at;
        match self.store.compact(at, model.clone()) {
            Ok((job, ended)) => {
                drop(ended);
                assert!(self.model.compacted < at && at <= self.model.revision());
                (self.job, self.model) = (Some(job), model);
            }
            Err(Error::FutureRevision) => assert!(at > self.model.revision()),
            Err(Error::Compacted) => assert!(at <= self.model.compacted),
            Err(other) => panic!("{other}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn every_store_shows_what_the_model_shows(
        operations in prop::collection::vec(operation(), 1..60),
    ) {
        for era in Era::DISTINCT_STORES {
            let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
            let durable = Arc::new(std::sync::Mutex::new(Model::new()));
            let (store, viewed, _) = open(era, &engine, &durable);
            let (model, job, open_reads) = (Model::new(), None, Vec::new());
            let mut world = World { era, engine, store, snapshot_store: viewed, model, job, open_reads };
            for operation in &operations {
                world.run(operation, &durable);
            }
        }
    }
}
