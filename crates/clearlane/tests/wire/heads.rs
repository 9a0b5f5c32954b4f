//! Tests of paths, content types, and long heads.

use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    RangeRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};
use http::StatusCode;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{frame, unframed, with_server};

const RANGE: &str = "/etcdserverpb.KV/Range";
const OK: &str = "0";
const INVALID_ARGUMENT: &str = "3";
const UNIMPLEMENTED: &str = "12";

fn get() -> RangeRequest {
    RangeRequest { key: "k".into(), ..RangeRequest::default() }
}

#[test]
fn an_unknown_method_is_named() {
    with_server(async |server| {
        let mut client = server.client().await;
        for (path, words) in [
            ("/etcdserverpb.KV/Foo", "unknown method Foo for service etcdserverpb.KV"),
            ("/etcdserverpb.Watch/", "unknown method  for service etcdserverpb.Watch"),
            ("/grpc.health.v1.Health/Foo", "unknown method Foo for service grpc.health.v1.Health"),
            ("/foo.Bar/Baz", "unknown service foo.Bar"),
            ("/etcdserverpb.KV/Range/More", "unknown service etcdserverpb.KV/Range"),
            ("//Range", "unknown service "),
            ("/Range", "malformed method name: \"/Range\""),
            ("/", "malformed method name: \"/\""),
        ] {
            let reply = client.call(path, &[], &get()).await;
            assert_eq!(reply.http, StatusCode::OK, "{path}");
            assert_eq!((&reply.code[..], &reply.message[..]), (UNIMPLEMENTED, words), "{path}");
        }
        assert_eq!(client.call(RANGE, &[], &get()).await.code, OK);
    });
}

#[test]
fn a_content_type_that_only_begins_like_grpcs_is_another() {
    with_server(async |server| {
        let mut client = server.client().await;
        for kind in ["application/grpc", "application/grpc+proto", "application/grpc;charset=x"] {
            let reply = client.call(RANGE, &[("content-type", kind)], &get()).await;
            assert_eq!(
                (reply.http, &reply.code[..]),
                (StatusCode::OK, OK),
                "{kind}: {}",
                reply.message
            );
        }
        for kind in ["application/grpc-web", "application/grpc-web+proto", "application/grpcs"] {
            for path in [RANGE, "/etcdserverpb.Lease/LeaseLeases", "/foo.Bar/Baz"] {
                let reply = client.call(path, &[("content-type", kind)], &get()).await;
                assert_eq!(reply.http, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{kind} {path}");
                let words = format!("invalid gRPC request content-type \"{kind}\"");
                assert_eq!((&reply.code[..], reply.message), (INVALID_ARGUMENT, words), "{path}");
                assert_eq!(reply.head["content-type"], "application/grpc");
            }
        }
    });
}

#[test]
fn a_head_may_be_long() {
    with_server(async |server| {
        let mut client = server.client().await;
        let long = "x".repeat(100_000);
        let headers = [("some", &long[..])];
        assert_eq!(client.call(RANGE, &headers, &get()).await.code, OK);
        let many: Vec<String> = (0..1000).map(|number| format!("h{number}")).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|name| (&name[..], &long[..100])).collect();
        assert_eq!(client.call(RANGE, &many, &get()).await.code, OK);
        let (answer, mut sends) = client.open("/etcdserverpb.Watch/Watch", &headers);
        let create = WatchCreateRequest { key: "k".into(), ..WatchCreateRequest::default() };
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        sends.send_data(frame(0, &create.encode_to_vec()), false).unwrap();
        let mut body = answer.await.unwrap().into_body();
        let (created, _) = unframed::<WatchResponse>(&body.data().await.unwrap().unwrap());
        assert!(created.created && !created.canceled);
        let ask = RequestUnion::ProgressRequest(WatchProgressRequest {});
        let ask = WatchRequest { request_union: Some(ask) };
        sends.send_data(frame(0, &ask.encode_to_vec()), false).unwrap();
        let (progress, _) = unframed::<WatchResponse>(&body.data().await.unwrap().unwrap());
        assert_eq!(progress.watch_id, -1);
    });
}

#[test]
fn a_head_that_is_too_long_ends_its_call_only() {
    with_server(async |server| {
        let mut client = server.client().await;
        let long = "x".repeat(1 << 20);
        let reply = client.call(RANGE, &[("some", &long)], &get()).await;
        assert_eq!(reply.http, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        assert_eq!(client.call(RANGE, &[], &get()).await.code, OK);
    });
}

#[test]
fn over_http_1_a_head_may_be_long_and_nothing_is_grpc() {
    with_server(async |server| {
        let ask = async |request: &str, header: &str| {
            let mut connection = TcpStream::connect(server.server.address()).await.unwrap();
            let head = format!("{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
            let head = format!("{head}{header}\r\n\r\n");
            connection.write_all(head.as_bytes()).await.unwrap();
            let mut answer = String::new();
            connection.read_to_string(&mut answer).await.unwrap();
            answer.split(' ').nth(1).unwrap().to_owned()
        };
        let long = "x".repeat(1_000_000);
        assert_eq!(ask("GET /version", &format!("Some: {long}")).await, "200");
        let grpc = "Content-Type: application/grpc\r\nContent-Length: 0";
        assert_eq!(ask(&format!("POST {RANGE}"), grpc).await, "404");
    });
}
