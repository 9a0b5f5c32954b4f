//! Messages in frames as small as they can be: each counts for h2 against its connection until it
//! is read.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use clearlane_backend::Era;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, PutResponse, RangeResponse, WatchCreateRequest,
    WatchRequest, WatchResponse,
};
use clearlane_server::apply::Limits;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::Request;
use prost::Message;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::{TestServer, block_on, member_config};

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

/// One frame for each piece of this length.
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

/// Makes watches on a stream, all at once and before anything is read, and waits until each was
/// made.
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
    // The server ends no stream before its client's side has ended.
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
                let told: WatchResponse = stream.next().await;
                assert_eq!(told.events.len(), 1);
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
                    let told: WatchResponse = stream.next().await;
                    assert_eq!(told.events.len(), 1);
                }
            });
        }
        reading.join_all().await;
    });
}

/// Sends keep-alives on a stream, all at once and before any response is read.
async fn keep_alives(requests: SendRequest<Bytes>, count: usize) {
    let (response, mut sending) = call(&requests, "/etcdserverpb.Lease/LeaseKeepAlive").await;
    let keep_alive = framed(&LeaseKeepAliveRequest { id: 7 });
    for _ in 0..count {
        send(&mut sending, keep_alive.clone(), usize::MAX, false).await;
    }
    let mut messages = Messages::of(response).await;
    for _ in 0..count {
        let renewed: LeaseKeepAliveResponse = messages.next().await;
        assert_eq!((renewed.id, renewed.ttl), (7, 0));
    }
}

/// Far more frames than h2 keeps for a connection. A connection that the server ends fails the
/// test.
#[test]
fn thousands_of_requests_on_each_of_twenty_streams() {
    with_connection(async |requests| {
        let mut streams = JoinSet::new();
        for _ in 0..20 {
            streams.spawn(keep_alives(requests.clone(), 5000));
        }
        streams.join_all().await;
        let mut making = JoinSet::new();
        for _ in 0..20 {
            making.spawn(watches(requests.clone(), "a".to_owned(), 4000, usize::MAX));
        }
        making.join_all().await;
    });
}

/// Bodies of 64 KiB, byte by byte, on one connection, and reads beside them.
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
