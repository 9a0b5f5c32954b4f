//! Tests of the maximum size of a request: in an entry of the log, and in a received message.

use clearlane_proto::etcdserverpb::request_op::Request as Op;
use clearlane_proto::etcdserverpb::{
    InternalRaftRequest, LeaseGrantRequest, LeaseGrantResponse, PutRequest, RequestHeader,
    RequestOp, TxnRequest,
};
use prost::Message;

use crate::client::{Reply, frame, with_server};

const PUT: &str = "/etcdserverpb.KV/Put";
const LIMIT: usize = 3 << 19;
/// Number of bytes that a message may have in addition to the maximum size of an entry.
const OVERHEAD: usize = 512 << 10;
const OK: &str = "0";
const RESOURCE_EXHAUSTED: &str = "8";

fn put(length: usize) -> PutRequest {
    PutRequest { key: "k".into(), value: vec![b'v'; length].into(), ..PutRequest::default() }
}

fn is_too_large(reply: &Reply) -> bool {
    (&reply.code[..], &reply.message[..]) == ("3", "etcdserver: request is too large")
}

/// Returns the length of the longest value that fits into an entry. The entry's header has an id,
/// which starts with the last 16 bits of the member's id.
fn longest(member: u64, entry: impl Fn(usize) -> InternalRaftRequest) -> usize {
    let header = Some(RequestHeader { id: member << 48 | 1 << 40, ..RequestHeader::default() });
    let length =
        |value| InternalRaftRequest { header: header.clone(), ..entry(value) }.encoded_len();
    (0..=LIMIT).rev().find(|value| length(*value) <= LIMIT).unwrap()
}

fn txn(length: usize) -> TxnRequest {
    let op = RequestOp { request: Some(Op::RequestPut(put(length))) };
    TxnRequest { success: vec![op], ..TxnRequest::default() }
}

#[test]
fn an_entry_of_the_log_has_etcds_longest_length() {
    with_server(async |server| {
        let mut client = server.client().await;
        let member = server.node.metadata().node_id;
        assert_eq!(member, 0x8e9e_05c5_2164_694d, "an id of nine bytes in the log, as etcd's here");
        let most = longest(member, |value| {
            let put = Some(put(value));
            InternalRaftRequest { put, ..InternalRaftRequest::default() }
        });
        assert_eq!(most, MOST_BESIDE_A_PUT, "as etcd 3.7.1 takes");
        assert_eq!(client.call(PUT, &[], &put(most)).await.code, OK);
        let reply = client.call(PUT, &[], &put(most + 1)).await;
        assert!(is_too_large(&reply), "{} {}", reply.code, reply.message);
        let most = longest(member, |value| {
            let txn = Some(txn(value));
            InternalRaftRequest { txn, ..InternalRaftRequest::default() }
        });
        let path = "/etcdserverpb.KV/Txn";
        assert_eq!(client.call(path, &[], &txn(most)).await.code, OK);
        let reply = client.call(path, &[], &txn(most + 1)).await;
        assert!(is_too_large(&reply), "{} {}", reply.code, reply.message);
    });
}

/// The length of the longest value that etcd 3.7.1 accepts in a put of the key `k`.
const MOST_BESIDE_A_PUT: usize = 1_572_840;

#[test]
fn a_message_is_received_up_to_the_limit_and_some_more() {
    with_server(async |server| {
        let mut client = server.client().await;
        let most = LIMIT + OVERHEAD;
        // The key and the tags take 7 bytes.
        let reply = client.call(PUT, &[], &put(most - 7)).await;
        assert!(is_too_large(&reply), "{} {}", reply.code, reply.message);
        let words =
            |length: usize| format!("grpc: received message larger than max ({length} vs. {most})");
        // Test two kinds of services, and a stream.
        for path in [PUT, "/etcdserverpb.Lease/LeaseGrant", "/etcdserverpb.Watch/Watch"] {
            let reply = client.call(path, &[], &put(most - 6)).await;
            assert_eq!((&reply.code[..], reply.message), (RESOURCE_EXHAUSTED, words(most + 1)));
        }
        // The server rejects a message as soon as it has read the length field. Here no message
        // follows the field.
        let head = frame(0, &[]);
        let head = [&head[..1], &[0x7f, 0xff, 0xff, 0xff]].concat();
        for path in [PUT, "/etcdserverpb.Lease/LeaseGrant", "/etcdserverpb.Watch/Watch"] {
            let reply = client.raw(path, &[], head.clone().into()).await;
            let words = words(0x7fff_ffff);
            assert_eq!((&reply.code[..], reply.message), (RESOURCE_EXHAUSTED, words), "{path}");
        }
        let grant = LeaseGrantRequest { ttl: 60, id: 7 };
        let reply = client.call("/etcdserverpb.Lease/LeaseGrant", &[], &grant).await;
        let (granted, _) = crate::client::unframed::<LeaseGrantResponse>(&reply.body);
        assert_eq!((granted.id, reply.code), (7, OK.to_owned()));
    });
}
