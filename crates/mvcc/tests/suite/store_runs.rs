//! Tests that a reader finds no difference between several revisions that share one transaction and
//! the same revisions in separate transactions.

use std::sync::Arc;

use clearlane_backend::{Config, Era, PreCommit};
use clearlane_engine::{Engine, KeyRange, MemoryEngine};
use clearlane_mvcc::{Changes, RangeOptions, Store, StoreConfig, WriteTxn, open};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

fn store(engine: &Arc<dyn Engine>, era: Era) -> Box<dyn Store<()>> {
    let store_config =
        StoreConfig::new(Arc::clone(engine), Config::default(), PreCommit::none(), ());
    open(era, store_config).unwrap().0
}

enum Step {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    Nothing,
}

fn step(chance: &mut StdRng) -> Step {
    let key = vec![b'a' + chance.random_range(0..20_u8)];
    match chance.random_range(0..10) {
        0 => Step::Nothing,
        1 | 2 => Step::Delete(key),
        _ => Step::Put(key, vec![7; chance.random_range(0..50)]),
    }
}

/// Runs a step, and returns what the transaction sees afterwards.
fn run(step: &Step, txn: &mut dyn WriteTxn<()>) -> String {
    match step {
        Step::Put(key, value) => txn.put(key, value, 0).unwrap(),
        Step::Delete(key) => drop(txn.delete_range(KeyRange::new(key, &[key[0] + 1])).unwrap()),
        Step::Nothing => {}
    }
    let seen = txn.range(KeyRange::ALL, RangeOptions::default()).unwrap();
    format!("{} {seen:?}", txn.revision())
}

fn contents(store: &dyn Store<()>) -> Vec<String> {
    let read_txn = store.begin_read();
    let at = |revision| RangeOptions { revision, ..RangeOptions::default() };
    let mut contents: Vec<_> = (1..=read_txn.revision())
        .map(|revision| format!("{:?}", read_txn.range(KeyRange::ALL, at(revision)).unwrap()))
        .collect();
    let mut job = store.hash(0).unwrap();
    let hash = std::iter::repeat_with(|| job.step(100).unwrap()).flatten().next();
    contents.push(format!("{:?}", hash.unwrap()));
    contents
}

#[test]
fn revisions_that_share_a_transaction_are_as_those_that_do_not() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut chance = StdRng::seed_from_u64(seed);
    let engines: [Arc<dyn Engine>; 2] = std::array::from_fn(|_| Arc::new(MemoryEngine::new()) as _);
    let [alone, together] = engines.each_ref().map(|engine| store(engine, Era::Clearlane));
    let mut changes: [Vec<(i64, Changes)>; 2] = Default::default();
    for _ in 0..200 {
        let before = together.begin_read().revision();
        let mut shared = together.begin_write().unwrap();
        for _ in 0..chance.random_range(1..20) {
            let step = step(&mut chance);
            let mut own = alone.begin_write().unwrap();
            assert_eq!(run(&step, &mut *shared), run(&step, &mut *own));
            let ended = own.end(()).unwrap();
            changes[0].push((ended.revision, ended.changes));
            assert!(shared.begin_next_revision());
            if chance.random_bool(0.1) {
                // The commit moves published records while the transaction is open.
                together.commit().unwrap();
            }
            assert_eq!(together.begin_read().revision(), before, "the transaction is still open");
        }
        let ended = shared.end(()).unwrap();
        assert!(ended.changes.is_empty());
        changes[1].extend(ended.earlier_revisions);
        assert_eq!(ended.revision, alone.begin_read().revision());
        assert_eq!(together.begin_read().revision(), ended.revision);
    }
    changes[0].retain(|(_, changes)| !changes.is_empty());
    assert_eq!(changes[0], changes[1]);
    assert_eq!(contents(&*together), contents(&*alone));
    together.commit().unwrap();
    drop(together);
    let together = store(&engines[1], Era::Clearlane);
    assert_eq!(contents(&*together), contents(&*alone), "after a restart");
}

#[test]
fn in_the_old_eras_each_revision_has_its_own() {
    for era in Era::DISTINCT_STORES.into_iter().filter(|era| *era != Era::Clearlane) {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let store = store(&engine, era);
        let mut txn = store.begin_write().unwrap();
        txn.put(b"a", b"1", 0).unwrap();
        assert!(!txn.begin_next_revision(), "{era:?}");
        let ended = txn.end(()).unwrap();
        assert_eq!((ended.revision, ended.changes.len()), (2, 1), "{era:?}");
    }
}
