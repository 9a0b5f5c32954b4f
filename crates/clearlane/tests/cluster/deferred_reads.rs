//! Tests of transactions that are sent through each member of a cluster, and whose ranges are read
//! after the transaction has been applied.

use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::response_op::Response;
use clearlane_proto::etcdserverpb::{RangeRequest, TxnRequest, TxnResponse};

use crate::support::{op, put_all};
use crate::test_cluster::{TestCluster, block_on, put};

/// Number of keys. A transaction reads at most 128 records while it is applied, so the read pool
/// reads these keys afterwards.
const KEYS: usize = 300;

/// Returns a transaction with a put, and with a range of all keys, sorted by value in descending
/// order.
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
    let cluster = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        let leader = cluster.leader().await;
        cluster.put(&leader, "k000", "v").await;
        let puts = (0..KEYS).map(|number| put(format!("k{number:03}"), "v"));
        put_all(&mut cluster.kv(&leader).await, puts).await;
        for round in 0..5 {
            let mut calls = Vec::new();
            for name in cluster.names() {
                let (mut kv, value) = (cluster.kv(&name).await, format!("w{round}{name}"));
                calls.push(tokio::spawn(async move {
                    let response = kv.txn(put_and_range(&value)).await.unwrap().into_inner();
                    is_whole(response, &value);
                }));
            }
            for call in calls {
                call.await.unwrap();
            }
        }
        cluster.agree().await;
    });
}
