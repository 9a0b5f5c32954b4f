//! Tests when the apply half uses the result of compares that were evaluated before the proposal.
//!
//! The results in this test are wrong on purpose, so that the outcome shows whether a result was
//! used.

use std::sync::Arc;

use clearlane_backend::{Config, Era};
use clearlane_engine::MemoryEngine;
use clearlane_mvcc::StoreConfig;
use clearlane_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::{Compare, InternalRaftRequest, RequestOp, TxnRequest};
use clearlane_replica::RequestOutcome;
use clearlane_replica::applied_position::AppliedPosition;
use clearlane_replica::apply::EvaluatedCompares;

use crate::halves::replica_cluster::{ReplicaCluster, put};
use crate::halves::settings;

/// Returns a transaction that compares the values of all keys from `k` to `l` with "other". In the
/// tests the compare does not hold. The transaction puts the outcome, "held" or "failed", to the
/// key `decided`.
fn request() -> InternalRaftRequest {
    let compare = Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Value.into(),
        key: "k".into(),
        range_end: "l".into(),
        target_union: Some(TargetUnion::Value("other".into())),
    };
    let write = |value| {
        let request = put("decided", value).put.map(Request::RequestPut);
        vec![RequestOp { request }]
    };
    let (success, failure) = (write("held"), write("failed"));
    let txn = Some(TxnRequest { compare: vec![compare], success, failure });
    InternalRaftRequest { txn, ..InternalRaftRequest::default() }
}

/// Returns a wrong result, according to which the compares hold at the current revision. It was
/// evaluated in another store, in which key `k` has the value "other".
fn wrong_result(cluster: &mut ReplicaCluster, id: u64) -> Box<EvaluatedCompares> {
    let revision = cluster.host(id).replica().store().begin_read().revision();
    let (before, applied) = (AppliedPosition::pre_commit(), AppliedPosition::default());
    let config =
        StoreConfig::new(Arc::new(MemoryEngine::new()), Config::default(), before, applied);
    let (store, _) = clearlane_mvcc::open(Era::Clearlane, config).unwrap();
    while store.begin_read().revision() < revision {
        let mut txn = store.begin_write().unwrap();
        txn.put(b"k", b"other", 0).unwrap();
        drop(txn.end(AppliedPosition::default()).unwrap());
    }
    let (read, txn) = (store.begin_read(), request().txn.unwrap_or_default());
    let result = EvaluatedCompares::evaluate(&*read, &txn.compare).unwrap();
    assert!(result.hold() && result.revision() == revision);
    Box::new(result)
}

fn decided(cluster: &mut ReplicaCluster, id: u64) -> String {
    cluster.host(id).get("decided").0.unwrap_or_default()
}

#[test]
fn a_result_counts_for_its_request_and_the_keys_that_have_not_changed() {
    let mut cluster = ReplicaCluster::new(1, settings());
    cluster.leader();
    cluster.put(1, "k1", "v");
    let known = Some(wrong_result(&mut cluster, 1));
    cluster.call(1, |replica| replica.propose_evaluated(request(), known));
    assert_eq!(decided(&mut cluster, 1), "held");
    // The result of a cancelled request is not used for the next request.
    let known = Some(wrong_result(&mut cluster, 1));
    cluster.call(1, |replica| {
        let id = replica.propose_evaluated(request(), known);
        replica.cancel(id);
        replica.propose(request());
    });
    assert_eq!(decided(&mut cluster, 1), "failed");
    // Key `k2` changes before the transaction is applied, so the compare is evaluated for it.
    let known = Some(wrong_result(&mut cluster, 1));
    cluster.call(1, |replica| {
        replica.propose(put("k2", "v"));
        replica.propose(put("k2", "w"));
        replica.propose_evaluated(request(), known)
    });
    assert_eq!(decided(&mut cluster, 1), "failed");
}

#[test]
fn a_result_does_not_outlive_the_store_that_it_comes_from() {
    let mut cluster = ReplicaCluster::new(3, settings());
    let leader = cluster.leader();
    cluster.put(leader, "k1", "v");
    cluster.tick(2);
    let before = wrong_result(&mut cluster, 3);
    cluster.crash(3);
    let leader = cluster.leader();
    for number in 0..100 {
        cluster.put(leader, &format!("x{number}"), "v");
    }
    cluster.commit(leader);
    cluster.start(3);
    cluster.tick(20);
    let message = cluster.raft_snapshots.pop().expect("a copy is wanted");
    assert!(cluster.send_raft_snapshot(message, usize::MAX));
    cluster.tick(2);
    assert_eq!(cluster.host(3).stores_replaced, 1);
    let id = cluster.call(3, |replica| replica.propose_evaluated(request(), Some(before)));
    cluster.deliver_all();
    cluster.tick(5);
    assert!(matches!(cluster.host(3).results.remove(&id), Some(RequestOutcome::Applied(Ok(_)))));
    for member in 1..=3 {
        assert_eq!(decided(&mut cluster, member), "failed", "at {member}");
    }
}
