//! Transactions in each other, as deep as etcd takes them: from the wire to the log and back.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use clearlane::data;
use clearlane_backend::Era;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::request_op::Request as Op;
use clearlane_proto::etcdserverpb::{PutRequest, RangeRequest, RequestOp, TxnRequest};
use clearlane_rpc::serve::RpcServer;
use clearlane_server::apply::Limits;
use clearlane_server::threads::ServerThreads;
use http::uri::PathAndQuery;
use prost::Message;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

/// Messages as they are: an answer that is nested so deep is beyond what our own client reads.
#[derive(Clone, Copy, Default)]
struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = BytesCodec;
    type Decoder = BytesCodec;

    fn encoder(&mut self) -> BytesCodec {
        BytesCodec
    }

    fn decoder(&mut self) -> BytesCodec {
        BytesCodec
    }
}

impl Encoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

struct Running {
    node: Arc<ServerThreads>,
    server: RpcServer,
}

impl Running {
    fn start(dir: &Path, limits: Limits) -> Running {
        let parts = Era::Clearlane;
        let node =
            data::open_single_member(dir, parts, "default", "http://localhost:2380").unwrap();
        let node = Arc::new(node);
        let address = "127.0.0.1:0".parse().unwrap();
        let server = RpcServer::start(&node, address, 1, limits).unwrap();
        Running { node, server }
    }

    async fn channel(&self) -> Channel {
        let address = format!("http://{}", self.server.address());
        Endpoint::from_shared(address).unwrap().connect().await.unwrap()
    }

    fn stop(self) {
        self.server.stop().unwrap();
        self.node.stop();
        assert!(self.node.failure().borrow().is_none());
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// The innermost has this operation.
fn deep(txns: usize, innermost: Op) -> TxnRequest {
    let holds =
        |op| TxnRequest { success: vec![RequestOp { request: Some(op) }], ..TxnRequest::default() };
    (1..txns).fold(holds(innermost), |txn, _| holds(Op::RequestTxn(txn)))
}

fn put(key: &str) -> Op {
    let (key, value) = (key.to_owned().into(), "v".into());
    Op::RequestPut(PutRequest { key, value, ..PutRequest::default() })
}

fn get(key: &str) -> RangeRequest {
    RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() }
}

async fn send(channel: &Channel, message: Bytes) -> Result<Bytes, Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let path = PathAndQuery::from_static("/etcdserverpb.KV/Txn");
    client.unary(Request::new(message), path, BytesCodec).await.map(|answer| answer.into_inner())
}

async fn has(channel: &Channel, key: &str) -> bool {
    let found = KvClient::new(channel.clone()).range(get(key)).await.unwrap();
    found.into_inner().count == 1
}

const TOO_MANY: &str = "etcdserver: too many operations in txn request";

fn is_too_many(answer: &Result<Bytes, Status>) -> bool {
    answer
        .as_ref()
        .is_err_and(|status| (status.code(), status.message()) == (Code::InvalidArgument, TOO_MANY))
}

#[test]
fn etcds_depth_is_taken_applied_and_read_back_from_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), Limits::default());
    block_on(async {
        let channel = running.channel().await;
        for txns in [49, 50, 51, 60, 100, 127, 128] {
            let key = format!("k{txns}");
            let answer = send(&channel, deep(txns, put(&key)).encode_to_vec().into()).await;
            assert!(answer.is_ok(), "{txns}: {answer:?}");
            assert!(has(&channel, &key).await, "{txns}");
            let read = deep(txns, Op::RequestRange(get(&key))).encode_to_vec();
            let answer = send(&channel, read.into()).await;
            assert!(
                answer.is_ok_and(|answer| answer
                    .windows(key.len())
                    .any(|part| part == key.as_bytes()))
            );
        }
        for txns in [129, 130, 200] {
            let answer = send(&channel, deep(txns, put("no")).encode_to_vec().into()).await;
            assert!(is_too_many(&answer), "{txns}: {answer:?}");
        }
        assert!(!has(&channel, "no").await);
    });
    running.stop();
    let running = Running::start(dir.path(), Limits::default());
    block_on(async {
        let channel = running.channel().await;
        assert!(has(&channel, "k128").await);
    });
    running.stop();
}

#[test]
fn with_more_operations_the_depth_has_a_bound_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), Limits { txn_ops_max: 10_000, ..Limits::default() });
    block_on(async {
        let channel = running.channel().await;
        let answer = send(&channel, deep(129, put("k")).encode_to_vec().into()).await;
        assert!(answer.is_ok() && has(&channel, "k").await, "{answer:?}");
        let answer = send(&channel, deep(130, put("no")).encode_to_vec().into()).await;
        assert!(is_too_many(&answer), "{answer:?}");
    });
    running.stop();
}

/// 1.4 MB of heads, each in the one before.
#[test]
fn a_hundred_thousand_levels_harm_no_other_client() {
    let mut message = Vec::new();
    for field in [0x22, 0x12].into_iter().cycle().take(300_000) {
        let mut head = vec![field];
        prost::encode_length_delimiter(message.len(), &mut head).unwrap();
        message.extend(head.into_iter().rev());
    }
    message.reverse();
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), Limits::default());
    block_on(async {
        let channel = running.channel().await;
        let answer = send(&channel, message.into()).await;
        assert!(is_too_many(&answer), "{answer:?}");
        assert!(!has(&channel, "other").await);
    });
    running.stop();
}
