//! Tests of hostile and broken clients. Other clients must be served as before, and memory use must
//! stay within limits.
//!
//! `CLEARLANE_IDLE=10000` tests 10,000 idle connections. The machine must allow that number of open
//! files.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::watch_client::WatchClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{PutRequest, WatchCreateRequest, WatchRequest};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::transport::Endpoint;

use crate::frames::{PREFACE, frame, headers_of_put};
use crate::program::{Program, TIMEOUT, kv_with_timeout, members, short_pause};
use crate::{SeededRng, env_number, support};

/// Maximum growth of the member's memory in bytes.
const BYTES_MAX: u64 = 128 << 20;
/// Maximum memory in bytes for each connection. `SILENT_BYTES_MAX` applies if the client has sent
/// nothing, and `SPOKEN_BYTES_MAX` if it has sent only the preface of HTTP/2.
const SILENT_BYTES_MAX: u64 = 8 << 10;
const SPOKEN_BYTES_MAX: u64 = 48 << 10;
/// Maximum time that another client may wait during the attack. It allows for a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(15);

async fn started() -> (TempDir, Program) {
    let dir = tempfile::tempdir().unwrap();
    let mut member = members(dir.path(), 1).remove(0);
    member.start();
    member.ready().await;
    (dir, member)
}

fn raw(member: &Program) -> TcpStream {
    TcpStream::connect(("127.0.0.1", member.client)).unwrap()
}

fn put(key: &str, bytes: usize) -> PutRequest {
    support::put(key, vec![7; bytes])
}

fn asked(member: &Program, path: &str, body: &str) -> TcpStream {
    let mut connection = raw(member);
    let head = format!("POST {path} HTTP/1.1\r\nhost: here\r\ncontent-length: {}", body.len());
    write!(connection, "{head}\r\n\r\n{body}").unwrap();
    connection
}

/// Checks that another client can write and read as usual. `before` is the memory use of the member
/// at an earlier time. If `before` is set, also checks that the memory has grown by less than
/// [`BYTES_MAX`].
async fn others_are_served(member: &mut Program, before: Option<u64>) {
    let mut client = kv_with_timeout(member.client).await;
    let mut longest = Duration::ZERO;
    for _ in 0..50 {
        let begin = Instant::now();
        client.put(put("other", 10)).await.unwrap();
        let found = client.range(support::get("other")).await.unwrap().into_inner();
        assert_eq!(found.count, 1);
        longest = longest.max(begin.elapsed());
        assert!(longest < WAIT_MAX, "it took {longest:?}");
    }
    println!("others waited for {longest:?} at the most");
    assert!(member.is_running());
    takes_at_most(member, before, BYTES_MAX).await;
}

async fn takes_at_most(member: &Program, before: Option<u64>, bytes: u64) {
    let Some(before) = before else { return };
    let begin = Instant::now();
    // A write keeps memory until the next commit ends, and other work may delay that commit.
    loop {
        let Some(now) = member.resident() else { return };
        let grown = now.saturating_sub(before);
        if grown < bytes {
            println!("{} MB more memory than before", grown >> 20);
            return;
        }
        assert!(
            begin.elapsed() < WAIT_MAX,
            "{grown} bytes more than the {before} before; allowed: {bytes}"
        );
        short_pause().await;
    }
}

#[tokio::test]
async fn bytes_without_meaning_end_their_own_connection() {
    let (_dir, mut member) = started().await;
    let (mut chance, before) = (SeededRng::new(), member.resident());
    for number in 0..300 {
        let mut connection = raw(&member);
        let length = chance.below(5000) as usize;
        let mut bytes: Vec<u8> = (0..length).map(|_| chance.below(256) as u8).collect();
        // Some of the byte strings start like HTTP/2, some like HTTP/1.
        match number % 3 {
            0 => {}
            1 => drop(bytes.splice(0..0, PREFACE.iter().copied())),
            _ => drop(bytes.splice(0..0, *b"POST /v3/kv/put HTTP/1.1\r\n")),
        }
        // The server may close the connection before all bytes are sent.
        let _ = connection.write_all(&bytes);
    }
    others_are_served(&mut member, before).await;
}

#[tokio::test]
async fn connections_that_say_nothing_cost_little() {
    let (_dir, mut member) = started().await;
    let before = member.resident();
    let wanted = env_number("CLEARLANE_IDLE").unwrap_or(500);
    // The member may need this number of bytes to serve one client, in addition to the memory for
    // the idle connections.
    let mut allowed = 16 << 20;
    let idle: Vec<_> = (0..wanted).map(|_| raw(&member)).collect();
    others_are_served(&mut member, None).await;
    allowed += wanted * SILENT_BYTES_MAX;
    takes_at_most(&member, before, allowed).await;
    // Connections that have sent the preface of HTTP/2 may take more memory.
    let spoken: Vec<_> = (0..wanted.min(2000))
        .map(|_| {
            let mut connection = raw(&member);
            connection.write_all(PREFACE).unwrap();
            connection
        })
        .collect();
    others_are_served(&mut member, None).await;
    takes_at_most(&member, before, allowed + spoken.len() as u64 * SPOKEN_BYTES_MAX).await;
    println!("beside {} idle connections", idle.len() + spoken.len());
}

/// Streams that start and never continue: each has the head of a call, and nothing after it. They
/// must not delay other clients.
#[tokio::test]
async fn calls_that_are_never_finished_hold_up_no_other() {
    let (_dir, mut member) = started().await;
    let before = member.resident();
    let (mut half_open, head) = (Vec::new(), headers_of_put(&[]));
    for _ in 0..20 {
        let mut connection = raw(&member);
        connection.write_all(PREFACE).unwrap();
        for stream in 0..50_u32 {
            connection.write_all(&frame(1, 4, 2 * stream + 1, &head)).unwrap();
        }
        half_open.push(connection);
    }
    others_are_served(&mut member, before).await;
    drop(half_open);
    others_are_served(&mut member, before).await;
}

#[tokio::test]
async fn a_request_that_is_too_large_is_refused_by_name() {
    let (_dir, mut member) = started().await;
    let mut client = kv_with_timeout(member.client).await;
    let refusal = client.put(put("large", 1_700_000)).await.unwrap_err();
    assert_eq!((refusal.code(), refusal.message()), {
        (Code::InvalidArgument, "etcdserver: request is too large")
    });
    // The server rejects this request by its length, and does not read it.
    let refusal = client.put(put("larger", 64 << 20)).await.unwrap_err();
    assert_ne!(refusal.code(), Code::Ok, "{refusal}");
    others_are_served(&mut member, None).await;
}

#[tokio::test]
async fn a_watcher_that_never_reads_is_not_waited_for() {
    let (_dir, mut member) = started().await;
    let endpoint = Endpoint::from_shared(member.url()).unwrap().connect().await.unwrap();
    let (ask, asked) = mpsc::channel(1);
    let create = WatchCreateRequest { key: "w".into(), prev_kv: true, ..Default::default() };
    let create = Some(RequestUnion::CreateRequest(create));
    ask.send(WatchRequest { request_union: create }).await.unwrap();
    let stream = WatchClient::new(endpoint).watch(ReceiverStream::new(asked)).await.unwrap();
    let before = member.resident();
    let mut client = kv_with_timeout(member.client).await;
    // This is more than four times the amount of data that may wait for a watcher.
    for _ in 0..300 {
        client.put(put("w", 1 << 20)).await.unwrap();
    }
    drop(client);
    others_are_served(&mut member, before.map(|before| before + (256 << 20))).await;
    drop(stream);
}

/// Clients request a lot of data and read none of it. The server must not keep the complete
/// responses in memory.
#[tokio::test]
async fn an_answer_that_is_not_taken_is_not_kept_whole() {
    let (_dir, mut member) = started().await;
    let mut client = kv_with_timeout(member.client).await;
    for number in 0..100 {
        client.put(put(&format!("r{number}"), 1 << 20)).await.unwrap();
    }
    let before = member.resident();
    let range = r#"{"key":"cg==","range_end":"cw=="}"#;
    let lazy: Vec<_> = (0..20).map(|_| asked(&member, "/v3/kv/range", range)).collect();
    // The member needs memory for the waiting parts of responses and for the engine's cache, 64 MiB
    // each, and for one record in flight to each client. The complete responses would take 2.8 GB.
    others_are_served(&mut member, before.map(|before| before + BYTES_MAX)).await;
    // Read the same records in transactions, with and without a write.
    let ops = format!(r#"{{"request_range":{range}}},{{"request_range":{range}}}"#);
    let put = r#"{"request_put":{"key":"b3RoZXI="}}"#;
    let [reads, writes] = [ops.clone(), format!("{put},{ops}")];
    let txns: Vec<_> = [&reads, &writes]
        .into_iter()
        .cycle()
        .take(8)
        .map(|ops| asked(&member, "/v3/kv/txn", &format!(r#"{{"success":[{ops}]}}"#)))
        .collect();
    others_are_served(&mut member, before.map(|before| before + BYTES_MAX)).await;
    drop(txns);
    // The memory of closed connections is freed.
    drop(lazy);
    let mut one = raw(&member);
    one.set_read_timeout(Some(TIMEOUT)).unwrap();
    one.write_all(b"GET /version HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    match one.read_to_string(&mut answer) {
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        Ok(_) => assert!(answer.contains("etcdserver"), "{answer}"),
    }
    short_pause().await;
}
