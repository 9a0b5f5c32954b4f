//! Clients that compress their messages with gzip.

use std::io::{Read as _, Write as _};

use bytes::{BufMut as _, Bytes, BytesMut};
use clearlane_proto::Message;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, PutRequest, PutResponse, RangeRequest,
    RangeResponse, WatchCreateRequest, WatchRequest, WatchResponse,
};
use clearlane_proxy::namespace::Namespace;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody};
use tonic::body::Body;
use tonic::transport::Channel;
use tower_service::Service as _;

use crate::member::{Member, TTL};
use crate::running::{RunningProxy, config, until};

fn packed(message: &impl Message) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&message.encode_to_vec()).unwrap();
    let message = encoder.finish().unwrap();
    let mut frame = BytesMut::new();
    frame.put_u8(1);
    frame.put_u32(message.len() as u32);
    frame.put_slice(&message);
    frame.freeze()
}

/// Takes the first message, which must be compressed.
fn unpacked<M: Message + Default>(bytes: &mut BytesMut) -> Option<M> {
    let [flag, length @ ..] = *bytes.first_chunk::<5>()?;
    let length = u32::from_be_bytes(length) as usize;
    if bytes.len() < 5 + length {
        return None;
    }
    assert_eq!(flag, 1);
    let frame = bytes.split_to(5 + length);
    let mut plain = Vec::new();
    GzDecoder::new(&frame[5..]).read_to_end(&mut plain).unwrap();
    Some(M::decode(&plain[..]).unwrap())
}

async fn call(channel: &mut Channel, path: &str, encoding: &str, body: Body) -> Response<Body> {
    let request = Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-encoding", encoding)
        .header("grpc-accept-encoding", "gzip");
    std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
    channel.call(request.body(body).unwrap()).await.unwrap()
}

async fn unary<M: Message + Default>(
    channel: &mut Channel,
    path: &str,
    request: &impl Message,
) -> M {
    let body = Body::new(Full::new(packed(request)));
    let response = call(channel, path, "gzip", body).await;
    assert_eq!(response.headers()["grpc-encoding"], "gzip", "{response:?}");
    let body = response.into_body().collect().await.unwrap();
    assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
    unpacked(&mut body.to_bytes().as_ref().into()).unwrap()
}

/// Sends a request on a stream, and returns the first responses.
async fn streamed<M: Message + Default>(
    channel: &mut Channel,
    path: &str,
    request: &impl Message,
    count: usize,
) -> Vec<M> {
    let frame = Ok::<_, std::convert::Infallible>(http_body::Frame::data(packed(request)));
    let requests = futures_util::stream::iter([frame]);
    let requests = futures_util::StreamExt::chain(requests, futures_util::stream::pending());
    let response = call(channel, path, "gzip", Body::new(StreamBody::new(requests))).await;
    assert_eq!(response.headers()["grpc-encoding"], "gzip", "{response:?}");
    let (mut body, mut bytes, mut found) = (response.into_body(), BytesMut::new(), Vec::new());
    while found.len() < count {
        let data = body.frame().await.unwrap().unwrap().into_data().unwrap();
        bytes.put(data);
        while let Some(message) = unpacked(&mut bytes) {
            found.push(message);
        }
    }
    found
}

fn get() -> RangeRequest {
    RangeRequest { key: "k".into(), ..RangeRequest::default() }
}

#[tokio::test]
async fn compressed_calls_work_in_a_namespace() {
    let member = Member::start().await;
    let mut config = config(&member);
    config.namespace = Namespace::new("inside/");
    let proxy = RunningProxy::start(config, None).await;
    let mut channel = proxy.connect().await;
    let put = PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() };
    let _: PutResponse = unary(&mut channel, "/etcdserverpb.KV/Put", &put).await;
    let found: RangeResponse = unary(&mut channel, "/etcdserverpb.KV/Range", &get()).await;
    assert_eq!((&found.kvs[0].key[..], &found.kvs[0].value[..]), (&b"k"[..], &b"v"[..]));
    let create = WatchCreateRequest { key: "k".into(), start_revision: 1, ..Default::default() };
    let request_union = Some(RequestUnion::CreateRequest(create));
    let create = WatchRequest { request_union };
    let responses: Vec<WatchResponse> =
        streamed(&mut channel, "/etcdserverpb.Watch/Watch", &create, 2).await;
    assert!(responses[0].created);
    assert_eq!(responses[1].events[0].kv.as_ref().unwrap().key, "k");
    let unknown = Body::new(Full::new(packed(&get())));
    let response = call(&mut channel, "/etcdserverpb.KV/Range", "zstd", unknown).await;
    assert_eq!(response.headers()["grpc-status"], "12");
}

#[tokio::test]
async fn compressed_calls_are_answered_from_the_cache() {
    let member = Member::start().await;
    member.store("k", b"v");
    let mut config = config(&member);
    config.cache.prefixes = vec![Vec::new()];
    let proxy = RunningProxy::start(config, None).await;
    let cache = &proxy.proxy.services().cache;
    until("the range is cached", || cache.scopes().iter().all(|it| it.revision() != 0)).await;
    let mut channel = proxy.connect().await;
    let found: RangeResponse = unary(&mut channel, "/etcdserverpb.KV/Range", &get()).await;
    assert_eq!(found.kvs[0].value, "v");
    assert_eq!(cache.metrics.hits.load(std::sync::atomic::Ordering::SeqCst), 1);
    let renew = LeaseKeepAliveRequest { id: 7 };
    let path = "/etcdserverpb.Lease/LeaseKeepAlive";
    let answers: Vec<LeaseKeepAliveResponse> = streamed(&mut channel, path, &renew, 1).await;
    assert_eq!((answers[0].id, answers[0].ttl), (7, TTL));
}
