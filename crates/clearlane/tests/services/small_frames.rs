//! Tests of messages in the smallest possible frames. h2 counts each received frame towards a limit
//! of the connection until the server has read the frame.

use crate::support;
use std::io::{Read, Write};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use clearlane_backend::Era;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    LeaseKeepAliveRequest, PutResponse, RangeResponse, WatchCreateRequest, WatchRequest,
    WatchResponse,
};
use clearlane_replica::apply::Limits;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::Request;
use prost::Message;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::frames::{PREFACE, frame, headers_of_call};
use crate::support::{TIMEOUT, TestServer, block_on, member_config};

fn with_connection(test: impl AsyncFnOnce(SendRequest<Bytes>)) {
    let dir = tempfile::tempdir().unwrap();
    let config = member_config(dir.path(), Era::Clearlane);
    let server = TestServer::with(&config, 1, Limits::default());
    block_on(async {
        let socket = TcpStream::connect(server.server.address()).await.unwrap();
        let (requests, connection) = h2::client::handshake(socket).await.unwrap();
        tokio::spawn(connection);
        test(requests).await;
    });
    server.stop();
}

async fn call(requests: &SendRequest<Bytes>, path: &str) -> (ResponseFuture, SendStream<Bytes>) {
    let request = Request::post(format!("http://here{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let mut requests = requests.clone().ready().await.unwrap();
    requests.send_request(request.body(()).unwrap(), false).unwrap()
}

fn framed(message: &impl Message) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(message.encoded_len() as u32);
    message.encode(&mut bytes).unwrap();
    bytes.freeze()
}

/// Sends bytes in frames of at most `piece` bytes. If `ends` is true, the last frame closes the
/// client's side of the stream.
async fn send(stream: &mut SendStream<Bytes>, mut bytes: Bytes, piece: usize, ends: bool) {
    while bytes.has_remaining() {
        let frame = bytes.split_to(piece.min(bytes.len()));
        while stream.capacity() < frame.len() {
            stream.reserve_capacity(frame.len());
            std::future::poll_fn(|context| stream.poll_capacity(context)).await.unwrap().unwrap();
        }
        let is_last = ends && bytes.is_empty();
        stream.send_data(frame, is_last).unwrap();
    }
}

struct Messages {
    body: RecvStream,
    read: BytesMut,
}

impl Messages {
    async fn of(response: ResponseFuture) -> Messages {
        Messages { body: response.await.unwrap().into_body(), read: BytesMut::new() }
    }

    async fn next<M: Message + Default>(&mut self) -> M {
        loop {
            if self.read.len() >= 5 {
                let length = u32::from_be_bytes(self.read[1..5].try_into().unwrap()) as usize;
                if self.read.len() >= 5 + length {
                    self.read.advance(5);
                    return M::decode(self.read.split_to(length)).unwrap();
                }
            }
            let bytes = self.body.data().await.expect("another message").unwrap();
            self.body.flow_control().release_capacity(bytes.len()).unwrap();
            self.read.put(bytes);
        }
    }
}

fn create(key: &str) -> Bytes {
    let create = WatchCreateRequest { key: key.to_owned().into(), ..Default::default() };
    framed(&WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) })
}

/// Sends requests for many watches on a stream before anything is read, and then waits until all
/// watches are created.
async fn watches(
    requests: SendRequest<Bytes>,
    key: String,
    count: usize,
    piece: usize,
) -> Messages {
    let (response, mut sending) = call(&requests, "/etcdserverpb.Watch/Watch").await;
    let sent = tokio::spawn(async move {
        for _ in 0..count {
            send(&mut sending, create(&key), piece, false).await;
        }
        sending
    });
    let sending = sent.await.unwrap();
    let mut messages = Messages::of(response).await;
    for id in 0..count as i64 {
        let made: WatchResponse = messages.next().await;
        assert_eq!((made.created, made.canceled, made.watch_id), (true, false, id));
    }
    // The server ends a stream only after its client's side has ended.
    drop(sending);
    messages
}

async fn put(requests: &SendRequest<Bytes>, key: &str, value: Vec<u8>, piece: usize) {
    let put = support::put(key, value);
    let (response, mut sending) = call(requests, "/etcdserverpb.KV/Put").await;
    send(&mut sending, framed(&put), piece, true).await;
    let _: PutResponse = Messages::of(response).await.next().await;
}

#[test]
fn five_thousand_watches_that_are_sent_before_one_answer_is_read() {
    with_connection(async |requests| {
        for piece in [usize::MAX, 3] {
            let mut stream = watches(requests.clone(), "a".to_owned(), 5000, piece).await;
            put(&requests, "a", Vec::new(), usize::MAX).await;
            for _ in 0..5000 {
                let response: WatchResponse = stream.next().await;
                assert_eq!(response.events.len(), 1);
            }
        }
    });
}

#[test]
fn a_thousand_watches_on_each_of_twenty_streams() {
    with_connection(async |requests| {
        let mut making = JoinSet::new();
        for _ in 0..20 {
            making.spawn(watches(requests.clone(), "a".to_owned(), 1000, usize::MAX));
        }
        let streams = making.join_all().await;
        put(&requests, "a", Vec::new(), usize::MAX).await;
        let mut reading = JoinSet::new();
        for mut stream in streams {
            reading.spawn(async move {
                for _ in 0..1000 {
                    let response: WatchResponse = stream.next().await;
                    assert_eq!(response.events.len(), 1);
                }
            });
        }
        reading.join_all().await;
    });
}

const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;

/// Returns the bytes of a connection that sends keep-alive requests in turn on many streams, in
/// frames of 5 bytes. The windows for the responses are 1 GiB.
fn pipelined_keep_alives(streams: u32, depth: usize) -> Vec<u8> {
    let window = 1_u32 << 30;
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[&[0, 4], &window.to_be_bytes()[..]].concat()));
    bytes.extend(frame(WINDOW_UPDATE, 0, 0, &window.to_be_bytes()));
    let head = headers_of_call("/etcdserverpb.Lease/LeaseKeepAlive", &[]);
    let ids = (0..streams).map(|stream| 2 * stream + 1);
    ids.clone().for_each(|id| bytes.extend(frame(1, 4, id, &head)));
    let message = framed(&LeaseKeepAliveRequest::default());
    let round: Vec<u8> = ids.flat_map(|id| frame(0, 0, id, &message)).collect();
    bytes.extend(round.repeat(depth));
    bytes
}

/// Reads until each stream has `depth` messages.
fn read_responses(socket: &mut std::net::TcpStream, streams: u32, depth: usize) {
    let mut bodies = vec![BytesMut::new(); streams as usize];
    let (mut left, mut messages) = (streams as usize * depth, vec![0; streams as usize]);
    while left > 0 {
        let mut head = [0; 9];
        socket.read_exact(&mut head).unwrap();
        let [a, b, c, kind, _, id @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        socket.read_exact(&mut payload).unwrap();
        match kind {
            0 => {}
            3 | 7 => panic!("frame {kind}: {}", String::from_utf8_lossy(&payload)),
            _ => continue,
        }
        let stream = (u32::from_be_bytes(id) / 2) as usize;
        let body = &mut bodies[stream];
        body.put_slice(&payload);
        while body.len() >= 5 {
            let length = u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize;
            if body.len() < 5 + length {
                break;
            }
            body.advance(5 + length);
            messages[stream] += 1;
            left -= 1;
        }
    }
    assert!(messages.iter().all(|count| *count == depth), "{messages:?}");
}

/// Sends more small frames than h2 keeps for a connection. The client reads no response before it
/// has sent all frames. Then it must get all responses.
#[test]
fn hundreds_of_thousands_of_keep_alives_on_one_connection() {
    let dir = tempfile::tempdir().unwrap();
    let config = member_config(dir.path(), Era::Clearlane);
    let server = TestServer::with(&config, 1, Limits::default());
    let mut socket = std::net::TcpStream::connect(server.server.address()).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    // The bytes of each stream fit into its initial window of 65,535 bytes, which applies until the
    // server's settings arrive.
    let (streams, depth) = (25, 13_000);
    socket.write_all(&pipelined_keep_alives(streams, depth)).unwrap();
    read_responses(&mut socket, streams, depth);
    drop(socket);
    server.stop();
}

/// Bodies of 64 KiB are sent byte by byte on one connection, while other calls are served.
#[test]
fn bodies_that_come_byte_by_byte_harm_no_other_call() {
    with_connection(async |requests| {
        let mut puts = JoinSet::new();
        for number in 0..8 {
            let requests = requests.clone();
            let key = format!("k{number}");
            puts.spawn(async move { put(&requests, &key, vec![7; 64 << 10], 1).await });
        }
        let mut reads = 0;
        while !puts.is_empty() || reads == 0 {
            let range = support::get("other");
            let (response, mut sending) = call(&requests, "/etcdserverpb.KV/Range").await;
            send(&mut sending, framed(&range), usize::MAX, true).await;
            let _: RangeResponse = Messages::of(response).await.next().await;
            reads += 1;
            while let Some(done) = puts.try_join_next() {
                done.unwrap();
            }
        }
    });
}
