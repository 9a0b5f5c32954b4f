//! Tests of calls that exceed their deadline at each place where a call may wait.

use std::time::{Duration, Instant};

use bytes::Bytes;
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    LeaseKeepAliveRequest, PutRequest, RangeRequest, SnapshotRequest, TxnRequest,
    WatchCreateRequest, WatchRequest,
};
use clearlane_proto::v3electionpb::LeaderRequest;
use h2::client::ResponseFuture;
use prost::Message;
use tokio::time::timeout;

use crate::client::{Client, Reply, frame, reply, with_server};
use crate::default_era::{BusyReadPool, sorted};
use crate::support::op;

const PUT: &str = "/etcdserverpb.KV/Put";
const RANGE: &str = "/etcdserverpb.KV/Range";
const SNAPSHOT: &str = "/etcdserverpb.Maintenance/Snapshot";
const WAITS: Duration = Duration::from_millis(300);
const HEADERS: [(&str, &str); 1] = [("grpc-timeout", "300m")];
/// The headers of calls that complete in time.
const PATIENT: [(&str, &str); 1] = [("grpc-timeout", "60S")];

fn is_late(begun: Instant, reply: &Reply, about: &str) {
    let took = begun.elapsed();
    assert_eq!(
        (&reply.code[..], &reply.message[..]),
        ("4", "context deadline exceeded"),
        "{about}"
    );
    assert!(WAITS <= took && took < 100 * WAITS, "{about}: {took:?}");
}

#[test]
fn a_request_that_is_still_coming_ends_in_time() {
    with_server(async |server| {
        let mut client = server.client().await;
        for path in [PUT, RANGE, "/etcdserverpb.Lease/LeaseGrant"] {
            for begins in [&b""[..], &b"\0\0\0"[..], &b"\0\0\0\0\x09abc"[..]] {
                let begun = Instant::now();
                let (answer, mut sends) = client.open(path, &HEADERS);
                sends.send_data(begins.to_vec().into(), false).unwrap();
                is_late(begun, &reply(answer).await, path);
            }
        }
    });
}

#[test]
fn a_read_that_waits_for_the_pool_ends_in_time() {
    with_server(async |server| {
        let mut client = server.client().await;
        let put = PutRequest { key: "k".into(), ..PutRequest::default() };
        assert_eq!(client.call(PUT, &[], &put).await.code, "0");
        let busy = BusyReadPool::of(server);
        let begun = Instant::now();
        is_late(begun, &client.call(RANGE, &HEADERS, &sorted()).await, "range");
        busy.release().await;
        assert_eq!(client.call(RANGE, &PATIENT, &sorted()).await.code, "0");
    });
}

#[test]
fn a_stream_ends_when_its_time_is_over() {
    with_server(async |server| {
        let mut client = server.client().await;
        let create = WatchCreateRequest { key: "k".into(), ..WatchCreateRequest::default() };
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let leader = LeaderRequest { name: "none".into() };
        let cases = [
            ("/etcdserverpb.Watch/Watch", create.encode_to_vec()),
            ("/etcdserverpb.Lease/LeaseKeepAlive", LeaseKeepAliveRequest { id: 7 }.encode_to_vec()),
            ("/v3electionpb.Election/Observe", leader.encode_to_vec()),
        ];
        for (path, message) in cases {
            let begun = Instant::now();
            let (answer, mut sends) = client.open(path, &HEADERS);
            sends.send_data(frame(0, &message), false).unwrap();
            let reply = reply(answer).await;
            is_late(begun, &reply, path);
        }
        // A call that completes in time is not affected.
        let get = RangeRequest { key: "k".into(), ..RangeRequest::default() };
        for path in [RANGE, "/etcdserverpb.KV/RangeStream"] {
            assert_eq!(client.call(path, &PATIENT, &get).await.code, "0");
        }
    });
}

/// The client reads the first part of a large response before the deadline, and tries to read the
/// rest after the deadline. The server must reset the stream.
#[test]
fn a_deadline_within_a_message_resets_the_stream() {
    with_server(async |server| {
        let mut client = server.client().await;
        let value = Bytes::from(vec![7; 1 << 20]);
        for key in 0..20_u8 {
            let put = PutRequest {
                key: vec![b'k', key].into(),
                value: value.clone(),
                ..PutRequest::default()
            };
            assert_eq!(client.call(PUT, &[], &put).await.code, "0");
        }
        let all = RangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() };
        let begun = Instant::now();
        // The response exceeds the client's window of 16 MiB.
        let (answer, mut sends) = client.open(RANGE, &HEADERS);
        sends.send_data(frame(0, &all.encode_to_vec()), true).unwrap();
        let mut body = answer.await.unwrap().into_body();
        let first = body.data().await.unwrap().unwrap();
        tokio::time::sleep((WAITS + Duration::from_millis(50)).saturating_sub(begun.elapsed()))
            .await;
        body.flow_control().release_capacity(first.len()).unwrap();
        let (mut received, mut end) = (first.len(), None);
        while end.is_none() {
            match body.data().await {
                Some(Ok(piece)) => {
                    received += piece.len();
                    body.flow_control().release_capacity(piece.len()).unwrap();
                }
                Some(Err(error)) => end = Some(error),
                None => panic!("trailers after {received} bytes: {:?}", body.trailers().await),
            }
        }
        assert_eq!(end.and_then(|error| error.reason()), Some(h2::Reason::CANCEL));
        assert!(received < 20 << 20, "{received} bytes");
    });
}

/// While the client gives the server no window, hyper does not poll the body of a response. So the
/// body cannot check the deadline, and the server must reset the stream in another way.
#[test]
fn a_client_that_takes_nothing_is_reset_at_its_deadline() {
    with_server(async |server| {
        let mut client = server.client().await;
        let value = Bytes::from(vec![7; 1 << 20]);
        for key in 0..4_u8 {
            let key = vec![b'k', key].into();
            let put = PutRequest { key, value: value.clone(), ..PutRequest::default() };
            assert_eq!(client.call(PUT, &[], &put).await.code, "0");
        }
        let all = RangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() };
        let ops = vec![op(Request::RequestRange(all.clone()))];
        let txn = TxnRequest { success: ops, ..TxnRequest::default() };
        let all = all.encode_to_vec();
        let mut calls = vec![
            (RANGE, all.clone()),
            ("/etcdserverpb.KV/Txn", txn.encode_to_vec()),
            ("/etcdserverpb.KV/RangeStream", all),
        ];
        // More snapshots than are sent at the same time, so that some of them wait.
        calls.extend(vec![(SNAPSHOT, Vec::new()); 6]);
        for window in [0, 1, 65_535] {
            let mut lazy = Client::connect_with_window(server.server.address(), window).await;
            let (begun, mut resets) = (Instant::now(), 0);
            let open = |(path, message): &(&'static str, Vec<u8>)| {
                let (answer, mut sends) = lazy.open(path, &HEADERS);
                sends.send_data(frame(0, message), true).unwrap();
                (*path, answer)
            };
            for (path, answer) in calls.iter().map(open).collect::<Vec<_>>() {
                let about = format!("{path}, window {window}");
                let left = Duration::from_secs(20).saturating_sub(begun.elapsed());
                match timeout(left, end_without_capacity(answer)).await {
                    Ok(Ok(code)) => assert_eq!(code, "4", "{about}"),
                    Ok(Err(reason)) => {
                        assert_eq!(reason, Some(h2::Reason::CANCEL), "{about}");
                        resets += 1;
                    }
                    // A part of a message is blocked by the window, so the status after it cannot
                    // be sent.
                    Err(_) => assert!(window > 0, "{about}"),
                }
                assert!(begun.elapsed() >= WAITS, "{about}: {:?}", begun.elapsed());
            }
            assert!(resets > 0, "window {window}: no stream was reset");
        }
        // Each of the ended calls has released its permit.
        assert_eq!(client.call(SNAPSHOT, &PATIENT, &SnapshotRequest {}).await.code, "0");
    });
}

/// Reads a response without sending window updates. Returns the gRPC status if the server has sent
/// one, or the reason of the reset. The server can send a status only if no part of the message was
/// ready at the deadline.
async fn end_without_capacity(answer: ResponseFuture) -> Result<String, Option<h2::Reason>> {
    let (head, mut body) = answer.await.map_err(|error| error.reason())?.into_parts();
    while let Some(piece) = body.data().await {
        piece.map_err(|error| error.reason())?;
    }
    let trailers = body.trailers().await.map_err(|error| error.reason())?.unwrap_or_default();
    let code = head.headers.get("grpc-status").or(trailers.get("grpc-status")).unwrap();
    Ok(code.to_str().unwrap().to_owned())
}
