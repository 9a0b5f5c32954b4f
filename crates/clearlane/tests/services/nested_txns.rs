//! Tests of nested transactions, as deep as etcd accepts them, from the request to the log and
//! back.

use crate::support;
use bytes::Bytes;
use clearlane_backend::Era;
use clearlane_proto::etcdserverpb::TxnRequest;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::request_op::Request as Op;
use clearlane_replica::apply::Limits;
use http::uri::PathAndQuery;
use prost::Message;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::bytes_codec::BytesCodec;
use crate::support::{TestServer, block_on, get, member_config, op, with_server};

/// Returns a transaction of `txns` levels: each transaction contains only the transaction of the
/// next level. The innermost transaction has the operation `innermost`.
fn deep(txns: usize, innermost: Op) -> TxnRequest {
    let holds = |request| TxnRequest { success: vec![op(request)], ..TxnRequest::default() };
    (1..txns).fold(holds(innermost), |txn, _| holds(Op::RequestTxn(txn)))
}

fn put(key: &str) -> Op {
    Op::RequestPut(support::put(key, "v"))
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
    let server = TestServer::start(dir.path(), Era::Clearlane);
    block_on(async {
        let channel = server.channel().await;
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
    server.stop();
    let server = TestServer::start(dir.path(), Era::Clearlane);
    block_on(async {
        let channel = server.channel().await;
        assert!(has(&channel, "k128").await);
    });
    server.stop();
}

#[test]
fn with_more_operations_the_depth_has_a_bound_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { txn_ops_max: 10_000, ..Limits::default() };
    let server = TestServer::with(&member_config(dir.path(), Era::Clearlane), 1, limits);
    block_on(async {
        let channel = server.channel().await;
        let answer = send(&channel, deep(129, put("k")).encode_to_vec().into()).await;
        assert!(answer.is_ok() && has(&channel, "k").await, "{answer:?}");
        let answer = send(&channel, deep(130, put("no")).encode_to_vec().into()).await;
        assert!(is_too_many(&answer), "{answer:?}");
    });
    server.stop();
}

/// A message of 1.2 MB that consists of nested heads is rejected, and the server still serves its
/// clients.
#[test]
fn a_hundred_thousand_levels_harm_no_other_client() {
    let mut message = Vec::new();
    for field in [0x22, 0x12].into_iter().cycle().take(300_000) {
        let mut head = vec![field];
        prost::encode_length_delimiter(message.len(), &mut head).unwrap();
        message.extend(head.into_iter().rev());
    }
    message.reverse();
    let message = Bytes::from(message);
    with_server(async |server| {
        let channel = server.channel().await;
        let answer = send(&channel, message.clone()).await;
        assert!(is_too_many(&answer), "{answer:?}");
        assert!(!has(&channel, "other").await);
    });
}
