//! Tests which keys are reported as changed after a revision: by one transaction or many, committed
//! or pending.

use std::ops::ControlFlow;
use std::sync::Arc;

use clearlane_backend::{Config, Era, PreCommit};
use clearlane_engine::{KeyRange, MemoryEngine};
use clearlane_mvcc::{RangeOptions, ReadTxn, Store, StoreConfig, open};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

fn empty_store(era: Era) -> Box<dyn Store<()>> {
    let engine = Arc::new(MemoryEngine::new());
    let store_config = StoreConfig::new(engine, Config::default(), PreCommit::none(), ());
    open(era, store_config).unwrap().0
}

/// Upper limit for the bytes that a record has in addition to its value. The lengths of all values
/// are multiples of this number, so the length of a record shows the length of its value.
const NUMBERS_BYTES_MAX: usize = 32;

/// Returns the first `most` keys that were changed after a revision, with the lengths of their
/// records. Returns `None` if the store cannot report all changes.
fn changed_keys(read_txn: &dyn ReadTxn, after: i64, most: usize) -> Option<Vec<(Vec<u8>, usize)>> {
    let mut keys = Vec::new();
    let is_whole = read_txn.visit_changed_keys(after, &mut |key, record_len| {
        keys.push((key.to_vec(), record_len));
        if keys.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let is_whole = is_whole.unwrap();
    assert!(is_whole || keys.is_empty());
    is_whole.then_some(keys)
}

#[test]
fn each_change_after_a_revision_comes_in_its_order() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut chance = StdRng::seed_from_u64(seed);
    let store = empty_store(Era::Clearlane);
    // Each change with its revision, its key, and the length of its value.
    let mut changes: Vec<(i64, Vec<u8>, usize)> = Vec::new();
    let mut compacted = -1;
    for _ in 0..300 {
        let mut txn = store.begin_write().unwrap();
        for _ in 0..chance.random_range(0..4) {
            let key = vec![b'a' + chance.random_range(0..5_u8)];
            let range = KeyRange::new(&key, b"z");
            if chance.random_bool(0.2) {
                let there = txn.range(range, RangeOptions::default()).unwrap().records;
                txn.delete_range(range).unwrap();
                let deleted = there.into_iter().map(|record| record.key.to_vec());
                changes.extend(deleted.map(|key| (txn.revision(), key, 0)));
            } else {
                let value = vec![7; chance.random_range(0..9) * NUMBERS_BYTES_MAX];
                txn.put(&key, &value, 0).unwrap();
                changes.push((txn.revision(), key, value.len()));
            }
            if chance.random_bool(0.5) {
                assert!(txn.begin_next_revision());
            }
        }
        drop(txn.end(()).unwrap());
        if chance.random_bool(0.2) {
            store.commit().unwrap();
        }
        let now = store.begin_read().revision();
        if chance.random_bool(0.05) && now > compacted.max(1) {
            compacted = chance.random_range(compacted.max(1) + 1..=now);
            let (mut job, ended) = store.compact(compacted, ()).unwrap();
            drop(ended);
            while !store.compact_step(&mut job, 3).unwrap() {}
        }
        let after = chance.random_range(0..=now);
        let most = chance.random_range(1..60);
        let later = changes.iter().filter(|(revision, ..)| *revision > after);
        let later: Vec<_> = later.map(|(_, key, value)| (key.clone(), *value)).take(most).collect();
        let expected = (after >= compacted).then_some(later);
        let read_txn = store.begin_snapshot_read().unwrap();
        let found = changed_keys(&*read_txn, after, most).map(|keys| {
            let value_len = |record: usize| record / NUMBERS_BYTES_MAX * NUMBERS_BYTES_MAX;
            keys.into_iter().map(|(key, record)| (key, value_len(record))).collect::<Vec<_>>()
        });
        assert_eq!(found, expected, "after {after}");
    }
    assert!(compacted > 1 && changes.len() > 300, "{} changes", changes.len());
}

#[test]
fn an_index_under_a_lock_is_not_asked() {
    for era in Era::DISTINCT_STORES.iter().filter(|era| **era != Era::Clearlane) {
        let store = empty_store(*era);
        assert_eq!(changed_keys(&*store.begin_read(), 1, 1), None, "{era:?}");
    }
}
