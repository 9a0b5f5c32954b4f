//! Tests of compressed requests and their responses.

use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, PutRequest, PutResponse, RangeRequest, RangeResponse,
    WatchCreateRequest, WatchRequest, WatchResponse,
};
use prost::Message;

use crate::client::{frame, gzip, unframed, with_server};

const PUT: &str = "/etcdserverpb.KV/Put";
const RANGE: &str = "/etcdserverpb.KV/Range";
const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
const WATCH: &str = "/etcdserverpb.Watch/Watch";
const GZIP: [(&str, &str); 1] = [("grpc-encoding", "gzip")];
const OK: &str = "0";
const LIMIT: usize = (3 << 19) + (512 << 10);

#[test]
fn a_compressed_request_gets_a_compressed_answer() {
    with_server(async |server| {
        let mut client = server.client().await;
        let value = vec![b'v'; 100_000].into();
        let put = PutRequest { key: "k".into(), value, ..PutRequest::default() }.encode_to_vec();
        let reply = client.raw(PUT, &GZIP, frame(1, &gzip(&put))).await;
        assert_eq!((&reply.code[..], &reply.message[..]), (OK, ""));
        assert_eq!(reply.head["grpc-encoding"], "gzip");
        let (response, is_compressed) = unframed::<PutResponse>(&reply.body);
        assert_eq!((response.header.unwrap().revision, is_compressed), (2, true));
        let get = RangeRequest { key: "k".into(), ..RangeRequest::default() }.encode_to_vec();
        // A call that uses gzip may contain an uncompressed message, and the response may still be
        // compressed. A long response may be uncompressed.
        for message in [frame(0, &get), frame(1, &gzip(&get))] {
            let reply = client.raw(RANGE, &GZIP, message).await;
            let (response, _) = unframed::<RangeResponse>(&reply.body);
            assert_eq!((response.kvs[0].value.len(), &reply.code[..]), (100_000, OK));
        }
        let none = RangeRequest { key: "none".into(), ..RangeRequest::default() };
        let reply = client.raw(RANGE, &GZIP, frame(1, &gzip(&none.encode_to_vec()))).await;
        assert!(unframed::<RangeResponse>(&reply.body).1);
        let grant = LeaseGrantRequest { ttl: 60, id: 7 }.encode_to_vec();
        let reply = client.raw(GRANT, &GZIP, frame(1, &gzip(&grant))).await;
        assert_eq!((&reply.code[..], &reply.message[..]), (OK, ""));
        let (response, is_compressed) = unframed::<LeaseGrantResponse>(&reply.body);
        assert_eq!((response.id, is_compressed), (7, true));
        // Other calls get no compressed response.
        let reply = client.raw(RANGE, &[("grpc-encoding", "identity")], frame(0, &get)).await;
        assert!(!reply.head.contains_key("grpc-encoding"));
        let accepts = [("grpc-accept-encoding", "gzip")];
        assert!(
            !client.raw(RANGE, &accepts, frame(0, &get)).await.head.contains_key("grpc-encoding")
        );
    });
}

#[test]
fn messages_of_a_stream_are_compressed_one_by_one() {
    with_server(async |server| {
        let mut client = server.client().await;
        let (answer, mut sends) = client.open(WATCH, &GZIP);
        let create = |key: &'static str| {
            let create = WatchCreateRequest { key: key.into(), ..WatchCreateRequest::default() };
            let union = Some(RequestUnion::CreateRequest(create));
            WatchRequest { request_union: union }.encode_to_vec()
        };
        // The messages are sent in pieces that do not match their boundaries.
        let pieces =
            [frame(1, &gzip(&create("a"))), frame(0, &create("b")), frame(1, &gzip(&create("c")))];
        for piece in pieces.concat().chunks(7) {
            sends.send_data(piece.to_vec().into(), false).unwrap();
        }
        let (head, mut body) = answer.await.unwrap().into_parts();
        assert_eq!(head.headers["grpc-encoding"], "gzip");
        let mut bytes = Vec::new();
        for id in 0..3 {
            while bytes.len() < 5 || bytes.len() < 5 + bytes[4] as usize {
                bytes.extend_from_slice(&body.data().await.unwrap().unwrap());
            }
            let (created, is_compressed) = unframed::<WatchResponse>(&bytes);
            assert_eq!((created.watch_id, created.created, is_compressed), (id, true, true));
            bytes.drain(..5 + bytes[4] as usize);
        }
    });
}

#[test]
fn what_cannot_be_unpacked_is_refused() {
    with_server(async |server| {
        let mut client = server.client().await;
        let get = RangeRequest { key: "k".into(), ..RangeRequest::default() }.encode_to_vec();
        let packed = gzip(&get);
        let unknown = "grpc: Decompressor is not installed for grpc-encoding \"zstd\"";
        let identity = "grpc: compressed flag set with identity or empty encoding";
        let format = "grpc: received unexpected payload format 2";
        let damaged = "grpc: failed to decompress the message";
        let cut = "grpc: failed to read decompressed data";
        let short = &packed[..packed.len() - 9];
        for path in [RANGE, GRANT, WATCH] {
            let zstd = &[("grpc-encoding", "zstd")][..];
            for (headers, message, code, words) in [
                (zstd, frame(0, &get), "12", unknown),
                (zstd, frame(1, &packed), "12", unknown),
                (&[][..], frame(1, &packed), "13", identity),
                (&[("grpc-encoding", "identity")][..], frame(1, &packed), "13", identity),
                (&GZIP[..], frame(2, &packed), "13", format),
                (&GZIP[..], frame(1, b"not gzip at all"), "13", damaged),
                (&GZIP[..], frame(1, b""), "13", damaged),
                (&GZIP[..], frame(1, short), "13", cut),
            ] {
                let reply = client.raw(path, headers, message).await;
                assert_eq!(reply.code, code, "{path} {}", reply.message);
                assert!(reply.message.starts_with(words), "{path} {}", reply.message);
            }
        }
    });
}

/// Returns the peak of resident memory, in bytes.
#[cfg(target_os = "linux")]
fn memory_peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

#[cfg(target_os = "linux")]
#[test]
fn a_message_is_unpacked_up_to_the_limit() {
    with_server(async |server| {
        let mut client = server.client().await;
        let words = format!("grpc: received message after decompression larger than max {LIMIT}");
        // One message is a gibibyte of zeros: a gzip file that consists of 1,024 members. The other
        // message is the shortest one above the limit.
        let mut bomb = Vec::new();
        let mebibyte = gzip(&vec![0; 1 << 20]);
        (0..1024).for_each(|_| bomb.extend_from_slice(&mebibyte));
        let before = memory_peak();
        for message in [bomb, gzip(&vec![0; LIMIT + 1])] {
            for path in [PUT, GRANT, WATCH] {
                let reply = client.raw(path, &GZIP, frame(1, &message)).await;
                assert_eq!((&reply.code[..], &reply.message[..]), ("8", &words[..]), "{path}");
            }
        }
        let more = memory_peak() - before;
        assert!(more < 100 << 20, "{more} bytes");
        // A message of exactly the limit is accepted, but its request is too large.
        let put =
            PutRequest { key: "k".into(), value: vec![0; LIMIT - 7].into(), ..Default::default() };
        let put = put.encode_to_vec();
        assert_eq!(put.len(), LIMIT);
        let reply = client.raw(PUT, &GZIP, frame(1, &gzip(&put))).await;
        assert_eq!(reply.message, "etcdserver: request is too large");
    });
}
