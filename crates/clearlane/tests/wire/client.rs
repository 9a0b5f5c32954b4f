//! A client that builds the heads and frames of its calls itself, so that tests can send unusual
//! ones.

#![allow(dead_code, reason = "the tests of clusters use less of it")]

use std::io::{Read, Write};
use std::net::SocketAddr;

use bytes::{BufMut, Bytes, BytesMut};
use clearlane_backend::Era;
use clearlane_replica::apply::Limits;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, StatusCode};
use prost::Message;
use tokio::net::TcpStream;

use crate::support::{TestServer, block_on, member_config};

impl TestServer {
    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.server.address()).await
    }
}

pub(crate) fn with_server(work: impl AsyncFn(&TestServer)) {
    with_server_of(Era::Clearlane, work);
}

/// Runs `work` with a server of this era, which has one network thread.
pub(crate) fn with_server_of(era: Era, work: impl AsyncFn(&TestServer)) {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::with(&member_config(dir.path(), era), 1, Limits::default());
    block_on(work(&server));
    server.stop();
}

#[derive(Clone)]
pub(crate) struct Client {
    requests: SendRequest<Bytes>,
}

/// A response. `code` and `message` are the gRPC status.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) http: StatusCode,
    pub(crate) head: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) code: String,
    pub(crate) message: String,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Client {
        Client::connect_with_window(address, 16 << 20).await
    }

    /// Connects. `bytes` is the initial window of each stream.
    pub(crate) async fn connect_with_window(address: SocketAddr, bytes: u32) -> Client {
        let connection = TcpStream::connect(address).await.unwrap();
        connection.set_nodelay(true).unwrap();
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(bytes).initial_connection_window_size(16 << 20);
        let (requests, connection) = builder.handshake(connection).await.unwrap();
        tokio::spawn(connection);
        Client { requests: requests.ready().await.unwrap() }
    }

    /// Opens a call. `headers` follow the headers that every call has.
    pub(crate) fn open(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
    ) -> (ResponseFuture, SendStream<Bytes>) {
        let mut head = Request::post(format!("http://member{path}")).header("te", "trailers");
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            head = head.header("content-type", "application/grpc");
        }
        for (name, value) in headers {
            head = head.header(*name, *value);
        }
        self.requests.send_request(head.body(()).unwrap(), false).unwrap()
    }

    /// Makes a call whose body is sent as a whole.
    pub(crate) async fn raw(&mut self, path: &str, headers: &[(&str, &str)], body: Bytes) -> Reply {
        let (answer, mut sends) = self.open(path, headers);
        let sent = send_all(&mut sends, body);
        let (answer, _) = tokio::join!(reply(answer), sent);
        answer
    }

    pub(crate) async fn call(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
        message: &impl Message,
    ) -> Reply {
        self.raw(path, headers, frame(0, &message.encode_to_vec())).await
    }
}

/// Sends a body. Stops without an error if the server no longer reads it: a server that has already
/// responded need not read the rest.
async fn send_all(sends: &mut SendStream<Bytes>, mut body: Bytes) {
    loop {
        sends.reserve_capacity(body.len());
        if body.is_empty() {
            let _ = sends.send_data(body, true);
            return;
        }
        let capacity = std::future::poll_fn(|context| sends.poll_capacity(context)).await;
        let Some(Ok(capacity)) = capacity else { return };
        let piece = body.split_to(capacity.min(body.len()));
        if sends.send_data(piece, false).is_err() {
            return;
        }
    }
}

pub(crate) async fn reply(answer: ResponseFuture) -> Reply {
    let (head, body) = answer.await.unwrap().into_parts();
    rest(head, body).await
}

pub(crate) async fn rest(head: http::response::Parts, mut body: RecvStream) -> Reply {
    let mut bytes = BytesMut::new();
    while let Some(piece) = body.data().await {
        let piece = piece.unwrap();
        body.flow_control().release_capacity(piece.len()).unwrap();
        bytes.put(piece);
    }
    let trailers = body.trailers().await.unwrap().unwrap_or_default();
    let said = |name: &str| {
        let value = head.headers.get(name).or(trailers.get(name));
        value.map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
    };
    let (code, message) = (said("grpc-status"), spelled_out(&said("grpc-message")));
    Reply { http: head.status, head: head.headers, body: bytes.freeze(), code, message }
}

/// Decodes gRPC's percent encoding.
fn spelled_out(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, tail @ ..] = rest {
        rest = tail;
        match (first, tail) {
            (b'%', [a, b, tail @ ..]) => {
                let digits = [*a, *b];
                let digits = std::str::from_utf8(&digits).unwrap();
                bytes.push(u8::from_str_radix(digits, 16).unwrap());
                rest = tail;
            }
            _ => bytes.push(*first),
        }
    }
    String::from_utf8(bytes).unwrap()
}

pub(crate) fn frame(flag: u8, message: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(flag);
    frame.put_u32(message.len() as u32);
    frame.put_slice(message);
    frame.freeze()
}

pub(crate) fn gzip(message: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(message).unwrap();
    encoder.finish().unwrap()
}

/// Returns the message in a frame, and whether it was compressed.
pub(crate) fn unframed<M: Message + Default>(body: &[u8]) -> (M, bool) {
    let length = u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize;
    let message = &body[5..5 + length];
    if body[0] == 0 {
        return (M::decode(message).unwrap(), false);
    }
    let mut plain = Vec::new();
    GzDecoder::new(message).read_to_end(&mut plain).unwrap();
    (M::decode(&plain[..]).unwrap(), true)
}
