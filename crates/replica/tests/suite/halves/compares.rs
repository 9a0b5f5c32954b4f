//! Compares that were evaluated before the proposal: where the result counts.
//!
//! The results here are wrong on purpose, so that it shows whether one was used.

use std::sync::Arc;

use clearlane_backend::{Config, Era};
use clearlane_engine::MemoryEngine;
use clearlane_mvcc::StoreConfig;
use clearlane_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::{Compare, InternalRaftRequest, RequestOp, TxnRequest};
use clearlane_server::applied_position::AppliedPosition;
use clearlane_server::apply::EvaluatedCompares;
use clearlane_server::replica::RequestOutcome;

use crate::replica_cluster::{ReplicaCluster, put};
use crate::settings;

/// Writes whether all values from `k` on are "other". None is.
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

/// That the compares of the request held in the state of now: the result of another store.
fn wrong_result(lab: &mut ReplicaCluster, id: u64) -> Box<EvaluatedCompares> {
    let revision = lab.host(id).replica().store().begin_read().revision();
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

fn decided(lab: &mut ReplicaCluster, id: u64) -> String {
    lab.host(id).get("decided").0.unwrap_or_default()
}

#[test]
fn a_result_counts_for_its_request_and_the_keys_that_have_not_changed() {
    let mut lab = ReplicaCluster::new(1, settings());
    lab.leader();
    lab.put(1, "k1", "v");
    let known = Some(wrong_result(&mut lab, 1));
    lab.call(1, |replica| replica.propose_evaluated(request(), known));
    assert_eq!(decided(&mut lab, 1), "held");
    // The result of a request that is given up is not there for the next.
    let known = Some(wrong_result(&mut lab, 1));
    lab.call(1, |replica| {
        let id = replica.propose_evaluated(request(), known);
        replica.cancel(id);
        replica.propose(request());
    });
    assert_eq!(decided(&mut lab, 1), "failed");
    let known = Some(wrong_result(&mut lab, 1));
    lab.call(1, |replica| {
        replica.propose(put("k2", "v"));
        replica.propose(put("k2", "w"));
        replica.propose_evaluated(request(), known)
    });
    assert_eq!(decided(&mut lab, 1), "failed");
}

#[test]
fn a_result_does_not_outlive_the_store_that_it_comes_from() {
    let mut lab = ReplicaCluster::new(3, settings());
    let leader = lab.leader();
    lab.put(leader, "k1", "v");
    lab.tick(2);
    let before = wrong_result(&mut lab, 3);
    lab.crash(3);
    let leader = lab.leader();
    for number in 0..100 {
        lab.put(leader, &format!("x{number}"), "v");
    }
    lab.commit(leader);
    lab.start(3);
    lab.tick(20);
    let message = lab.raft_snapshots.pop().expect("a copy is wanted");
    assert!(lab.send_raft_snapshot(message, usize::MAX));
    lab.tick(2);
    assert_eq!(lab.host(3).stores_replaced, 1);
    let id = lab.call(3, |replica| replica.propose_evaluated(request(), Some(before)));
    lab.deliver_all();
    lab.tick(5);
    assert!(matches!(lab.host(3).results.remove(&id), Some(RequestOutcome::Applied(Ok(_)))));
    for member in 1..=3 {
        assert_eq!(decided(&mut lab, member), "failed", "at {member}");
    }
}
