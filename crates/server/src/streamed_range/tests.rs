//! What is streamed against what `execute_range` collects.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and reports"
)]

use clearlane_backend::{Config, Era};
use clearlane_engine::{Bucket, Engine, KeyRange, MemoryEngine};
use clearlane_mvcc::{Store, StoreConfig};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::applied_position::AppliedPosition;
use crate::apply::range::execute_range;

type View = Arc<dyn ReadTxn + Send + Sync>;

fn open_on(engine: &Arc<dyn Engine>) -> Box<dyn Store<AppliedPosition>> {
    let (applied, before) = (AppliedPosition::default(), AppliedPosition::pre_commit());
    let config = StoreConfig::new(Arc::clone(engine), Config::default(), before, applied);
    clearlane_mvcc::open(Era::Clearlane, config).unwrap().0
}

fn write(
    store: &dyn Store<AppliedPosition>,
    change: impl FnOnce(&mut (dyn clearlane_mvcc::WriteTxn<AppliedPosition> + '_)),
) {
    let mut txn = store.begin_write().unwrap();
    change(&mut *txn);
    drop(txn.end(AppliedPosition::default()).unwrap());
}

/// Many values are equal, equal in their first bytes, or end where others go on.
fn value(chance: &mut StdRng) -> Vec<u8> {
    let length = [0, 1, 6, 7, 8, 9, 14, 64, 70, 71, 72, 136, 300][chance.random_range(0..13)];
    let mut value = vec![b'v'; length];
    if length > 0 && chance.random_bool(0.5) {
        let place =
            if chance.random_bool(0.5) { length - 1 } else { chance.random_range(0..length) };
        value[place] = [0, b'u', b'w', 255][chance.random_range(0..4)];
    }
    value
}

/// With several changes in a transaction, keys that were deleted and put again, and leases.
fn random_store(chance: &mut StdRng, keys: u32) -> Box<dyn Store<AppliedPosition>> {
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let mut store = open_on(&engine);
    for round in 0..12 {
        write(&*store, |txn| {
            for _ in 0..chance.random_range(1..=keys / 4) {
                let number = chance.random_range(0..keys);
                let (from, to) = (key(number), key(number + 1));
                match chance.random_range(0..6) {
                    0 => drop(txn.delete_range(KeyRange::new(&from, &to)).unwrap()),
                    lease => txn.put(&from, &value(chance), lease % 3).unwrap(),
                }
            }
        });
        if round == 6 && chance.random_bool(0.5) {
            store.commit().unwrap();
            store = open_on(&engine);
        }
    }
    store
}

fn key(number: u32) -> Vec<u8> {
    // Some are longer than what the index has in place.
    format!("{:0width$}", number, width = 5 + 60 * usize::from(number.is_multiple_of(7))).into()
}

fn random_request(chance: &mut StdRng, now: i64, keys: u32) -> RangeRequest {
    let mut revision = || if chance.random_bool(0.5) { 0 } else { chance.random_range(1..=now) };
    let (min_mod_revision, max_create_revision) = (revision(), revision());
    let is_filtered = chance.random_bool(0.4);
    let limit = match chance.random_range(0..4) {
        0 => chance.random_range(1..10),
        1 => i64::from(chance.random_range(1..=keys)),
        _ => 0,
    };
    RangeRequest {
        key: if chance.random_bool(0.5) { vec![0].into() } else { key(keys / 5).into() },
        range_end: if chance.random_bool(0.5) { vec![0].into() } else { key(keys / 5 * 4).into() },
        limit,
        revision: if chance.random_bool(0.5) { 0 } else { chance.random_range(2..=now) },
        keys_only: chance.random_bool(0.3),
        count_only: chance.random_bool(0.03),
        min_mod_revision: if is_filtered { min_mod_revision } else { 0 },
        max_create_revision: if is_filtered { max_create_revision } else { 0 },
        ..RangeRequest::default()
    }
}

fn streamed(view: &View, request: &RangeRequest, chunk_bytes: usize) -> ReadResult<RangeResponse> {
    let mut found = StreamedRange::unread(Arc::clone(view), request.clone())?;
    let (mut kvs, length) = (Vec::new(), found.encoded_len());
    while let Some(chunk) = found.next_records(chunk_bytes)? {
        let bytes: usize = chunk.iter().map(Bytes::len).sum();
        assert!(chunk.len() == 1 || bytes <= chunk_bytes);
        for record in chunk {
            kvs.push(decode(record)?);
        }
        assert_eq!(found.records_left() == 0, found.encoded_len() == 0);
    }
    let RangeMeta { header, more, count } = found.meta;
    let response = RangeResponse { header, kvs, more, count };
    let around = RangeResponse { kvs: Vec::new(), ..response.clone() }.encoded_len();
    assert_eq!(length as usize + around, response.encoded_len());
    Ok(response)
}

fn collected(view: &View, request: &RangeRequest) -> ReadResult<RangeResponse> {
    let read: &dyn ReadTxn = &**view;
    execute_range(read, request)
}

fn assert_collected_alike(view: &View, request: &RangeRequest, bytes: usize) {
    let expected = collected(view, request).ok().unwrap();
    let found = streamed(view, request, bytes).ok().unwrap();
    if found != expected {
        let keys = |response: &RangeResponse| -> Vec<_> {
            response.kvs.iter().map(|record| record.key.clone()).collect()
        };
        assert_eq!(keys(&found), keys(&expected), "{request:?}");
        assert_eq!(found, expected, "{request:?}");
    }
}

#[test]
fn in_chunks_a_range_is_what_it_is_at_once() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut chance = StdRng::seed_from_u64(seed);
    for _ in 0..12 {
        let keys = [5, 60, 400][chance.random_range(0..3)];
        let store = random_store(&mut chance, keys);
        let view = store.begin_snapshot_read().unwrap();
        for _ in 0..150 {
            let request = random_request(&mut chance, view.revision(), keys);
            let chunk_bytes = [1, 100, 3000, usize::MAX][chance.random_range(0..4)];
            assert_collected_alike(&view, &request, chunk_bytes);
        }
    }
}

#[test]
fn a_revision_that_cannot_be_read_is_an_error() {
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let store = open_on(&engine);
    for number in 0..9 {
        write(&*store, |txn| txn.put(&key(number), b"v", 0).unwrap());
    }
    let (mut job, ended) = store.compact(5, AppliedPosition::default()).unwrap();
    drop(ended);
    while !store.compact_step(&mut job, 100).unwrap() {}
    let view = store.begin_snapshot_read().unwrap();
    let all = RangeRequest { key: vec![0].into(), range_end: vec![0].into(), ..Default::default() };
    for revision in [4, 99] {
        let request = RangeRequest { revision, keys_only: true, ..all.clone() };
        assert!(streamed(&view, &request, 100).is_err(), "{request:?}");
        assert!(collected(&view, &request).is_err());
    }
}

/// The index names a record that the engine has lost.
#[test]
fn a_record_that_is_missing_is_an_error() {
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let store = open_on(&engine);
    for number in 0..20 {
        write(&*store, |txn| txn.put(&key(number), b"a long value", 0).unwrap());
    }
    store.commit().unwrap();
    let mut txn = engine.begin_write().unwrap();
    txn.delete(Bucket::Key, &clearlane_mvcc::Revision::new(9, 0).put_key()).unwrap();
    txn.commit().unwrap();
    write(&*store, |txn| txn.put(&key(30), b"v", 0).unwrap());
    store.commit().unwrap();
    let view = store.begin_snapshot_read().unwrap();
    let all = RangeRequest { key: vec![0].into(), range_end: vec![0].into(), ..Default::default() };
    let filtered = RangeRequest { min_mod_revision: 3, ..all.clone() };
    for request in [all.clone(), filtered] {
        assert!(streamed(&view, &request, 50).is_err(), "{request:?}");
        assert!(collected(&view, &request).is_err());
    }
    // The index alone answers.
    let keys_only = RangeRequest { keys_only: true, ..all };
    assert_eq!(streamed(&view, &keys_only, 50).ok().unwrap().kvs.len(), 21);
}
