//! Tests of transactions whose ranges are read in the read pool after the transaction has been
//! applied. See `docs/write-path.md`.

use std::time::{Duration, Instant};

use bytes::Bytes;
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::response_op::Response;
use clearlane_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutResponse,
    RangeRequest, RangeResponse, TxnRequest, TxnResponse,
};
use prost::Message;
use tokio::task::JoinHandle as Task;

use crate::client::{Client, Reply, frame, with_server};
use crate::default_era::{BusyReadPool, sorted};
use crate::support::{get, op, put};

pub(crate) const PUT: &str = "/etcdserverpb.KV/Put";
const RANGE: &str = "/etcdserverpb.KV/Range";
const DELETE: &str = "/etcdserverpb.KV/DeleteRange";
pub(crate) const TXN: &str = "/etcdserverpb.KV/Txn";
const COMPACT: &str = "/etcdserverpb.KV/Compact";
/// Number of keys. A transaction reads at most 128 records while it is applied, so the read pool
/// reads these keys afterwards.
const KEYS: usize = 300;

pub(crate) async fn call<M: Message + Default>(
    client: &mut Client,
    path: &str,
    message: &impl Message,
) -> M {
    decoded(client.call(path, &[], message).await)
}

pub(crate) fn decoded<M: Message + Default>(reply: Reply) -> M {
    assert_eq!(reply.code, "0", "{}", reply.message);
    M::decode(reply.body.slice(5..)).unwrap()
}

fn key(number: usize) -> String {
    format!("k{number:03}")
}

/// Puts all keys. Returns the revision afterwards.
async fn fill(client: &mut Client) -> i64 {
    let puts = (0..KEYS).map(|number| op(Request::RequestPut(put(key(number), "old"))));
    let success = puts.collect::<Vec<_>>();
    let mut revision = 0;
    for success in success.chunks(100) {
        let txn = TxnRequest { success: success.to_vec(), ..TxnRequest::default() };
        revision = call::<TxnResponse>(client, TXN, &txn).await.header.unwrap().revision;
    }
    revision
}

async fn value(client: &mut Client, key: &str) -> Bytes {
    let mut found: RangeResponse = call(client, RANGE, &get(key)).await;
    found.kvs.pop().map(|record| record.value).unwrap_or_default()
}

fn all() -> DeleteRangeRequest {
    DeleteRangeRequest { key: "k".into(), range_end: "l".into(), prev_kv: true }
}

/// Returns a transaction with two puts, with ranges before, between and after them, and with a
/// delete of all keys from `k002` on.
fn txn(old: i64) -> TxnRequest {
    let now = op(Request::RequestRange(sorted()));
    let then = op(Request::RequestRange(RangeRequest { revision: old, ..sorted() }));
    let puts = [0, 1].map(|number| op(Request::RequestPut(put(key(number), "new"))));
    let nested = TxnRequest { success: vec![now.clone(), then], ..TxnRequest::default() };
    let [first, second] = puts;
    let success = vec![
        now.clone(),
        first,
        op(Request::RequestTxn(nested)),
        second,
        now,
        op(Request::RequestDeleteRange(DeleteRangeRequest { key: "k002".into(), ..all() })),
    ];
    TxnRequest { success, ..TxnRequest::default() }
}

/// Starts a transaction. Returns once it is applied and waits for the read pool.
async fn waiting_txn(client: &mut Client, headers: &[(&str, &str)], old: i64) -> Task<Reply> {
    let (answer, mut sends) = client.open(TXN, headers);
    sends.send_data(frame(0, &txn(old).encode_to_vec()), true).unwrap();
    let waits = tokio::spawn(crate::client::reply(answer));
    while value(client, "k001").await != "new" {
        tokio::task::yield_now().await;
    }
    waits
}

/// Returns, for each range, the number of its records, the number of new records among them, and
/// the revision in its header.
fn ranges(response: &TxnResponse) -> Vec<(usize, usize, i64)> {
    let mut found = Vec::new();
    for response in response.responses.iter().map(|op| op.response.as_ref().unwrap()) {
        match response {
            Response::ResponseRange(range) => {
                assert_eq!(range.count, range.kvs.len() as i64);
                let new = range.kvs.iter().filter(|record| record.value == "new").count();
                found.push((range.kvs.len(), new, range.header.as_ref().unwrap().revision));
            }
            Response::ResponseTxn(nested) => found.extend(ranges(nested)),
            Response::ResponsePut(_) | Response::ResponseDeleteRange(_) => {}
        }
    }
    found
}

#[test]
fn puts_go_on_while_the_ranges_of_a_transaction_wait_for_the_pool() {
    with_server(async |server| {
        let mut client = server.client().await;
        let old = fill(&mut client).await;
        let busy = BusyReadPool::of(server);
        let waits = waiting_txn(&mut client, &[], old).await;
        // The response contains no later change, and a later compaction does not affect it.
        for number in 0..10 {
            let _: PutResponse = call(&mut client, PUT, &put(key(number), "newer")).await;
        }
        let deleted = DeleteRangeRequest { prev_kv: false, ..all() };
        let deleted: DeleteRangeResponse = call(&mut client, DELETE, &deleted).await;
        assert_eq!(deleted.deleted, 10);
        let revision = deleted.header.unwrap().revision;
        let compact = CompactionRequest { revision, physical: true };
        let _: CompactionResponse = call(&mut client, COMPACT, &compact).await;
        assert!(!waits.is_finished(), "it is the pool's turn");
        busy.release().await;

        let response: TxnResponse = decoded(waits.await.unwrap());
        let at = old + 1;
        assert_eq!(response.header.as_ref().unwrap().revision, at);
        let expected = [(KEYS, 0, old), (KEYS, 1, at), (KEYS, 0, at), (KEYS, 2, at)];
        assert_eq!(ranges(&response), expected);
        let Some(Response::ResponseDeleteRange(deleted)) = &response.responses[5].response else {
            panic!("{response:?}")
        };
        let rest: Vec<_> = deleted.prev_kvs.iter().map(|record| record.key.clone()).collect();
        assert_eq!(rest, (2..KEYS).map(key).collect::<Vec<_>>());
        assert_eq!(deleted.deleted, (KEYS - 2) as i64);
    });
}

#[test]
fn the_records_of_a_delete_are_read_behind_it() {
    with_server(async |server| {
        let mut client = server.client().await;
        fill(&mut client).await;
        let busy = BusyReadPool::of(server);
        let (answer, mut sends) = client.open(DELETE, &[]);
        sends.send_data(frame(0, &all().encode_to_vec()), true).unwrap();
        let waits = tokio::spawn(crate::client::reply(answer));
        while !value(&mut client, "k299").await.is_empty() {
            tokio::task::yield_now().await;
        }
        let _: PutResponse = call(&mut client, PUT, &put("k000", "newer")).await;
        assert!(!waits.is_finished());
        busy.release().await;
        let deleted: DeleteRangeResponse = decoded(waits.await.unwrap());
        assert_eq!((deleted.deleted, deleted.prev_kvs.len()), (KEYS as i64, KEYS));
        assert!(deleted.prev_kvs.iter().all(|record| record.value == "old"));
    });
}

#[test]
fn a_client_that_gives_up_has_written_and_leaves_no_read() {
    with_server(async |server| {
        let mut client = server.client().await;
        let old = fill(&mut client).await;
        let busy = BusyReadPool::of(server);
        let begun = Instant::now();
        let late = waiting_txn(&mut client, &[("grpc-timeout", "300m")], old).await;
        let late = late.await.unwrap();
        let took = begun.elapsed();
        assert_eq!((&late.code[..], &late.message[..]), ("4", "context deadline exceeded"));
        assert!(took >= Duration::from_millis(300) && took < Duration::from_secs(5), "{took:?}");
        // Another client closes its stream without waiting.
        let old = fill(&mut client).await;
        let gone = waiting_txn(&mut client, &[], old).await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        assert_eq!(value(&mut client, "k000").await, "new");
        busy.release().await;
        let old = fill(&mut client).await;
        let response: TxnResponse = call(&mut client, TXN, &txn(old)).await;
        assert_eq!(ranges(&response).len(), 4);
    });
}
