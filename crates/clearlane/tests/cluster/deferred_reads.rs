//! Transactions with ranges that are read behind them, at each member of a cluster.

use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::response_op::Response;
use clearlane_proto::etcdserverpb::{RangeRequest, TxnRequest, TxnResponse};

use crate::support::{op, put_all};
use crate::test_cluster::{TestCluster, block_on, put};

/// More than a transaction reads by itself.
const KEYS: usize = 300;

/// A put, and a range of all keys by their values, the last first.
fn put_and_range(value: &str) -> TxnRequest {
    let (key, range_end) = (vec![0].into(), vec![0].into());
    let (sort_target, sort_order) = (4, 2);
    let all = RangeRequest { key, range_end, sort_target, sort_order, ..RangeRequest::default() };
    let success = vec![op(Request::RequestPut(put("k000", value))), op(Request::RequestRange(all))];
    TxnRequest { success, ..TxnRequest::default() }
}

fn is_whole(response: TxnResponse, value: &str) {
    let revision = response.header.unwrap().revision;
    let Some(Response::ResponseRange(range)) = &response.responses[1].response else {
        panic!("{response:?}")
    };
    assert_eq!((range.kvs.len(), range.count), (KEYS, KEYS as i64));
    assert_eq!(range.header.as_ref().unwrap().revision, revision);
    assert_eq!((&range.kvs[0].key[..], &range.kvs[0].value[..]), (&b"k000"[..], value.as_bytes()));
    assert_eq!(range.kvs[0].mod_revision, revision);
}

#[test]
fn each_member_reads_for_its_own_clients() {
    let lab = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        let leader = lab.leader().await;
        lab.put(&leader, "k000", "v").await;
        let puts = (0..KEYS).map(|number| put(format!("k{number:03}"), "v"));
        put_all(&mut lab.kv(&leader).await, puts).await;
        for round in 0..5 {
            let mut calls = Vec::new();
            for name in lab.names() {
                let (mut kv, value) = (lab.kv(&name).await, format!("w{round}{name}"));
                calls.push(tokio::spawn(async move {
                    let response = kv.txn(put_and_range(&value)).await.unwrap().into_inner();
                    is_whole(response, &value);
                }));
            }
            for call in calls {
                call.await.unwrap();
            }
        }
        lab.agree().await;
    });
}
