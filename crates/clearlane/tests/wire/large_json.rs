//! Tests of long JSON requests of the gateway, which the read pool decodes. See `docs/http.md`.

use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client::with_server;
use crate::default_era::BusyReadPool;
use crate::support::TestServer;

/// Sends a request on a new connection. Returns the response, including its head.
async fn post(address: SocketAddr, path: &str, json: &str) -> String {
    read(send(address, path, json).await).await
}

async fn send(address: SocketAddr, path: &str, json: &str) -> TcpStream {
    let mut connection = TcpStream::connect(address).await.unwrap();
    let (head, length) = (format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n"), json.len());
    let head = format!("{head}Connection: close\r\nContent-Length: {length}\r\n\r\n");
    connection.write_all(head.as_bytes()).await.unwrap();
    connection.write_all(json.as_bytes()).await.unwrap();
    connection
}

async fn read(mut connection: TcpStream) -> String {
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    answer
}

fn put(key: &str, value_bytes: usize) -> String {
    let (key, value) = (BASE64_STANDARD.encode(key), BASE64_STANDARD.encode(vec![7; value_bytes]));
    format!(r#"{{"key":"{key}","value":"{value}"}}"#)
}

async fn until_queued(server: &TestServer, jobs: usize) {
    let queued = async {
        while server.node.read_pool().queued_jobs() < jobs {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = timeout(Duration::from_secs(60), queued).await;
    waited.expect("all long requests wait for the read pool");
}

#[test]
fn while_long_json_waits_for_the_read_pool_short_json_is_answered() {
    with_server(async |server| {
        let address = server.server.address();
        let busy = BusyReadPool::of(server);
        let queued = server.node.read_pool().queued_jobs();
        let long = [
            ("/v3/kv/put", put("a", 20_000)),
            ("/v3/kv/put", put("b", 300_000)),
            ("/v3/kv/put", put("d", 1_500_000)),
            ("/v3/lease/keepalive", format!("{{\"ID\":\"7\"{}}}", " ".repeat(20_000))),
        ];
        let long =
            long.map(|(path, json)| tokio::spawn(async move { post(address, path, &json).await }));
        until_queued(server, queued + long.len()).await;
        let answer = post(address, "/v3/kv/put", &put("c", 10)).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        busy.release().await;
        for answer in long {
            let answer = answer.await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
        let range = r#"{"key":"YQ==","range_end":"eg==","count_only":true}"#;
        let answer = post(address, "/v3/kv/range", range).await;
        assert!(answer.contains(r#""count":"4""#), "{answer}");
    });
}

#[test]
fn long_json_is_decoded_one_at_a_time() {
    with_server(async |server| {
        let address = server.server.address();
        let busy = BusyReadPool::of(server);
        let queued = server.node.read_pool().queued_jobs();
        let mut long = Vec::new();
        for key in ["a", "b", "c"] {
            long.push(send(address, "/v3/kv/put", &put(key, 1_000_000)).await);
        }
        until_queued(server, queued + 1).await;
        for _ in 0..50 {
            let answer = post(address, "/v3/kv/put", &put("d", 10)).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            assert_eq!(server.node.read_pool().queued_jobs(), queued + 1);
        }
        busy.release().await;
        for connection in long {
            let answer = read(connection).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
    });
}

/// The limit is gRPC's limit for a message, and the error has etcd's text.
#[test]
fn a_message_that_is_too_long_for_grpc_is_refused() {
    with_server(async |server| {
        let answer = post(server.server.address(), "/v3/kv/put", &put("k", 2_200_000)).await;
        let words = "grpc: received message larger than max (2200008 vs. 2097152)";
        assert!(answer.starts_with("HTTP/1.1 429") && answer.contains(words), "{answer}");
    });
}
