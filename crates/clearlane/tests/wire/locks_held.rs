//! Tests that requests that wait for the locks of an old era do not block the network thread.
//!
//! The test keeps a read open and starts a commit, which waits for that read. Every later read of
//! the store then waits, as it does during an expensive read and a compaction. The server has only
//! one network thread, which must still respond to requests that do not read the store.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use clearlane_backend::Era;
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    PutRequest, RangeRequest, RequestOp, StatusRequest, TxnRequest, WatchCreateRequest,
    WatchRequest, WatchResponse,
};
use h2::RecvStream;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client::{Client, frame, with_server_of};
use crate::support::TestServer;

/// Number of rounds of calls that must not wait.
const ROUNDS: usize = 100;
/// Number of watchers on one stream.
const WATCHES: usize = 200;

/// Returns calls that read the store. In an old era, none of them completes while the locks are
/// held.
fn reading_calls() -> Vec<(&'static str, Vec<u8>)> {
    let get = RangeRequest { key: "k".into(), serializable: true, ..RangeRequest::default() };
    let all = RangeRequest { range_end: vec![0].into(), ..get.clone() };
    let read = RequestOp { request: Some(Request::RequestRange(get.clone())) };
    let txn = TxnRequest { success: vec![read], ..TxnRequest::default() };
    vec![
        ("/etcdserverpb.KV/Range", get.encode_to_vec()),
        ("/etcdserverpb.KV/Range", all.encode_to_vec()),
        ("/etcdserverpb.KV/Txn", txn.encode_to_vec()),
        ("/etcdserverpb.Maintenance/Status", StatusRequest::default().encode_to_vec()),
    ]
}

/// Returns a request for a watcher that starts at revision 1 and receives previous records.
fn watch() -> Vec<u8> {
    let create = WatchCreateRequest {
        key: "k".into(),
        start_revision: 1,
        prev_kv: true,
        ..WatchCreateRequest::default()
    };
    WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }.encode_to_vec()
}

async fn version(server: &TestServer) -> String {
    let mut connection = TcpStream::connect(server.server.address()).await.unwrap();
    let head = b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    connection.write_all(head).await.unwrap();
    let mut page = String::new();
    connection.read_to_string(&mut page).await.unwrap();
    page
}

/// Makes calls that do not read the store. Returns the 99th percentile of their times.
async fn ask_others(server: &TestServer, client: &mut Client) -> Duration {
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        let health = client.raw("/grpc.health.v1.Health/Check", &[], frame(0, &[])).await;
        assert_eq!(health.code, "0", "{}", health.message);
        took.push(begin.elapsed());
        let begin = Instant::now();
        assert!(version(server).await.contains("\"etcdserver\":\"3.7"));
        took.push(begin.elapsed());
    }
    took.sort_unstable();
    took[took.len() * 99 / 100]
}

/// Waits until all watchers are created, and each of them has two events.
async fn watched_until_all_came(mut body: RecvStream) -> (usize, usize) {
    let (mut bytes, mut created, mut events) = (Vec::new(), 0, 0);
    while created < WATCHES || events < 2 * WATCHES {
        let data = body.data().await.unwrap().unwrap();
        let _ = body.flow_control().release_capacity(data.len());
        bytes.extend_from_slice(&data);
        while let Some((head, rest)) = bytes.split_first_chunk::<5>() {
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            let Some(message) = rest.get(..length) else { break };
            let response = WatchResponse::decode(message).unwrap();
            created += usize::from(response.created);
            events += response.events.len();
            bytes.drain(..5 + length);
        }
    }
    (created, events)
}

/// Makes reads until one of them does not complete within 300 ms. This shows that the commit now
/// waits for the open read.
async fn wait_until_reads_wait(client: &Client) {
    let (path, message) = reading_calls().swap_remove(0);
    loop {
        let (mut own, body) = (client.clone(), frame(0, &message));
        let call = tokio::spawn(async move { own.raw(path, &[], body).await });
        if timeout(Duration::from_millis(300), call).await.is_err() {
            return;
        }
    }
}

#[expect(clippy::print_stdout, reason = "a figure, for those who ask with --nocapture")]
async fn requests_beside_locks(server: &TestServer, era: Era) {
    let mut client = server.client().await;
    let put = PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() };
    for _ in 0..2 {
        assert_eq!(client.call("/etcdserverpb.KV/Put", &[], &put).await.code, "0");
    }
    let store = server.node.store();
    let (hold, held) = mpsc::channel::<()>();
    let (opened, is_open) = mpsc::channel();
    let reader = thread::spawn({
        let store = store.clone();
        move || {
            let read = store.begin_read();
            opened.send(()).unwrap();
            let _ = held.recv();
            drop(read);
        }
    });
    is_open.recv().unwrap();
    let snapshot = thread::spawn(move || store.commit().unwrap());
    wait_until_reads_wait(&client).await;
    let mut pending = Vec::new();
    for (path, message) in reading_calls() {
        let mut own = client.clone();
        let call = async move { own.raw(path, &[], frame(0, &message)).await };
        pending.push((path, tokio::spawn(call)));
    }
    let (watched, mut sends) = client.open("/etcdserverpb.Watch/Watch", &[]);
    // The server queues at most 64 calls of a stream while they wait for the locks. The stream's
    // other requests stay in its read-ahead queue until the locks are released.
    for _ in 0..WATCHES {
        sends.send_data(frame(0, &watch()), false).unwrap();
    }
    let p99 = ask_others(server, &mut client).await;
    println!("era {era}: health and version take {p99:?} at p99");
    for (path, call) in &pending {
        assert!(!call.is_finished(), "{path} waits for the locks of era {era}");
    }
    drop(hold);
    for (path, call) in pending {
        assert_eq!(call.await.unwrap().code, "0", "{path}");
    }
    let (created, events) = watched_until_all_came(watched.await.unwrap().into_body()).await;
    assert_eq!((created, events), (WATCHES, 2 * WATCHES), "era {era}");
    reader.join().unwrap();
    snapshot.join().unwrap();
}

#[test]
fn what_waits_for_the_locks_of_an_old_era_blocks_no_other_request() {
    for era in [Era::V3_0, Era::V3_1, Era::V3_2, Era::V3_4, Era::V3_5] {
        with_server_of(era, async |server| requests_beside_locks(server, era).await);
    }
}
