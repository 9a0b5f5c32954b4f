//! Tests that the index has the correct lengths of the records.

use std::ops::ControlFlow;
use std::sync::Arc;

use clearlane_backend::{Config, Era, PreCommit};
use clearlane_engine::{Engine, KeyRange, MemoryEngine};
use clearlane_mvcc::{RangeOptions, ReadTxn, Store, StoreConfig, open};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

fn open_on(engine: &Arc<dyn Engine>) -> Box<dyn Store<()>> {
    let store_config =
        StoreConfig::new(Arc::clone(engine), Config::default(), PreCommit::none(), ());
    open(Era::Clearlane, store_config).unwrap().0
}

/// The number of keys, and the lengths of some of their records.
type Lengths = (u64, Vec<usize>);

fn both(read_txn: &dyn ReadTxn, options: RangeOptions) -> (Option<Lengths>, Lengths) {
    let (mut said, mut read) = (Vec::new(), Vec::new());
    let mut is_known = true;
    let said_count = read_txn.visit_versions(KeyRange::ALL, options, &mut |_, version| {
        said.extend(version.record_len());
        is_known &= version.record_len().is_some();
        ControlFlow::Continue(())
    });
    let said_count = said_count.unwrap().filter(|_| is_known);
    let count = read_txn.visit_records(KeyRange::ALL, options, &mut |record| {
        read.push(record.len());
        ControlFlow::Continue(())
    });
    (said_count.map(|count| (count, said)), (count.unwrap(), read))
}

#[test]
fn lengths_are_those_of_the_records() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut chance = StdRng::seed_from_u64(seed);
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let mut store = open_on(&engine);
    let (mut known, mut compacted) = (0, 1);
    for _ in 0..300 {
        let mut txn = store.begin_write().unwrap();
        let key = [b'a' + chance.random_range(0..20_u8)];
        match chance.random_range(0..10) {
            0 | 1 => drop(txn.delete_range(KeyRange::new(&key, &[key[0] + 1])).unwrap()),
            _ => {
                let value = vec![7; chance.random_range(0..300)];
                let lease = [0, 1, 1 << 40][chance.random_range(0..3)];
                txn.put(&key, &value, lease).unwrap();
            }
        }
        drop(txn.end(()).unwrap());
        let now = store.begin_read().revision();
        if chance.random_bool(0.05) && now > compacted {
            compacted = chance.random_range(compacted + 1..=now);
            let (mut job, ended) = store.compact(compacted, ()).unwrap();
            drop(ended);
            while !store.compact_step(&mut job, 3).unwrap() {}
        }
        if chance.random_bool(0.05) {
            store.commit().unwrap();
            drop(store);
            store = open_on(&engine);
        }
        let read_txn = store.begin_read();
        let limit = chance.random_range(0..9);
        let (said, read) = both(&*read_txn, RangeOptions { limit, ..RangeOptions::default() });
        assert_eq!(said, Some(read), "the newest are known");
        let revision = chance.random_range(compacted..=now);
        let (said, read) = both(&*read_txn, RangeOptions { revision, ..RangeOptions::default() });
        known += u64::from(said.is_some());
        assert!(said.is_none() || said == Some(read), "at {revision}");
    }
    assert!(known > 0);
}
