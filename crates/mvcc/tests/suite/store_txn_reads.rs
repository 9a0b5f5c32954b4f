//! Tests of read transactions that a write transaction opens, and that stay open after its end.
//! Each read transaction must keep showing the state that the write transaction saw when it opened
//! the read transaction.

use std::ops::ControlFlow;
use std::sync::Arc;

use clearlane_backend::{Config, Era, PreCommit};
use clearlane_engine::{Engine, KeyRange, MemoryEngine};
use clearlane_mvcc::{
    RangeOptions, RangeRecords, ReadTxn, Revision, Store, StoreConfig, Version, open,
};
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

type SharedReadTxn = Arc<dyn ReadTxn + Send + Sync>;

fn store(era: Era) -> Box<dyn Store<()>> {
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let store_config = StoreConfig::new(engine, Config::default(), PreCommit::none(), ());
    open(era, store_config).unwrap().0
}

/// Returns, as text, what a read or write transaction shows at each of these revisions.
macro_rules! shown {
    ($read:expr, $revisions:expr) => {{
        let mut shown = vec![$read.revision().to_string()];
        for revision in $revisions {
            for count_only in [false, true] {
                let options = RangeOptions { revision, count_only, ..RangeOptions::default() };
                shown.push(format!("{:?}", $read.range(KeyRange::ALL, options)));
            }
        }
        shown
    }};
}

#[test]
fn a_view_shows_what_the_transaction_has_shown() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut chance = StdRng::seed_from_u64(seed);
    let store = store(Era::Clearlane);
    let mut read_txns: Vec<(SharedReadTxn, Vec<i64>, Vec<String>)> = Vec::new();
    let mut compacted = 1;
    for _ in 0..200 {
        let mut txn = store.begin_write().unwrap();
        // Sometimes there are more records than fit into one chunk of pending records.
        let many = if chance.random_bool(0.03) { 700 } else { 0 };
        for number in 0..chance.random_range(0..6) + many {
            let key = [b'a' + chance.random_range(0..20_u8)];
            match chance.random_range(0..8) {
                0 | 1 => drop(txn.delete_range(KeyRange::new(&key, &[key[0] + 3])).unwrap()),
                2 if number < 6 => store.commit().unwrap(),
                _ => txn.put(&key, &vec![number as u8; chance.random_range(0..50)], 0).unwrap(),
            }
            if number < 8 && chance.random_bool(0.3) {
                let now = txn.revision();
                let revisions = vec![0, chance.random_range(1..=now), now, now + 1];
                let expected = shown!(txn, revisions.iter().copied());
                read_txns.push((txn.begin_snapshot_read().unwrap(), revisions, expected));
            }
        }
        drop(txn.end(()).unwrap());
        let now = store.begin_read().revision();
        if chance.random_bool(0.1) && now > compacted {
            compacted = chance.random_range(compacted + 1..=now);
            let (mut job, ended) = store.compact(compacted, ()).unwrap();
            drop(ended);
            while !store.compact_step(&mut job, 3).unwrap() {}
            store.defragment().unwrap();
        }
        if chance.random_bool(0.2) {
            store.commit().unwrap();
        }
        if read_txns.len() > 20 {
            drop(read_txns.split_off(10));
        }
        for (read_txn, revisions, expected) in &read_txns {
            assert_eq!(&shown!(read_txn, revisions.iter().copied()), expected);
        }
    }
}

#[test]
fn an_old_era_has_none() {
    for era in Era::DISTINCT_STORES.into_iter().filter(|era| *era != Era::Clearlane) {
        let store = store(era);
        let txn = store.begin_write().unwrap();
        assert!(txn.begin_snapshot_read().is_none(), "{era:?}");
        drop(txn.end(()).unwrap());
    }
}

#[test]
fn the_versions_of_the_index_are_those_of_the_records() {
    let store = store(Era::Clearlane);
    for round in 0..3 {
        let mut txn = store.begin_write().unwrap();
        for key in 0..50_u8 {
            if key % 3 >= round {
                txn.put(&[b'a', key], b"v", 0).unwrap();
            }
        }
        txn.delete_range(KeyRange::new(b"a\x08", b"a\x0b")).unwrap();
        drop(txn.end(()).unwrap());
    }
    let read = store.begin_read();
    let ranges = [KeyRange::ALL, KeyRange::new(b"a\x05", b"a\x09"), KeyRange::starting_at(b"b")];
    let options = [0, 2, 3, 4].into_iter().flat_map(|revision| {
        let limits = [0, 1, 7].into_iter();
        limits.map(move |limit| RangeOptions { revision, limit, ..RangeOptions::default() })
    });
    for (options, range) in options.flat_map(|options| ranges.map(|range| (options, range))) {
        let (found, count) = versions(&*read, range, options);
        let RangeRecords { records, count: key_count } = read.range(range, options).unwrap();
        assert_eq!(count, key_count, "{options:?}");
        let numbers = found.iter().map(|(key, version)| {
            (key.clone(), version.created, version.modified.main, version.version)
        });
        let expected = records.iter().map(|record| {
            let KeyValue { create_revision, mod_revision, version, .. } = *record;
            (record.key.to_vec(), create_revision, mod_revision, version)
        });
        assert!(numbers.eq(expected), "{options:?}: {found:?}");
        let uncounted = RangeOptions { skip_count: true, ..options };
        assert_eq!(versions(&*read, range, uncounted).0, found);
        let counted = RangeOptions { count_only: true, ..options };
        assert_eq!(versions(&*read, range, counted), (Vec::new(), key_count));
        let names: Vec<_> = found.iter().rev().map(|(_, version)| version.modified).collect();
        let reversed: Vec<_> = records.iter().rev().map(Message::encode_to_vec).collect();
        assert_eq!(named_records(&*read, &names, usize::MAX), reversed);
        assert_eq!(named_records(&*read, &names, 2), reversed[..reversed.len().min(2)]);
    }
    let future = RangeOptions { revision: 9, ..RangeOptions::default() };
    assert!(read.visit_versions(KeyRange::ALL, future, &mut |_, _| panic!("a version")).is_err());
    let missing = read.visit_named_records(&[Revision::new(9, 0)], &mut |_| panic!("a record"));
    assert!(missing.unwrap_err().to_string().contains("no record of revision 9.0"));
}

fn versions(
    read: &dyn ReadTxn,
    range: KeyRange<'_>,
    options: RangeOptions,
) -> (Vec<(Vec<u8>, Version)>, u64) {
    let mut found = Vec::new();
    let count = read.visit_versions(range, options, &mut |key, version| {
        found.push((key.to_vec(), version));
        ControlFlow::Continue(())
    });
    (found, count.unwrap().unwrap())
}

fn named_records(read: &dyn ReadTxn, names: &[Revision], wanted: usize) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    let visited = read.visit_named_records(names, &mut |record| {
        records.push(record.to_vec());
        if records.len() == wanted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    visited.unwrap();
    records
}
