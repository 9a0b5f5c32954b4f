//! The ranges of a transaction, read behind it in the read pool: `docs/write-path.md`.

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
/// More than a transaction reads by itself.
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

/// Returns the revision behind it.
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

/// Two puts, with a range before, between and behind them, and a delete of what is left.
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

/// A transaction that is applied, and waits for the pool.
async fn waiting_txn(client: &mut Client, headers: &[(&str, &str)], old: i64) -> Task<Reply> {
    let (answer, mut sends) = client.open(TXN, headers);
    sends.send_data(frame(0, &txn(old).encode_to_vec()), true).unwrap();
    let waits = tokio::spawn(crate::client::reply(answer));
    while value(client, "k001").await != "new" {
        tokio::task::yield_now().await;
    }
    waits
}

/// How many records each range has found, how many of them are new, and the revision in its header.
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
        // What comes after it, up to a compaction, is not in its answer.
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
        // Another one goes away without a word.
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
