//! Compares streamed ranges with the records that `execute_range` collects.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and reports"
)]

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use clearlane_backend::{Config, Era};
use clearlane_engine::{Bucket, Engine, KeyRange, MemoryEngine};
use clearlane_mvcc::{Store, StoreConfig, VersionVisitor};
use clearlane_proto::etcdserverpb::range_request::SortOrder;
use clearlane_replica::applied_position::AppliedPosition;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

type SharedReadTxn = Arc<dyn ReadTxn + Send + Sync>;

const TARGETS: [SortTarget; 5] =
    [SortTarget::Key, SortTarget::Version, SortTarget::Create, SortTarget::Mod, SortTarget::Value];

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

/// Returns a random value. Many of these values are equal, or equal in their first bytes, or a
/// prefix of another value.
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

/// Returns a store with several changes in a transaction, keys that were deleted and put again, and
/// leases.
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
    // Some keys are longer than the index stores in place.
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
    let orders = [SortOrder::None, SortOrder::Ascend, SortOrder::Descend];
    RangeRequest {
        key: if chance.random_bool(0.5) { vec![0].into() } else { key(keys / 5).into() },
        range_end: if chance.random_bool(0.5) { vec![0].into() } else { key(keys / 5 * 4).into() },
        limit,
        revision: if chance.random_bool(0.5) { 0 } else { chance.random_range(2..=now) },
        keys_only: chance.random_bool(0.3),
        count_only: chance.random_bool(0.03),
        min_mod_revision: if is_filtered { min_mod_revision } else { 0 },
        max_create_revision: if is_filtered { max_create_revision } else { 0 },
        sort_order: orders[chance.random_range(0..3)] as i32,
        sort_target: TARGETS[chance.random_range(0..5)] as i32,
        ..RangeRequest::default()
    }
}

fn streamed(
    read_txn: &SharedReadTxn,
    request: &RangeRequest,
    run_keys_max: usize,
    chunk_bytes: usize,
) -> ReadResult<RangeResponse> {
    let mut found = StreamedRange::open(Arc::clone(read_txn), request.clone(), run_keys_max)?;
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

fn collected(read_txn: &SharedReadTxn, request: &RangeRequest) -> ReadResult<RangeResponse> {
    let read: &dyn ReadTxn = &**read_txn;
    execute_range(read, request)
}

fn assert_collected_alike(
    read_txn: &SharedReadTxn,
    request: &RangeRequest,
    run_keys: usize,
    bytes: usize,
) {
    let expected = collected(read_txn, request).ok().unwrap();
    let found = streamed(read_txn, request, run_keys, bytes).ok().unwrap();
    if found != expected {
        let keys = |response: &RangeResponse| -> Vec<_> {
            response.kvs.iter().map(|record| record.key.clone()).collect()
        };
        assert_eq!(keys(&found), keys(&expected), "{request:?}, runs of {run_keys}");
        assert_eq!(found, expected, "{request:?}, runs of {run_keys}");
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
        let read_txn = store.begin_snapshot_read().unwrap();
        for _ in 0..150 {
            let request = random_request(&mut chance, read_txn.revision(), keys);
            let run_keys = [1, 2, 5, 30, RUN_KEYS_MAX][chance.random_range(0..5)];
            let chunk_bytes = [1, 100, 3000, usize::MAX][chance.random_range(0..4)];
            assert_collected_alike(&read_txn, &request, run_keys, chunk_bytes);
        }
    }
}

#[test]
fn many_keys_are_sorted_in_all_orders() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut chance = StdRng::seed_from_u64(seed);
    // The store has up to 3,000 keys: usually more than the 1,024 keys between two marks of a walk,
    // and more than the maximum number of names that are looked up at once.
    let store = random_store(&mut chance, 3000);
    let read_txn = store.begin_snapshot_read().unwrap();
    for (sort_target, sort_order) in TARGETS.into_iter().flat_map(|target| {
        [SortOrder::None, SortOrder::Ascend, SortOrder::Descend].map(|order| (target, order))
    }) {
        for (limit, revision, keys_only) in [(0, 0, false), (700, 0, true), (0, 9, true)] {
            let request = RangeRequest {
                key: vec![0].into(),
                range_end: vec![0].into(),
                limit,
                revision,
                keys_only,
                sort_order: sort_order as i32,
                sort_target: sort_target as i32,
                ..RangeRequest::default()
            };
            assert_collected_alike(&read_txn, &request, 100, 10_000);
        }
    }
}

#[test]
fn what_is_short_is_sorted_by_value_in_memory() {
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let store = open_on(&engine);
    write(&*store, |txn| {
        for number in 0..600 {
            txn.put(&key(number), &[b'v'; 1000], 0).unwrap();
        }
    });
    let read_txn = store.begin_snapshot_read().unwrap();
    for (end, is_here) in [(0, true), (100, true), (270, false), (600, false)] {
        let request = RangeRequest {
            key: vec![0].into(),
            range_end: key(end).into(),
            sort_target: SortTarget::Value as i32,
            sort_order: SortOrder::Descend as i32,
            ..RangeRequest::default()
        };
        let expected = collected(&read_txn, &request).ok().unwrap();
        assert_eq!(expected.kvs.is_empty(), end == 0);
        match StreamedRange::measure(Arc::clone(&read_txn), request).ok().unwrap() {
            RangeResult::Message(found) => assert_eq!((found, is_here), (expected, true)),
            RangeResult::Stream(found) => {
                assert!(!is_here && found.records_left() == expected.kvs.len());
            }
            RangeResult::Rows(rows) => panic!("{rows:?}"),
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
    let read_txn = store.begin_snapshot_read().unwrap();
    let all = RangeRequest { key: vec![0].into(), range_end: vec![0].into(), ..Default::default() };
    for revision in [4, 99] {
        for sort_target in TARGETS {
            let (sort_target, sort_order) = (sort_target as i32, SortOrder::Descend as i32);
            let sorted = RangeRequest { revision, sort_target, sort_order, ..all.clone() };
            let keys_only = RangeRequest { revision, keys_only: true, ..all.clone() };
            for request in [sorted, keys_only] {
                assert!(streamed(&read_txn, &request, 5, 100).is_err(), "{request:?}");
                assert!(collected(&read_txn, &request).is_err());
            }
        }
    }
}

/// The index names a record that the engine has lost. A request that needs this record must fail.
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
    let read_txn = store.begin_snapshot_read().unwrap();
    let all = RangeRequest { key: vec![0].into(), range_end: vec![0].into(), ..Default::default() };
    let descending = RangeRequest { sort_order: SortOrder::Descend as i32, ..all.clone() };
    let orders = TARGETS
        .map(|target| RangeRequest { sort_target: target as i32, ..descending.clone() })
        .into_iter();
    let filtered = RangeRequest { min_mod_revision: 3, ..all.clone() };
    for request in orders.chain([all.clone(), filtered]) {
        for run_keys_max in [4, 100] {
            assert!(streamed(&read_txn, &request, run_keys_max, 50).is_err(), "{request:?}");
        }
        assert!(collected(&read_txn, &request).is_err());
    }
    // These requests need only the index.
    let keys_only = RangeRequest { keys_only: true, ..all };
    let by_version = RangeRequest { sort_target: SortTarget::Version as i32, ..keys_only.clone() };
    let descending = RangeRequest { sort_order: SortOrder::Descend as i32, ..keys_only.clone() };
    for request in [keys_only, by_version, descending] {
        for run_keys_max in [4, 100] {
            let counted = CountedReads::of(&read_txn);
            let counted_read_txn: SharedReadTxn = Arc::clone(&counted) as SharedReadTxn;
            let found = streamed(&counted_read_txn, &request, run_keys_max, 50).ok().unwrap();
            assert_eq!((found.kvs.len(), counted.records.load(Relaxed)), (21, 0));
        }
    }
}

/// Counts the records that are read by their revision, and the visited keys.
struct CountedReads {
    read_txn: SharedReadTxn,
    records: AtomicUsize,
    versions: AtomicUsize,
}

impl CountedReads {
    fn of(read_txn: &SharedReadTxn) -> Arc<CountedReads> {
        let (records, versions) = Default::default();
        Arc::new(CountedReads { read_txn: Arc::clone(read_txn), records, versions })
    }
}

impl ReadTxn for CountedReads {
    fn revision(&self) -> i64 {
        self.read_txn.revision()
    }

    fn compact_revision(&self) -> i64 {
        self.read_txn.compact_revision()
    }

    fn visit_records(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
        visit: &mut RecordVisitor<'_>,
    ) -> clearlane_mvcc::Result<u64> {
        self.read_txn.visit_records(range, options, visit)
    }

    fn visit_named_records(
        &self,
        names: &[Revision],
        visit: &mut RecordVisitor<'_>,
    ) -> clearlane_mvcc::Result<()> {
        self.read_txn.visit_named_records(names, &mut |record| {
            self.records.fetch_add(1, Relaxed);
            visit(record)
        })
    }

    fn visit_versions(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
        visit: &mut VersionVisitor<'_>,
    ) -> clearlane_mvcc::Result<Option<u64>> {
        self.read_txn.visit_versions(range, options, &mut |key, version| {
            self.versions.fetch_add(1, Relaxed);
            visit(key, version)
        })
    }

    fn key_after(&self, range: KeyRange<'_>, keys: usize) -> Option<Vec<u8>> {
        self.read_txn.key_after(range, keys)
    }

    fn visit_changed_keys(
        &self,
        after: i64,
        visit: &mut dyn FnMut(&[u8], usize) -> ControlFlow<()>,
    ) -> clearlane_mvcc::Result<bool> {
        self.read_txn.visit_changed_keys(after, visit)
    }

    fn get(&self, bucket: Bucket, key: &[u8]) -> clearlane_mvcc::Result<Option<Bytes>> {
        self.read_txn.get(bucket, key)
    }

    fn scan(
        &self,
        bucket: Bucket,
        visit: &mut clearlane_backend::RangeVisitor<'_>,
    ) -> clearlane_mvcc::Result<()> {
        self.read_txn.scan(bucket, visit)
    }
}

fn by_value(sort_order: SortOrder) -> RangeRequest {
    RangeRequest {
        key: vec![0].into(),
        range_end: vec![0].into(),
        sort_target: SortTarget::Value as i32,
        sort_order: sort_order as i32,
        ..RangeRequest::default()
    }
}

fn read_txn_of(values: impl IntoIterator<Item = Vec<u8>>) -> SharedReadTxn {
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let store = open_on(&engine);
    write(&*store, |txn| {
        for (number, value) in (0..).zip(values) {
            txn.put(&key(number), &value, 0).unwrap();
        }
    });
    store.begin_snapshot_read().unwrap()
}

#[test]
fn values_that_are_prefixes_of_each_other_are_read_a_few_times() {
    const VALUES: usize = 400;
    let rising = |number: usize| vec![b'v'; 65 * (number + 1)];
    let falling = |number: usize| vec![b'v'; 65 * (VALUES - number)];
    let scattered = |number: usize| vec![b'v'; 65 * (1 + number * 7919 % VALUES)];
    // Each value differs from all following values at a different position. Every second value is
    // less than the following values, and the others are greater.
    let parting = |number: usize| {
        let mut value = vec![b'v'; 65 * (number + 1)];
        value.push([b'a', b'z'][number % 2]);
        value
    };
    let chains: [&dyn Fn(usize) -> Vec<u8>; 4] = [&rising, &falling, &scattered, &parting];
    for chain in chains {
        let read_txn = read_txn_of((0..VALUES).map(chain));
        for order in [SortOrder::Ascend, SortOrder::Descend] {
            for run_keys_max in [10, RUN_KEYS_MAX] {
                let request = by_value(order);
                let expected = collected(&read_txn, &request).ok().unwrap();
                let counted = CountedReads::of(&read_txn);
                let counted_read_txn: SharedReadTxn = Arc::clone(&counted) as SharedReadTxn;
                let found =
                    streamed(&counted_read_txn, &request, run_keys_max, 1 << 20).ok().unwrap();
                assert!(found == expected, "{order:?}, runs of {run_keys_max}");
                // The binary logarithm of 400 is about 9, so each value is read about nine times,
                // and the test allows four times as many reads. If each value were compared with
                // all later ones, there would be 80,000 reads.
                let records = counted.records.load(Relaxed);
                assert!(records < 4 * 9 * VALUES, "{records} reads, {order:?}, {run_keys_max}");
            }
        }
    }
}

#[test]
fn values_with_long_common_parts_are_sorted() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut chance = StdRng::seed_from_u64(seed);
    for _ in 0..6 {
        let keys = chance.random_range(2..300);
        let read_txn = read_txn_of((0..keys).map(|_| {
            let length = match chance.random_range(0..3) {
                0 => 65 * chance.random_range(0..9),
                1 => 67 * chance.random_range(0..9) + 7,
                _ => chance.random_range(0..600),
            };
            let mut value = vec![b'v'; length];
            for _ in 0..chance.random_range(0..3) {
                let place = chance.random_range(0..600_usize);
                if let Some(byte) = value.get_mut(place / 64 * 64) {
                    *byte = [0, b'u', b'w', 255][chance.random_range(0..4)];
                }
            }
            value
        }));
        for order in [SortOrder::Ascend, SortOrder::Descend] {
            for run_keys_max in [1, 2, 5, 30, RUN_KEYS_MAX] {
                let limit = [0, 1, 7, 100][chance.random_range(0..4)];
                let request = RangeRequest { limit, ..by_value(order) };
                assert_collected_alike(&read_txn, &request, run_keys_max, 10_000);
            }
        }
    }
}

/// The names of many short runs are looked up in one walk over the index. Each walk looks up about
/// a sixteenth of the names, so the test allows 20 visits of each key.
#[test]
fn the_keys_of_short_runs_are_named_in_a_few_walks() {
    const KEYS: usize = 4000;
    // Two keys for each value, and the values are longer than their digits.
    let read_txn = read_txn_of(
        (0..KEYS)
            .map(|number| format!("{:07} and a tail", number * 7919 % (KEYS / 2)).into_bytes()),
    );
    let counted = CountedReads::of(&read_txn);
    let counted_read_txn: SharedReadTxn = Arc::clone(&counted) as SharedReadTxn;
    StreamedRange::open(counted_read_txn, by_value(SortOrder::Ascend), 10).ok().unwrap();
    let versions = counted.versions.load(Relaxed);
    assert!(versions <= 20 * KEYS, "{versions} keys");
}

#[test]
fn a_filtered_chunk_names_no_more_than_it_may_hold() {
    const KEYS: usize = 1000;
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let store = open_on(&engine);
    for number in 0..KEYS as u32 {
        write(&*store, |txn| txn.put(&key(number), &[b'v'; 100], 0).unwrap());
    }
    let read_txn = store.begin_snapshot_read().unwrap();
    let max_mod_revision = read_txn.revision() - KEYS as i64 / 2;
    let all = RangeRequest { key: vec![0].into(), range_end: vec![0].into(), ..Default::default() };
    let request = RangeRequest { max_mod_revision, ..all };
    for (chunk_bytes, chunks) in [(1, KEYS / 2), (2000, 50), (usize::MAX, 1)] {
        let expected = collected(&read_txn, &request).ok().unwrap();
        let counted = CountedReads::of(&read_txn);
        let counted_read_txn: SharedReadTxn = Arc::clone(&counted) as SharedReadTxn;
        let found = streamed(&counted_read_txn, &request, RUN_KEYS_MAX, chunk_bytes).ok().unwrap();
        assert!(found == expected);
        // The visited keys: all keys, to measure the range; the half of the keys that is in the
        // response, and the long keys of the other half that precede it; and one more key for each
        // chunk.
        let versions = counted.versions.load(Relaxed);
        assert!(
            versions <= KEYS + KEYS / 2 + KEYS / 13 + chunks,
            "{versions} keys, chunks of {chunk_bytes}"
        );
        let records = counted.records.load(Relaxed);
        assert!(records <= KEYS / 2 + chunks, "{records} records, chunks of {chunk_bytes}");
    }
}
