//! The limits of a client's connection. They are the limits of a member.

use clearlane_proto::etcdserverpb::PutRequest;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::Request;
use tonic::transport::Endpoint;

use crate::member::Member;
use crate::pings::{PING, PREFACE, SETTINGS};
use crate::running::{RunningProxy, TIMEOUT, config};

const RESETS: u32 = 1000;

/// Returns a frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [&length[1..], &[kind, flags][..], &stream.to_be_bytes()[..]].concat();
    [head, payload.to_vec()].concat()
}

/// The deadlines of many calls pass at the same time. The other calls of the connection continue.
#[tokio::test]
async fn many_calls_may_be_reset_at_once() {
    let member = Member::start().await;
    let proxy = RunningProxy::start(config(&member), None).await;
    let mut stream = TcpStream::connect(proxy.address).await.unwrap();
    let mut sent = [PREFACE, SETTINGS].concat();
    for id in (1..).step_by(2).take(RESETS as usize) {
        // The indexes of `:method: POST`, `:scheme: http` and `:path: /` in HPACK's table.
        sent.extend(frame(1, 4, id, &[0x83, 0x86, 0x84]));
        sent.extend(frame(3, 0, id, &[0, 0, 0, 8]));
    }
    sent.extend(PING);
    stream.write_all(&sent).await.unwrap();
    let mut received = Vec::new();
    let answered = async {
        while !received.windows(8).any(|bytes| *bytes == PING[9..]) {
            let read = stream.read_buf(&mut received).await.unwrap_or(0);
            let text = String::from_utf8_lossy(&received);
            assert!(read > 0, "the proxy has closed the connection: {text:?}");
        }
    };
    timeout(TIMEOUT, answered).await.unwrap();
}

/// The member sends the head back, so the heads of the request and of the response are large.
#[tokio::test]
async fn heads_may_be_large() {
    const HEAD_BYTES: usize = 900_000;
    let member = Member::start().await;
    let proxy = RunningProxy::start(config(&member), None).await;
    let endpoint = Endpoint::from_shared(format!("http://{}", proxy.address)).unwrap();
    let channel = endpoint.http2_max_header_list_size(2 << 20).connect().await.unwrap();
    let put = PutRequest { key: "k".into(), ..PutRequest::default() };
    let mut request = Request::new(put);
    let large = "x".repeat(HEAD_BYTES);
    request.metadata_mut().insert("test-echo", large.parse().unwrap());
    let response = timeout(TIMEOUT, KvClient::new(channel).put(request)).await.unwrap().unwrap();
    assert!(*response.metadata().get("test-echo").unwrap() == *large);
}
