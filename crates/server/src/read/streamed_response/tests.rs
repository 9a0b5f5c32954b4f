//! Checks that a range in a response with many ranges has the same result as the range by itself,
//! even if the store has lost a record.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use clearlane_backend::{Config, Era};
use clearlane_engine::{Bucket, Engine, KeyRange, MemoryEngine};
use clearlane_mvcc::{Store, StoreConfig};
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::response_op::Response;
use clearlane_proto::etcdserverpb::{
    DeleteRangeRequest, InternalRaftRequest, PutRequest, RequestOp, ResponseOp, TxnRequest,
    TxnResponse,
};
use clearlane_replica::applied_position::AppliedPosition;
use clearlane_replica::apply::{self, ApplyError, ReadBudget, TxnReadMode, txn};
use std::ops::ControlFlow;

use super::*;
use crate::read::range::RangeResult;
use crate::write::txn::run_on_view;

const KEYS: usize = 300;

struct TestStore {
    engine: Arc<MemoryEngine>,
    store: Box<dyn Store<AppliedPosition>>,
    index: u64,
}

impl TestStore {
    /// Returns a store in which each key was put twice, in two rounds. The revision between the
    /// rounds is `KEYS + 1`.
    fn new() -> TestStore {
        let engine = Arc::new(MemoryEngine::new());
        let (before, applied) = (AppliedPosition::pre_commit(), AppliedPosition::default());
        let config = StoreConfig::new(engine.clone(), Config::default(), before, applied);
        let (store, _) = clearlane_mvcc::open(Era::Clearlane, config).unwrap();
        let mut store = TestStore { engine, store, index: 0 };
        for number in 0..2 * KEYS {
            let value = format!("{number}").repeat(1 + number % 50);
            store.put(&format!("k{:03}", number % KEYS), &value);
        }
        store.store.commit().unwrap();
        store
    }

    fn put(&mut self, key: &str, value: &str) {
        let (key, value) = (key.to_owned().into(), value.to_owned().into());
        let put = Some(PutRequest { key, value, ..PutRequest::default() });
        self.apply(&InternalRaftRequest { put, ..InternalRaftRequest::default() }, u64::MAX);
    }

    /// Applies a request. All its reads are deferred.
    fn apply(&mut self, request: &InternalRaftRequest, inline_bytes: u64) -> DeferredReader {
        self.index += 1;
        let position = AppliedPosition { index: self.index, term: 1, ..Default::default() };
        let mode = TxnReadMode::Deferred(ReadBudget { records: 0, bytes: 0 });
        let applied =
            apply::apply(&*self.store, &|_| false, request, position, mode, None).unwrap();
        let (response, reads) = (applied.result.unwrap(), applied.deferred_reads);
        DeferredReader::new(PartialResponse::new(response, reads), inline_bytes)
    }

    fn read_txn(&self) -> SharedReadTxn {
        self.store.begin_snapshot_read().unwrap()
    }

    /// Removes the newest record of a key. The index still names it.
    fn lose_record(&mut self, key: &str) {
        let mut lost = None;
        let snapshot = self.engine.snapshot().unwrap();
        let find = &mut |name: &[u8], record: &[u8]| {
            if record.windows(key.len()).any(|bytes| bytes == key.as_bytes()) {
                lost = Some(name.to_vec());
            }
            ControlFlow::Continue(())
        };
        snapshot.scan(Bucket::Key, KeyRange::ALL, find).unwrap();
        let mut write = self.engine.begin_write().unwrap();
        write.delete(Bucket::Key, &lost.unwrap()).unwrap();
        write.commit().unwrap();
        // Commit again, so that the next snapshot does not have the record.
        self.put("x", "another commit");
        self.store.commit().unwrap();
    }
}

fn all() -> RangeRequest {
    RangeRequest { key: "k".into(), range_end: "l".into(), ..RangeRequest::default() }
}

fn ranges() -> Vec<RangeRequest> {
    vec![
        all(),
        RangeRequest { limit: 7, ..all() },
        RangeRequest { limit: KEYS as i64, ..all() },
        RangeRequest { revision: KEYS as i64 + 1, ..all() },
        RangeRequest { revision: KEYS as i64 + 1, limit: 200, ..all() },
        RangeRequest { count_only: true, ..all() },
        RangeRequest { keys_only: true, ..all() },
        RangeRequest { sort_target: 4, sort_order: 2, limit: 100, ..all() },
        RangeRequest { key: "x".into(), range_end: "y".into(), ..all() },
        RangeRequest { range_end: "".into(), key: "k007".into(), ..all() },
        RangeRequest { range_end: "".into(), key: "none".into(), ..all() },
    ]
}

fn txn_of(ops: Vec<Request>) -> TxnRequest {
    let success = ops.into_iter().map(|request| RequestOp { request: Some(request) }).collect();
    TxnRequest { success, ..TxnRequest::default() }
}

#[test]
fn a_range_is_the_same_in_the_message_and_streamed() {
    let read_txn = TestStore::new().read_txn();
    for inline_bytes in [0, 1000, 20_000, u64::MAX] {
        let (mut reader, mut responses) = (ResponseReader::new(inline_bytes), Vec::new());
        for (operation, request) in ranges().iter().enumerate() {
            let found = reader.read_range(operation, &read_txn, request).unwrap();
            let response = Some(Response::ResponseRange(found));
            responses.push(ResponseOp { response });
        }
        let response = reader.finish(TxnResponse { responses, ..TxnResponse::default() });
        let streamed: u64 =
            response.streams.iter().map(|stream| stream.records.encoded_len()).sum();
        let mut in_message = 0;
        let mut message = response.message.clone();
        message.visit_operations(&mut |response| {
            in_message += response.records().map_or(0, |records| encoded_len(records));
        });
        assert!(in_message <= inline_bytes);
        assert_eq!(streamed == 0, inline_bytes == u64::MAX);

        let message = response.into_message().unwrap();
        for (request, op) in ranges().iter().zip(message.responses) {
            let expected = apply::range(&*read_txn, request).unwrap().unwrap();
            assert_eq!(op.response, Some(Response::ResponseRange(expected)), "{request:?}");
        }
    }
}

/// Returns requests for one key: each kind of request that has a separate path through the code.
fn single_keys() -> Vec<RangeRequest> {
    let get = RangeRequest { key: "k007".into(), ..RangeRequest::default() };
    let past = KEYS as i64 + 1;
    let mut requests = vec![
        RangeRequest { revision: past, ..get.clone() },
        RangeRequest { count_only: true, ..get.clone() },
        RangeRequest { key: "none".into(), ..get.clone() },
        RangeRequest { min_mod_revision: past + 1, ..get.clone() },
        RangeRequest { max_mod_revision: past, ..get.clone() },
        RangeRequest { min_mod_revision: past + 1, revision: past, ..get.clone() },
        RangeRequest { max_mod_revision: past, revision: past, ..get.clone() },
        RangeRequest { min_create_revision: past, ..get.clone() },
        RangeRequest { max_create_revision: past, ..get.clone() },
    ];
    requests.extend((-1..3).map(|limit| RangeRequest { limit, ..get.clone() }));
    for (sort_target, sort_order) in (0..5).flat_map(|target| [0, 1, 2].map(|it| (target, it))) {
        requests.push(RangeRequest { sort_target, sort_order, ..get.clone() });
    }
    let limited = requests.clone().into_iter().map(|request| RangeRequest { limit: 1, ..request });
    requests.extend(limited);
    let keys = requests.clone().into_iter();
    requests.extend(keys.map(|request| RangeRequest { keys_only: true, ..request }));
    requests
}

#[test]
fn a_single_key_that_does_not_fit_is_read_again_when_it_is_sent() {
    let store = TestStore::new();
    let mut txn = store.store.begin_write().unwrap();
    txn.put(b"k007", &[b'v'; 10_000], 7).unwrap();
    drop(txn.end(AppliedPosition::default()).unwrap());
    let read_txn = store.read_txn();
    let (mut streamed, holders) = (0, Arc::strong_count(&read_txn));
    for request in single_keys() {
        let expected = apply::range(&*read_txn, &request).unwrap().unwrap();
        let encoded = encoded_len(&expected.kvs);
        for inline_bytes in [0, encoded.saturating_sub(1), encoded] {
            let mut reader = ResponseReader::new(inline_bytes);
            let found = reader.read_range(0, &read_txn, &request).unwrap();
            let response = Some(Response::ResponseRange(found));
            let responses = vec![ResponseOp { response }];
            let response = reader.finish(TxnResponse { responses, ..TxnResponse::default() });
            // A stream that is still to be read holds the read transaction. Records in memory do
            // not.
            let is_unread = encoded > inline_bytes;
            assert_eq!(response.streams.len(), usize::from(is_unread), "{request:?}");
            assert_eq!(
                Arc::strong_count(&read_txn),
                holders + usize::from(is_unread),
                "{request:?}"
            );
            streamed += response.streams.len();
            let op = response.into_message().unwrap().responses.remove(0);
            assert_eq!(op.response, Some(Response::ResponseRange(expected.clone())), "{request:?}");
        }
    }
    assert!(streamed > 100, "{streamed} of {}", single_keys().len());
}

#[test]
fn a_txn_of_ranges_answers_the_same_over_a_view() {
    let read_txn = TestStore::new().read_txn();
    let request = txn_of(ranges().into_iter().map(Request::RequestRange).collect());
    let response = run_on_view(&read_txn, &request).unwrap().into_message().unwrap();
    assert_eq!(response, txn::run_on_snapshot(&*read_txn, &request).unwrap());
}

/// If a lost record is read, a range, a transaction and a delete fail with the same error. If a
/// lost record is not read, there is no error. After the error, later requests succeed.
#[test]
fn a_record_that_is_lost_is_an_error_of_the_request_that_reads_it() {
    let mut store = TestStore::new();
    store.lose_record("k123");
    let range_error = match StreamedRange::measure(store.read_txn(), all()) {
        Err(ApplyError::Fatal(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let put = PutRequest { key: "a".into(), value: "b".into(), ..PutRequest::default() };
    let ops = vec![Request::RequestPut(put), Request::RequestRange(all())];
    let delete = DeleteRangeRequest { key: "k".into(), range_end: "l".into(), prev_kv: true };
    let requests = [
        InternalRaftRequest { txn: Some(txn_of(ops)), ..InternalRaftRequest::default() },
        InternalRaftRequest { delete_range: Some(delete), ..InternalRaftRequest::default() },
    ];
    for inline_bytes in [0, u64::MAX] {
        for request in &requests {
            let mut store = TestStore::new();
            store.lose_record("k123");
            let mut reader = store.apply(request, inline_bytes);
            let read = reader.make_next();
            assert_eq!(read.is_ok(), inline_bytes == 0, "a stream is only measured");
            let read = read.and_then(|()| Ok(reader.finish()?.into_message()?));
            let Err(ApplyError::Fatal(error)) = read else { panic!("{read:?}") };
            assert_eq!(error.to_string(), range_error);
            store.put("k123", "again");
            let response = store.apply(&requests[0], inline_bytes).finish().unwrap();
            assert!(response.into_message().is_ok());
        }
    }
    let inline = RangeRequest { range_end: "k122".into(), ..all() };
    let found = StreamedRange::measure(store.read_txn(), inline).unwrap();
    assert!(matches!(found, RangeResult::Rows(_)));
}
