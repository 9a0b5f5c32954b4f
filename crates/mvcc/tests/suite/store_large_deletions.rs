//! Tests of deletions of many keys. At first, the default era only marks these keys in its index.
//! Two tests compare the default era with an era that writes each tombstone immediately. Records,
//! changes, hashes and reads of every revision must be equal.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_backend::{Config, Era, PreCommit};
use clearlane_contention::Registry;
use clearlane_engine::{Bucket, Engine, KeyRange, MemoryEngine};
use clearlane_mvcc::watch::{
    CurrentWatchableStore, ResponseKind, WakeSet, WatchConfig, WatchRequest, WatchStream,
    WatchableStore, WatchedKeys,
};
use clearlane_mvcc::{
    Change, ChangeRun, Changes, HashKv, RangeOptions, StoreConfig, WatchableKv, WriteTxn, open,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const KEYS: u32 = 1_500;

type Kv = Arc<dyn WatchableKv<()>>;

struct TestStore {
    era: Era,
    engine: Arc<dyn Engine>,
    store: Kv,
}

fn open_store(era: Era, engine: &Arc<dyn Engine>) -> Kv {
    let config = StoreConfig::new(Arc::clone(engine), Config::default(), PreCommit::none(), ());
    let (store, recovery) = open(era, config).unwrap();
    assert!(recovery.compaction.is_none(), "the test ends each compaction");
    Arc::from(store)
}

impl TestStore {
    fn new(era: Era) -> TestStore {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        TestStore { era, store: open_store(era, &engine), engine }
    }

    fn restart(&mut self) {
        self.store.commit().unwrap();
        let empty: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        self.store = open_store(self.era, &empty);
        self.store = open_store(self.era, &self.engine);
    }

    fn txn(&self, steps: &[Step]) -> (i64, Changes) {
        let mut txn = self.store.begin_write().unwrap();
        steps.iter().for_each(|step| step.run(&mut *txn));
        let ended = txn.end(()).unwrap();
        (ended.revision, ended.changes)
    }

    fn compact(&self, at: i64) {
        let (mut job, ended) = self.store.compact(at, ()).unwrap();
        drop(ended);
        while !self.store.compact_step(&mut job, 300).unwrap() {}
    }

    fn contents_at(&self, revision: i64) -> String {
        let options = RangeOptions { revision, ..RangeOptions::default() };
        format!("{:?}", self.store.begin_read().range(KeyRange::ALL, options).unwrap())
    }

    fn hash(&self, revision: i64) -> HashKv {
        let mut job = self.store.hash(revision).unwrap();
        std::iter::repeat_with(|| job.step(500).unwrap()).flatten().next().unwrap()
    }

    /// Commits. Returns the records that a restart would find.
    fn committed_records(&self) -> Vec<(Bytes, Bytes)> {
        self.store.commit().unwrap();
        let mut records = Vec::new();
        let mut keep = |key: &[u8], value: &[u8]| {
            records.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
            ControlFlow::Continue(())
        };
        self.engine.snapshot().unwrap().scan(Bucket::Key, KeyRange::ALL, &mut keep).unwrap();
        records
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(u32, u8),
    Delete(u32, u32),
    /// Deletes all keys from this one on.
    DeleteFrom(u32),
    DeleteKeys(Vec<u32>),
}

fn key(number: u32) -> Vec<u8> {
    // Some keys do not fit in the tree's slots.
    let long = if number.is_multiple_of(7) { "/with/a/name/of/more/bytes/than/others" } else { "" };
    format!("key/{number:06}{long}").into_bytes()
}

impl Step {
    fn run(&self, txn: &mut (dyn WriteTxn<()> + '_)) {
        match self {
            Step::Put(number, value) => txn.put(&key(*number), &[*value], 0).unwrap(),
            Step::Delete(from, to) => {
                txn.delete_range(KeyRange::new(&key(*from), &key(*to))).map(drop).unwrap();
            }
            Step::DeleteFrom(from) => {
                txn.delete_range(KeyRange::starting_at(&key(*from))).map(drop).unwrap();
            }
            Step::DeleteKeys(numbers) => {
                let keys: Vec<Bytes> = numbers.iter().map(|number| key(*number).into()).collect();
                txn.delete_keys(&keys).map(drop).unwrap();
            }
        }
    }
}

fn random_txn(chance: &mut StdRng) -> Vec<Step> {
    let at = chance.random_range(0..KEYS);
    let put = |chance: &mut StdRng| Step::Put(chance.random_range(0..KEYS), chance.random());
    match chance.random_range(0..8) {
        0..3 => (0..chance.random_range(1..400)).map(|_| put(chance)).collect(),
        3 => vec![put(chance)],
        4 => vec![Step::Delete(at, at + chance.random_range(0..KEYS))],
        5 => vec![Step::DeleteFrom(at)],
        6 if chance.random() => {
            vec![Step::DeleteKeys((at..KEYS).step_by(9).take(100).collect())]
        }
        // Puts consecutive keys and then deletes exactly these keys, so that they are all keys of a
        // range.
        6 => {
            let numbers: Vec<u32> = (at..KEYS).take(100).collect();
            let puts = numbers.iter().map(|number| Step::Put(*number, 1));
            puts.chain([Step::DeleteKeys(numbers.clone())]).collect()
        }
        // Puts before, between and after deletions that may have keys in common.
        _ => {
            let to = at + chance.random_range(0..KEYS);
            vec![
                put(chance),
                Step::Delete(at, to),
                put(chance),
                put(chance),
                Step::Delete(at / 2, to),
                put(chance),
            ]
        }
    }
}

fn compare(marked: &TestStore, eager: &TestStore, chance: &mut StdRng) {
    let read = marked.store.begin_read();
    let (revision, compacted) = (read.revision(), read.compact_revision());
    drop(read);
    let first = compacted.max(1);
    for at in [revision, first, chance.random_range(first..=revision)] {
        assert_eq!(marked.contents_at(at), eager.contents_at(at), "at {at} of {revision}");
        assert_eq!(marked.hash(at), eager.hash(at), "hash at {at} of {revision}");
    }
    let low = key(chance.random_range(0..KEYS));
    let options = RangeOptions { limit: 20, ..RangeOptions::default() };
    let page = |store: &TestStore| {
        format!("{:?}", store.store.begin_read().range(KeyRange::starting_at(&low), options))
    };
    assert_eq!(page(marked), page(eager));
}

#[test]
fn marks_leave_the_records_that_single_tombstones_leave() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut chance = StdRng::seed_from_u64(seed);
    let mut marked = TestStore::new(Era::Clearlane);
    let mut eager = TestStore::new(Era::V3_5);
    let mut ranges = 0;
    for _ in 0..150 {
        match chance.random_range(0..12) {
            0 => assert_eq!(marked.committed_records(), eager.committed_records()),
            1 => [&mut marked, &mut eager].into_iter().for_each(TestStore::restart),
            2 => {
                let read = marked.store.begin_read();
                let (newest, compacted) = (read.revision(), read.compact_revision());
                drop(read);
                if newest > compacted.max(0) {
                    let at = chance.random_range(compacted.max(0) + 1..=newest);
                    [&marked, &eager].into_iter().for_each(|store| store.compact(at));
                }
            }
            3 => [&marked, &eager].into_iter().for_each(|store| store.store.defragment().unwrap()),
            _ => {
                let steps = random_txn(&mut chance);
                let (changes, expected) = (marked.txn(&steps), eager.txn(&steps));
                assert_eq!(changes, expected, "{steps:?}");
                let runs = changes.1.runs();
                ranges += runs.filter(|run| matches!(run, ChangeRun::DeletedRange(_))).count();
            }
        }
        compare(&marked, &eager, &mut chance);
    }
    assert_eq!(marked.committed_records(), eager.committed_records());
    assert!(ranges > 0, "no deletion was large");
}

/// Three rounds read the records while they are pending, after a commit, and after a restart.
#[test]
fn each_state_before_and_after_a_deletion_is_read_as_it_was() {
    let mut store = TestStore::new(Era::Clearlane);
    let puts: Vec<Step> = (0..KEYS).map(|number| Step::Put(number, 1)).collect();
    let (filled, _) = store.txn(&puts);
    let before = store.store.begin_read_for_writer().range(KeyRange::ALL, RangeOptions::default());
    let before = format!("{:?}", before.unwrap());
    let (deleted, changes) = store.txn(&[Step::Delete(100, 1_400)]);
    assert_eq!((deleted, changes.len()), (filled + 1, 1_300));
    // Puts a key into the deleted range, and deletes a larger range, before anything is committed.
    store.txn(&[Step::Put(700, 2)]);
    let (again, changes) = store.txn(&[Step::Delete(50, 1_450)]);
    assert_eq!(changes.len(), 101);
    let keys = |store: &TestStore, revision| {
        let options = RangeOptions { revision, ..RangeOptions::default() };
        store.store.begin_read().range(KeyRange::ALL, options).unwrap().count
    };
    for round in 0..3 {
        assert_eq!(store.contents_at(filled), before, "round {round}");
        let counts = [filled, deleted, deleted + 1, again].map(|at| keys(&store, at));
        assert_eq!(counts, [1_500, 200, 201, 100], "round {round}");
        match round {
            0 => store.store.commit().unwrap(),
            _ => store.restart(),
        }
    }
    store.compact(deleted);
    assert_eq!([deleted, deleted + 1, again].map(|at| keys(&store, at)), [200, 201, 100]);
    store.compact(again);
    assert_eq!(keys(&store, again), 100);
    store.restart();
    assert_eq!(keys(&store, 0), 100);
}

fn events_of(stream: &WatchStream, watchable: &dyn WatchableStore) -> Vec<Change> {
    let mut changes = Vec::new();
    loop {
        while watchable.deliver().unwrap() {}
        while watchable.sync_watchers().unwrap() {}
        let responses = stream.take_responses(usize::MAX).unwrap();
        if responses.is_empty() {
            return changes;
        }
        for response in responses {
            if let ResponseKind::Events { events, .. } = response.kind {
                for event in &*events {
                    let is_delete = matches!(event.change, Change::Delete(_));
                    let previous = event.prev_kv.as_ref().map(|record| &record.key);
                    assert!(!is_delete || previous == Some(&event.change.record().key));
                }
                changes.extend(events.iter().map(|event| event.change.clone()));
            }
        }
    }
}

#[test]
fn watchers_get_each_event_once_in_order() {
    // One queue is so small that it holds a deletion only if it holds nothing else. The other holds
    // all transactions.
    for queue_bytes_max in [1_000, 64 << 20] {
        let store = TestStore::new(Era::Clearlane);
        let config = WatchConfig { queue_bytes_max, ..WatchConfig::default() };
        let watchable = Arc::clone(&store.store).open_watchable_store(
            config,
            &Registry::new(),
            Box::new(|_| {}),
        );
        let watch = |start_revision| {
            let current = CurrentWatchableStore::of(Arc::clone(&watchable));
            let stream = WatchStream::open(current, WakeSet::new(|| {}));
            let keys = WatchedKeys::From(Bytes::new());
            let request = WatchRequest { start_revision, prev_kv: true, ..WatchRequest::new(keys) };
            stream.watch(request);
            stream
        };
        let synced = watch(0);
        let fill: Vec<Step> = (0..KEYS).map(|number| Step::Put(number, 1)).collect();
        let txns = [
            fill,
            vec![Step::Put(3, 2)],
            vec![Step::Put(4, 2), Step::Delete(10, 1_300), Step::Put(20, 3), Step::Delete(0, 40)],
            vec![Step::Put(500, 4)],
            vec![Step::DeleteFrom(0)],
        ];
        let mut expected: Vec<Change> = Vec::new();
        for (number, txn) in txns.iter().enumerate() {
            let (revision, changes) = store.txn(txn);
            expected.extend(changes.clone().into_changes());
            assert_eq!(changes.len(), changes.iter().count());
            watchable.publish_all(vec![(revision, changes)]);
            if number == 2 {
                store.store.commit().unwrap();
            }
        }
        let deletes = expected.iter().filter(|change| matches!(change, Change::Delete(_))).count();
        assert!(deletes > KEYS as usize);
        let unsynced = watch(1);
        assert!(events_of(&synced, &*watchable) == expected, "{queue_bytes_max}: synced");
        assert!(events_of(&unsynced, &*watchable) == expected, "{queue_bytes_max}: unsynced");
    }
}

/// The keys of a revoked lease are deleted as one range if, and only if, there are at least 64
/// keys, each of these keys has a value, and no other key of the range has a value.
#[test]
fn keys_that_are_all_keys_of_a_range_are_deleted_as_one() {
    let numbers = |numbers: std::ops::Range<u32>| numbers.collect::<Vec<u32>>();
    let but = |without: u32| (0..100).filter(|number| *number != without).collect::<Vec<u32>>();
    // The existing keys, the key with a tombstone, the deleted keys, and whether they are deleted
    // as a range.
    let cases = [
        (numbers(0..100), None, numbers(0..100), true),
        (numbers(0..100), None, numbers(10..74), true),
        (numbers(0..100), None, numbers(10..73), false),
        (numbers(0..100), None, but(50), false),
        (numbers(0..100), Some(50), but(50), true),
        (numbers(0..100), Some(50), numbers(0..100), false),
        (but(50), None, numbers(0..100), false),
    ];
    for (case, (there, tombstone, deleted, is_range)) in cases.into_iter().enumerate() {
        let stores = [Era::Clearlane, Era::V3_5].map(TestStore::new);
        let changes = stores.each_ref().map(|store| {
            store.txn(&there.iter().map(|number| Step::Put(*number, 1)).collect::<Vec<_>>());
            if let Some(number) = tombstone {
                store.txn(&[Step::Delete(number, number + 1)]);
            }
            store.txn(&[Step::DeleteKeys(deleted.clone())]).1
        });
        assert_eq!(changes[0], changes[1], "case {case}");
        let is_deleted_range = |run| matches!(run, ChangeRun::DeletedRange(_));
        assert_eq!(changes[0].runs().any(is_deleted_range), is_range, "case {case}");
        assert_eq!(stores[0].committed_records(), stores[1].committed_records(), "case {case}");
    }
}
