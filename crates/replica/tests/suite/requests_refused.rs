//! Tests of rejections, each with a request that causes it. A request that is wrong in itself is
//! rejected before it is proposed. If the store rejects an entry, the store does not change, except
//! that the entry still advances the applied position.

use std::sync::Arc;

use clearlane_backend::{Config, Era};
use clearlane_engine::{Engine, MemoryEngine};
use clearlane_mvcc::{Store, StoreConfig};
use clearlane_proto::Message;
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::{
    AuthRoleAddRequest, AuthUserAddRequest, CompactionRequest, Compare, DeleteRangeRequest,
    InternalRaftRequest, LeaseGrantRequest, PutRequest, RangeRequest, RangeResponse, RequestHeader,
    RequestOp, ResponseHeader, TxnRequest,
};
use clearlane_proto::nested::decode_raft_request;
use clearlane_replica::apply::{
    self, AppliedEntry, AppliedResponse, Limits, RequestRejection, TxnReadMode, txn,
};
use clearlane_replica::{AppliedPosition, Error};

struct TestStore {
    engine: Arc<dyn Engine>,
    store: Box<dyn Store<AppliedPosition>>,
    index: u64,
}

impl TestStore {
    /// Returns a store at revision 4, compacted at 3, in which `a` was put three times.
    fn new(era: Era) -> TestStore {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let progress = AppliedPosition::default();
        let ground = StoreConfig::new(
            Arc::clone(&engine),
            Config::default(),
            AppliedPosition::pre_commit(),
            progress.clone(),
        );
        let (store, _) = clearlane_mvcc::open(era, ground).unwrap();
        let mut world = TestStore { engine, store, index: 0 };
        for value in ["1", "2", "3"] {
            world.apply(&entry(put("a", value))).unwrap().result.unwrap();
        }
        let mut job = world.apply(&compaction(3)).unwrap().compaction.unwrap();
        while !world.store.compact_step(&mut job, 1).unwrap() {}
        world
    }

    fn apply(&mut self, request: &InternalRaftRequest) -> clearlane_replica::Result<AppliedEntry> {
        self.index += 1;
        let members = Arc::default();
        let progress = AppliedPosition { index: self.index, term: 1, conf_state: members };
        apply::apply(&*self.store, &|id| id == 5, request, progress, TxnReadMode::Inline, None)
    }

    fn all(&self) -> RangeResponse {
        let all = RangeRequest { range_end: "\0".into(), ..range("\0", 0) };
        apply::range(&*self.store.begin_read(), &all).unwrap().unwrap()
    }

    /// Asserts that a request passes the check and is rejected by the store, and that only the
    /// applied position changes.
    fn assert_refused(&mut self, request: &InternalRaftRequest, refused: RequestRejection) {
        assert_eq!(apply::check(request, &Limits::default()), Ok(()), "{request:?}");
        let before = self.all();
        let applied = self.apply(request).unwrap();
        assert_eq!(applied.result, Err(refused), "{request:?}");
        assert!(applied.txn_result.changes.is_empty() && applied.compaction.is_none());
        assert_eq!(self.all(), before, "{request:?}");
        self.assert_durable();
    }

    fn assert_durable(&self) {
        self.store.commit().unwrap();
        let durable = AppliedPosition::read(&*self.engine.snapshot().unwrap()).unwrap();
        assert_eq!((durable.index, durable.term), (self.index, 1));
    }
}

fn put(key: &'static str, value: &'static str) -> PutRequest {
    PutRequest { key: key.into(), value: value.into(), ..PutRequest::default() }
}

fn range(key: &'static str, revision: i64) -> RangeRequest {
    RangeRequest { key: key.into(), revision, ..RangeRequest::default() }
}

fn delete(key: &'static str, range_end: &'static str) -> DeleteRangeRequest {
    let (key, range_end) = (key.into(), range_end.into());
    DeleteRangeRequest { key, range_end, prev_kv: false }
}

fn compaction(revision: i64) -> InternalRaftRequest {
    let compaction = Some(CompactionRequest { revision, physical: false });
    InternalRaftRequest { compaction, ..InternalRaftRequest::default() }
}

/// A request that may be an operation of a transaction. It is tested as an operation and as an
/// entry.
trait Op: Sized {
    fn op(self) -> Request;
}

impl Op for PutRequest {
    fn op(self) -> Request {
        Request::RequestPut(self)
    }
}

impl Op for RangeRequest {
    fn op(self) -> Request {
        Request::RequestRange(self)
    }
}

impl Op for DeleteRangeRequest {
    fn op(self) -> Request {
        Request::RequestDeleteRange(self)
    }
}

impl Op for TxnRequest {
    fn op(self) -> Request {
        Request::RequestTxn(self)
    }
}

fn entry(op: impl Op) -> InternalRaftRequest {
    let empty = InternalRaftRequest::default();
    match op.op() {
        Request::RequestPut(put) => InternalRaftRequest { put: Some(put), ..empty },
        Request::RequestRange(range) => InternalRaftRequest { range: Some(range), ..empty },
        Request::RequestTxn(txn) => InternalRaftRequest { txn: Some(txn), ..empty },
        Request::RequestDeleteRange(delete) => {
            InternalRaftRequest { delete_range: Some(delete), ..empty }
        }
    }
}

fn then(ops: impl IntoIterator<Item = Request>) -> TxnRequest {
    let success = ops.into_iter().map(|request| RequestOp { request: Some(request) }).collect();
    TxnRequest { success, ..TxnRequest::default() }
}

/// Requests that the store rejects, with the reason. Each is tested as an entry, after a put in a
/// transaction, and after a put in a nested transaction.
fn refused_by_the_store() -> Vec<(Request, RequestRejection)> {
    let keep = |key, ignore_value| PutRequest {
        ignore_value,
        ignore_lease: !ignore_value,
        ..put(key, "")
    };
    vec![
        (range("a", 9).op(), RequestRejection::FutureRevision),
        (range("a", 2).op(), RequestRejection::Compacted),
        (keep("missing", true).op(), RequestRejection::KeyNotFound),
        (keep("missing", false).op(), RequestRejection::KeyNotFound),
        (PutRequest { lease: 6, ..put("a", "v") }.op(), RequestRejection::LeaseNotFound),
        (PutRequest { lease: -1, ..put("a", "v") }.op(), RequestRejection::LeaseNotFound),
    ]
}

#[test]
fn what_the_store_refuses_changes_nothing_but_the_progress() {
    struct Any(Request);
    impl Op for Any {
        fn op(self) -> Request {
            self.0
        }
    }
    for era in Era::DISTINCT_STORES {
        let mut world = TestStore::new(era);
        for (request, refused) in refused_by_the_store() {
            world.assert_refused(&entry(Any(request.clone())), refused);
            let behind_a_put = then([put("b", "1").op(), request.clone()]);
            world.assert_refused(&entry(behind_a_put.clone()), refused);
            world.assert_refused(&entry(then([put("d", "1").op(), behind_a_put.op()])), refused);
        }
        world.assert_refused(&compaction(3), RequestRejection::Compacted);
        world.assert_refused(&compaction(-1), RequestRejection::Compacted);
        world.assert_refused(&compaction(1000), RequestRejection::FutureRevision);
    }
}

#[test]
fn a_list_that_does_not_run_is_not_asked() {
    let mut world = TestStore::new(Era::Clearlane);
    for (request, _) in refused_by_the_store() {
        let failure = then([request]).success;
        let request = entry(TxnRequest { failure, ..TxnRequest::default() });
        world.apply(&request).unwrap().result.unwrap();
    }
}

#[test]
fn a_put_that_keeps_what_the_transaction_has_deleted_is_refused() {
    let keep = PutRequest { ignore_value: true, ..put("a", "") };
    for era in Era::DISTINCT_STORES {
        let mut world = TestStore::new(era);
        let gone = then([delete("0", "\0").op(), delete("b", "\0").op(), keep.clone().op()]);
        world.assert_refused(&entry(gone.clone()), RequestRejection::KeyNotFound);
        world.assert_refused(
            &entry(then([put("z", "").op(), gone.op()])),
            RequestRejection::KeyNotFound,
        );
        // The key has a record to keep if the delete does not cover the key, or follows the put.
        let kept = then([delete("b", "\0").op(), keep.clone().op()]);
        world.apply(&entry(kept)).unwrap().result.unwrap();
        let kept = then([keep.clone().op(), delete("a", "\0").op()]);
        world.apply(&entry(kept)).unwrap().result.unwrap();
        assert!(world.all().kvs.is_empty());
    }
}

/// In a transaction a negative revision is rejected as compacted. In a Range request a negative
/// revision means the current revision.
#[test]
fn a_negative_revision_is_compacted_in_a_transaction() {
    let mut world = TestStore::new(Era::Clearlane);
    let negative = range("a", -1);
    world.assert_refused(&entry(then([negative.clone().op()])), RequestRejection::Compacted);
    let read = world.store.begin_read();
    let by_a_reader = txn::read_only_txn(&*read, &then([negative.clone().op()])).unwrap();
    assert_eq!(by_a_reader, Err(RequestRejection::Compacted));
    assert_eq!(apply::range(&*read, &negative).unwrap().unwrap().kvs.len(), 1);
}

/// The lease is checked before the key, and the first of two wrong operations determines the error.
#[test]
fn what_is_wrong_twice_is_told_as_in_etcd() {
    let both = PutRequest { lease: 6, ignore_value: true, ..put("missing", "") };
    let key = PutRequest { ignore_lease: true, ..put("missing", "") };
    let lease = PutRequest { lease: 6, ..put("a", "") };
    let (future, compacted) = (range("a", 9), range("a", 2));
    for era in Era::DISTINCT_STORES {
        let mut world = TestStore::new(era);
        world.assert_refused(&entry(both.clone()), RequestRejection::LeaseNotFound);
        for (ops, refused) in [
            (vec![both.clone().op()], RequestRejection::LeaseNotFound),
            (vec![delete("0", "\0").op(), both.clone().op()], RequestRejection::LeaseNotFound),
            (vec![key.clone().op(), lease.clone().op()], RequestRejection::KeyNotFound),
            (vec![lease.clone().op(), key.clone().op()], RequestRejection::LeaseNotFound),
            (vec![future.clone().op(), lease.clone().op()], RequestRejection::FutureRevision),
            (vec![lease.clone().op(), future.clone().op()], RequestRejection::LeaseNotFound),
            (vec![compacted.clone().op(), key.clone().op()], RequestRejection::Compacted),
            (vec![key.clone().op(), compacted.clone().op()], RequestRejection::KeyNotFound),
            (
                vec![then([lease.clone().op()]).op(), future.clone().op()],
                RequestRejection::LeaseNotFound,
            ),
            (
                vec![future.clone().op(), then([lease.clone().op()]).op()],
                RequestRejection::FutureRevision,
            ),
        ] {
            // The operations are tested in the list for compares that hold. Then they are tested in
            // the other list, with a compare that does not hold.
            world.assert_refused(&entry(then(ops.clone())), refused);
            let does_not_hold = vec![Compare { key: "a".into(), ..Compare::default() }];
            let failure = then(ops.clone()).success;
            let txn = TxnRequest { compare: does_not_hold, failure, ..TxnRequest::default() };
            world.assert_refused(&entry(txn.clone()), refused);
            world.assert_refused(&entry(then([txn.op()])), refused);
        }
    }
}

#[test]
fn what_is_wrong_in_itself_is_not_proposed() {
    let keep_value = PutRequest { ignore_value: true, ..put("a", "1") };
    let keep_lease = PutRequest { ignore_lease: true, lease: 5, ..put("a", "1") };
    let order = RangeRequest { sort_order: 3, ..range("a", 0) };
    let target = RangeRequest { sort_target: -1, ..range("a", 0) };
    let empty_op = TxnRequest { failure: vec![RequestOp::default()], ..TxnRequest::default() };
    let compare = TxnRequest { compare: vec![Compare::default()], ..TxnRequest::default() };
    for (request, refused) in [
        (put("", "1").op(), RequestRejection::EmptyKey),
        (range("", 0).op(), RequestRejection::EmptyKey),
        (delete("", "b").op(), RequestRejection::EmptyKey),
        (compare.op(), RequestRejection::EmptyKey),
        (keep_value.op(), RequestRejection::ValueProvided),
        (keep_lease.op(), RequestRejection::LeaseProvided),
        (order.op(), RequestRejection::InvalidSortOption),
        (target.op(), RequestRejection::InvalidSortOption),
        (empty_op.op(), RequestRejection::KeyNotFound),
        (then([put("a", "").op(), put("a", "").op()]).op(), RequestRejection::DuplicateKey),
        (then([put("a", "").op(), delete("a", "b").op()]).op(), RequestRejection::DuplicateKey),
    ] {
        let check = |request| apply::check(&entry(request), &Limits::default());
        let nested = then([then([request]).op()]);
        assert_eq!(check(nested), Err(refused));
    }
    let alone = apply::check(&entry(put("", "")), &Limits::default());
    assert_eq!(alone, Err(RequestRejection::EmptyKey));
}

#[test]
fn operations_have_a_budget() {
    let limits = Limits { txn_ops_max: 3, ..Limits::default() };
    let many = |count: usize| (0..count).map(|_| delete("a", "").op());
    let nested = |outer: usize, inner| then(many(outer - 1).chain([then(many(inner)).op()]));
    for (request, fits) in [
        (then(many(3)), true),
        (then(many(4)), false),
        (TxnRequest { failure: then(many(4)).success, ..TxnRequest::default() }, false),
        (TxnRequest { compare: vec![Compare::default(); 4], ..TxnRequest::default() }, false),
        (nested(2, 1), true),
        (nested(2, 2), false),
        (nested(1, 2), true),
    ] {
        let expected = if fits { Ok(()) } else { Err(RequestRejection::TooManyOps) };
        assert_eq!(apply::check(&entry(request.clone()), &limits), expected, "{request:?}");
    }
}

/// Transactions may be nested up to a limit. An accepted transaction can be decoded from the log,
/// but a transaction over the limit cannot.
#[test]
fn transactions_lie_so_deep_and_no_deeper() {
    let deep = |levels: usize| {
        entry((1..levels).fold(then([put("a", "").op()]), |inner, _| then([inner.op()])))
    };
    assert_eq!(apply::check(&deep(128), &Limits::default()), Ok(()));
    let entry = deep(128).encode_to_vec();
    assert_eq!(decode_raft_request(entry.into()).unwrap(), deep(128));
    assert_eq!(apply::check(&deep(129), &Limits::default()), Err(RequestRejection::TooManyOps));
    let many = Limits { txn_ops_max: 10_000, ..Limits::default() };
    assert_eq!(apply::check(&deep(129), &many), Ok(()));
    assert_eq!(apply::check(&deep(130), &many), Err(RequestRejection::TooManyOps));
    assert!(decode_raft_request(deep(130).encode_to_vec().into()).is_err());
}

#[test]
fn an_entry_has_a_longest_length() {
    let mut request = entry(PutRequest { value: vec![b'x'; 100].into(), ..put("a", "") });
    request.header = Some(RequestHeader { id: 7, ..RequestHeader::default() });
    let request_bytes_max = request.encoded_len();
    let limits = Limits { request_bytes_max, ..Limits::default() };
    assert_eq!(apply::check(&request, &limits), Ok(()));
    let limits = Limits { request_bytes_max: request_bytes_max - 1, ..limits };
    assert_eq!(apply::check(&request, &limits), Err(RequestRejection::RequestTooLarge));
    assert_eq!(Limits::default().request_bytes_max, 1_572_864, "etcd's 1.5 MiB");
}

#[test]
fn a_name_that_is_no_key_of_the_store_is_refused() {
    let user = |bytes| InternalRaftRequest {
        auth_user_add: Some(AuthUserAddRequest { name: "u".repeat(bytes), ..Default::default() }),
        ..InternalRaftRequest::default()
    };
    let role = |bytes| InternalRaftRequest {
        auth_role_add: Some(AuthRoleAddRequest { name: "r".repeat(bytes) }),
        ..InternalRaftRequest::default()
    };
    let check = |request| apply::check(&request, &Limits::default());
    assert_eq!((check(user(32_768)), check(role(32_768))), (Ok(()), Ok(())));
    let expected = Err(RequestRejection::NameTooLong(32_769));
    assert_eq!((check(user(32_769)), check(role(32_769))), (expected, expected));
}

#[test]
fn a_lease_that_gets_its_id_later_counts_with_it() {
    let id = u64::MAX;
    let header = Some(RequestHeader { id, ..RequestHeader::default() });
    let grant = |id| InternalRaftRequest {
        header: header.clone(),
        lease_grant: Some(LeaseGrantRequest { ttl: 60, id }),
        ..InternalRaftRequest::default()
    };
    let request_bytes_max = grant(i64::MAX).encoded_len();
    let limits = Limits { request_bytes_max, ..Limits::default() };
    for id in [0, i64::MAX] {
        assert_eq!(apply::check(&grant(id), &limits), Ok(()), "{id}");
        let limits = Limits { request_bytes_max: request_bytes_max - 1, ..limits };
        assert_eq!(
            apply::check(&grant(id), &limits),
            Err(RequestRejection::RequestTooLarge),
            "{id}"
        );
    }
}

#[test]
fn the_mark_of_a_log_read_changes_nothing() {
    for era in Era::DISTINCT_STORES {
        let mut world = TestStore::new(era);
        let before = world.all();
        let applied = world.apply(&entry(range("", 0))).unwrap();
        let header = Some(ResponseHeader { revision: 4, ..ResponseHeader::default() });
        let empty = RangeResponse { header, ..RangeResponse::default() };
        assert_eq!(applied.result, Ok(AppliedResponse::Range(empty)));
        assert!(applied.txn_result.changes.is_empty());
        assert_eq!(world.all(), before);
        world.assert_durable();
    }
}

#[test]
fn an_entry_that_is_not_known_here_stops_the_member() {
    let grant = InternalRaftRequest {
        lease_grant: Some(LeaseGrantRequest { id: 1, ttl: 1 }),
        ..InternalRaftRequest::default()
    };
    for request in [InternalRaftRequest::default(), grant] {
        let mut world = TestStore::new(Era::Clearlane);
        let stopped = world.apply(&request).unwrap_err();
        assert!(matches!(stopped, Error::UnknownRequest { index: 5 }), "{stopped}");
    }
}

#[test]
fn an_entry_that_was_not_checked_does_not_panic() {
    let gone = [delete("a", "b").op(), PutRequest { ignore_value: true, ..put("a", "") }.op()];
    let mut world = TestStore::new(Era::Clearlane);
    let stopped = world.apply(&entry(then(gone))).unwrap_err();
    assert!(stopped.to_string().contains("not checked before it was proposed"), "{stopped}");
    let mut world = TestStore::new(Era::Clearlane);
    let applied = world.apply(&entry(put("", "1"))).unwrap();
    assert_eq!(applied.result, Err(RequestRejection::EmptyKey));
    world.assert_durable();
}
