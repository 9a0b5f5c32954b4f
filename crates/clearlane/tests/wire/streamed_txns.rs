//! Tests of responses to transactions and deletes that are read while they are sent. See
//! `docs/write-path.md`.

use std::thread;
use std::time::{Duration, Instant};

use clearlane_backend::Era;
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::response_op::Response;
use clearlane_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
    RangeRequest, RangeResponse, RequestOp, ResponseHeader, TxnRequest, TxnResponse,
};
use clearlane_replica::apply::Limits;
use h2::RecvStream;
use prost::Message;

use crate::client::{Client, Reply, frame, reply, rest, with_server, with_server_of};
use crate::default_era::BusyReadPool;
use crate::support::{TestServer, block_on, get, member_config, op, put};

const RANGE: &str = "/etcdserverpb.KV/Range";
const DELETE: &str = "/etcdserverpb.KV/DeleteRange";
const TXN: &str = "/etcdserverpb.KV/Txn";
const COMPACT: &str = "/etcdserverpb.KV/Compact";
/// Number of keys. All records together take 3 MB.
const KEYS: usize = 3000;
const VALUE_BYTES: usize = 1000;

/// Decodes a response, and checks that it equals the encoding of a complete message.
fn decoded<M: Message + Default>(reply: &Reply) -> M {
    assert_eq!(reply.code, "0", "{}", reply.message);
    let message = M::decode(&reply.body[5..]).unwrap();
    assert!(frame(0, &message.encode_to_vec()) == reply.body);
    message
}

async fn call<M: Message + Default>(client: &mut Client, path: &str, message: &impl Message) -> M {
    decoded(&client.call(path, &[], message).await)
}

fn ops(ops: impl IntoIterator<Item = Request>) -> TxnRequest {
    let success = ops.into_iter().map(op).collect::<Vec<RequestOp>>();
    TxnRequest { success, ..TxnRequest::default() }
}

fn all() -> RangeRequest {
    RangeRequest { range_end: "l".into(), ..get("k") }
}

fn delete_all() -> DeleteRangeRequest {
    DeleteRangeRequest { key: "k".into(), range_end: "l".into(), prev_kv: true }
}

/// Puts all keys, each with a different value. Returns the revision afterwards.
async fn fill(client: &mut Client, letter: char) -> i64 {
    let mut revision = 0;
    for first in (0..KEYS).step_by(100) {
        let puts = (first..first + 100).map(|number| {
            let value = format!("{number}{}", letter.to_string().repeat(VALUE_BYTES));
            Request::RequestPut(put(format!("k{number:05}"), value))
        });
        let done: TxnResponse = call(client, TXN, &ops(puts)).await;
        revision = done.header.unwrap().revision;
    }
    revision
}

/// Returns ranges of all kinds. The ranges of all keys are longer than the data that the server
/// sends in one piece.
fn ranges(old: i64) -> Vec<RangeRequest> {
    vec![
        all(),
        get("k00007"),
        RangeRequest { limit: 1, ..all() },
        RangeRequest { limit: 2000, ..all() },
        RangeRequest { revision: old, ..all() },
        RangeRequest { sort_target: 4, sort_order: 2, ..all() },
        RangeRequest { keys_only: true, ..all() },
        RangeRequest { count_only: true, ..all() },
        get("none"),
        RangeRequest { key: "x".into(), range_end: "y".into(), ..all() },
        RangeRequest { min_mod_revision: old + 3, ..all() },
    ]
}

/// Sends each range as a separate request. Returns the responses with the headers that they would
/// have in a transaction.
async fn found(client: &mut Client, requests: &[RangeRequest], revision: i64) -> Vec<Response> {
    let mut responses = Vec::new();
    for request in requests {
        let response: RangeResponse = call(client, RANGE, request).await;
        let header = Some(ResponseHeader { revision, ..ResponseHeader::default() });
        responses.push(Response::ResponseRange(RangeResponse { header, ..response }));
    }
    responses
}

fn responses(response: &TxnResponse) -> Vec<&Response> {
    response.responses.iter().map(|op| op.response.as_ref().unwrap()).collect()
}

fn are_equal<'r>(responses: &[&'r Response], expected: impl IntoIterator<Item = &'r Response>) {
    let expected: Vec<_> = expected.into_iter().collect();
    assert_eq!(responses.len(), expected.len());
    for (number, (response, expected)) in responses.iter().zip(expected).enumerate() {
        assert!(*response == expected, "operation {number}");
    }
}

#[test]
fn a_txn_finds_what_its_ranges_find() {
    for era in [Era::Clearlane, Era::V3_2] {
        with_server_of(era, async |server| {
            let mut client = server.client().await;
            let old = fill(&mut client, 'a').await;
            let at = fill(&mut client, 'b').await;
            let ranges = ranges(old);
            let expected = found(&mut client, &ranges, at).await;
            let reads = || ranges.iter().cloned().map(Request::RequestRange);
            let done: TxnResponse = call(&mut client, TXN, &ops(reads())).await;
            are_equal(&responses(&done), &expected);

            // This transaction has the ranges, a put of another key, the ranges in a nested
            // transaction, the ranges again, and a delete.
            let nested = Request::RequestTxn(ops(reads()));
            let put = [Request::RequestPut(put("elsewhere", "v"))];
            let delete = [Request::RequestDeleteRange(delete_all())];
            let request = ops(reads().chain(put).chain([nested]).chain(reads()).chain(delete));
            let behind = found(&mut client, &ranges, at + 1).await;
            let done: TxnResponse = call(&mut client, TXN, &request).await;
            let responses_of_all = responses(&done);
            let (first, rest) = responses_of_all.split_at(ranges.len());
            are_equal(first, &expected);
            let Response::ResponseTxn(nested) = rest[1] else { panic!("no transaction") };
            are_equal(&responses(nested), &behind);
            are_equal(&rest[2..2 + ranges.len()], &behind);
            let (Response::ResponseDeleteRange(deleted), Response::ResponseRange(all)) =
                (rest[2 + ranges.len()], &behind[0])
            else {
                panic!("no delete")
            };
            assert!(deleted.prev_kvs == all.kvs && deleted.deleted == KEYS as i64);
            let nothing: RangeResponse = call(&mut client, RANGE, &ranges[0]).await;
            assert_eq!(nothing.count, 0);
        });
    }
}

#[test]
fn a_delete_returns_what_it_has_removed() {
    with_server(async |server| {
        let mut client = server.client().await;
        fill(&mut client, 'a').await;
        let before: RangeResponse = call(&mut client, RANGE, &all()).await;
        let deleted: DeleteRangeResponse = call(&mut client, DELETE, &delete_all()).await;
        assert_eq!(deleted.deleted, KEYS as i64);
        assert!(deleted.prev_kvs == before.kvs);
    });
}

/// Returns a transaction whose response is longer than the client's window, so it cannot be sent as
/// a whole.
fn long_read() -> TxnRequest {
    ops((0..10).map(|_| Request::RequestRange(all())))
}

fn long_write() -> TxnRequest {
    let put = Request::RequestPut(put("elsewhere", "v"));
    let ranges = (0..8).map(|_| Request::RequestRange(all()));
    ops([put].into_iter().chain(ranges).chain([Request::RequestDeleteRange(delete_all())]))
}

/// Starts a call. Returns the head of its response, whose body is not read yet.
async fn begun(
    client: &mut Client,
    path: &str,
    headers: &[(&str, &str)],
    message: &impl Message,
) -> (http::response::Parts, RecvStream) {
    let (answer, mut sends) = client.open(path, headers);
    sends.send_data(frame(0, &message.encode_to_vec()), true).unwrap();
    answer.await.unwrap().into_parts()
}

#[test]
fn a_slow_reader_gets_the_state_of_its_transaction() {
    with_server(async |server| {
        let mut writer = server.client().await;
        fill(&mut writer, 'a').await;
        let before: RangeResponse = call(&mut writer, RANGE, &all()).await;
        let (mut read, mut write) = (server.client().await, server.client().await);
        let (read_head, read_body) = begun(&mut read, TXN, &[], &long_read()).await;
        let (write_head, write_body) = begun(&mut write, TXN, &[], &long_write()).await;
        // Other requests do not wait for these responses, and do not change them.
        let revision = fill(&mut writer, 'b').await;
        let compact = CompactionRequest { revision, physical: true };
        let _: CompactionResponse = call(&mut writer, COMPACT, &compact).await;

        for (head, body) in [(read_head, read_body), (write_head, write_body)] {
            let done: TxnResponse = decoded(&rest(head, body).await);
            let mut long = 0;
            for response in responses(&done) {
                let records = match response {
                    Response::ResponseRange(range) => &range.kvs,
                    Response::ResponseDeleteRange(delete) => &delete.prev_kvs,
                    _ => continue,
                };
                assert!(*records == before.kvs);
                long += 1;
            }
            assert!(long >= 9);
        }
    });
}

#[test]
fn an_answer_that_is_not_taken_ends_with_its_client_or_its_deadline() {
    with_server(async |server| {
        let mut writer = server.client().await;
        fill(&mut writer, 'a').await;
        for request in [long_read(), long_write()] {
            let mut client = server.client().await;
            let (_, mut body) = begun(&mut client, TXN, &[], &request).await;
            assert!(!body.data().await.unwrap().unwrap().is_empty());
            drop((body, client));
            fill(&mut writer, 'a').await;

            let mut client = server.client().await;
            let (begin, headers) = (Instant::now(), [("grpc-timeout", "2S")]);
            let (_, body) = begun(&mut client, TXN, &headers, &request).await;
            while begin.elapsed() < Duration::from_secs(2) {
                fill(&mut writer, 'a').await;
            }
            is_late(body).await;
            fill(&mut writer, 'a').await;
        }
    });
}

/// Checks that a response ends at its deadline. If a part of its message was sent, the stream is
/// reset. On a slow machine the deadline may pass before the first part is sent. The stream then
/// ends with a status.
async fn is_late(mut body: RecvStream) {
    let mut received = 0;
    while let Some(piece) = body.data().await {
        match piece {
            Ok(piece) => {
                received += piece.len();
                body.flow_control().release_capacity(piece.len()).unwrap();
            }
            Err(error) => return assert_eq!(error.reason(), Some(h2::Reason::CANCEL)),
        }
    }
    let trailers = body.trailers().await.unwrap().unwrap();
    assert_eq!((received, trailers["grpc-status"].to_str().unwrap()), (0, "4"));
}

/// Returns the error that ends a response after its start.
async fn broken(mut body: RecvStream) -> h2::Error {
    loop {
        match body.data().await.expect("it does not end by itself") {
            Ok(piece) => body.flow_control().release_capacity(piece.len()).unwrap(),
            Err(error) => return error,
        }
    }
}

#[test]
fn a_member_that_stops_breaks_off_a_txn_like_a_range() {
    let dir = tempfile::tempdir().unwrap();
    let config = member_config(dir.path(), Era::Clearlane);
    let server = TestServer::with(&config, 1, Limits::default());
    let stopping = block_on(async {
        let mut client = server.client().await;
        fill(&mut client, 'a').await;
        // The response to the range of these keys is about as long as the responses to the
        // transactions.
        let large = |number| PutRequest {
            value: vec![b'v'; 1 << 20].into(),
            ..put(format!("l{number:02}"), "")
        };
        for number in 0..30 {
            assert_eq!(client.call("/etcdserverpb.KV/Put", &[], &large(number)).await.code, "0");
        }
        let range =
            RangeRequest { key: "l".into(), range_end: "m".into(), ..RangeRequest::default() };
        let mut bodies = Vec::new();
        for (path, request) in [
            (RANGE, range.encode_to_vec()),
            (TXN, long_read().encode_to_vec()),
            (TXN, long_write().encode_to_vec()),
        ] {
            let mut client = server.client().await;
            let (answer, mut sends) = client.open(path, &[]);
            sends.send_data(frame(0, &request), true).unwrap();
            bodies.push((answer.await.unwrap().into_body(), client));
        }
        fill(&mut client, 'a').await;

        let busy = BusyReadPool::of(&server);
        let mut waiting = Vec::new();
        for (path, request) in [
            (RANGE, all().encode_to_vec()),
            (TXN, long_read().encode_to_vec()),
            (TXN, long_write().encode_to_vec()),
        ] {
            let (answer, mut sends) = client.open(path, &[]);
            sends.send_data(frame(0, &request), true).unwrap();
            waiting.push(tokio::spawn(reply(answer)));
        }
        // The last transaction is applied and waits for the read pool.
        while call::<RangeResponse>(&mut client, RANGE, &get("k00007")).await.count > 0 {
            tokio::task::yield_now().await;
        }
        let node = server.node.clone();
        let stopping = thread::spawn(move || node.stop());
        for waiting in waiting {
            let stopped = waiting.await.unwrap();
            let expected = ("14", "etcdserver: server stopped");
            assert_eq!((&stopped.code[..], &stopped.message[..]), expected);
        }
        busy.release().await;
        let mut reasons = Vec::new();
        for (body, _client) in bodies {
            reasons.push(broken(body).await.reason());
        }
        assert!(reasons[0].is_some() && reasons.iter().all(|reason| *reason == reasons[0]));
        stopping
    });
    stopping.join().unwrap();
    server.stop();
}
