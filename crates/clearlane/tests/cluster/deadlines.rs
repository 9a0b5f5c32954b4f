//! Clients that send how long they wait, to a cluster that cannot answer.

use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use clearlane_proto::etcdserverpb::{LeaseGrantRequest, RangeRequest};
use h2::client::SendRequest;
use http::Request;
use prost::Message;
use tokio::net::TcpStream;

use crate::test_cluster::{TestCluster, block_on, put};

const PATIENCE: Duration = Duration::from_millis(300);
const OK: &str = "0";
const DEADLINE_EXCEEDED: &str = "4";

/// A client that sends how long it waits, and then waits for what comes back. Tonic's gives up by
/// itself.
struct Client {
    requests: SendRequest<Bytes>,
}

impl Client {
    async fn connect(lab: &TestCluster, name: &str) -> Client {
        let connection = TcpStream::connect(lab.running[name].client).await.unwrap();
        let (requests, connection) = h2::client::handshake(connection).await.unwrap();
        tokio::spawn(connection);
        Client { requests }
    }

    async fn call(&mut self, path: &str, message: &impl Message) -> String {
        let head = Request::post(format!("http://member{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-timeout", "300m")
            .body(())
            .unwrap();
        let (answer, mut body) = self.requests.send_request(head, false).unwrap();
        let mut frame = BytesMut::new();
        frame.put_u8(0);
        frame.put_u32(message.encoded_len() as u32);
        message.encode(&mut frame).unwrap();
        body.send_data(frame.freeze(), true).unwrap();
        let (head, mut body) = answer.await.unwrap().into_parts();
        let status = |head: &http::HeaderMap| {
            head.get("grpc-status").map(|status| status.to_str().unwrap().to_owned())
        };
        if let Some(status) = status(&head.headers) {
            return status;
        }
        while let Some(piece) = body.data().await {
            let length = piece.unwrap().len();
            body.flow_control().release_capacity(length).unwrap();
        }
        status(&body.trailers().await.unwrap().unwrap()).unwrap()
    }

    async fn is_late(&mut self, path: &str, message: &impl Message) {
        let begun = Instant::now();
        assert_eq!(self.call(path, message).await, DEADLINE_EXCEEDED, "{path}");
        let took = begun.elapsed();
        // Well before the time-out of a request, which is seven seconds.
        assert!(PATIENCE <= took && took < 15 * PATIENCE, "{path}: {took:?}");
    }
}

#[test]
fn a_request_ends_with_its_clients_patience() {
    let mut lab = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        let leader = lab.leader().await;
        lab.put(&leader, "k", "v").await;
        for name in lab.followers().await {
            lab.kill(&name).await;
        }
        // It goes on for a while as if it led, and then knows no leader.
        let mut client = Client::connect(&lab, &leader).await;
        let read = RangeRequest { key: "k".into(), ..RangeRequest::default() };
        for _ in 0..3 {
            client.is_late("/etcdserverpb.KV/Put", &put("k", "w")).await;
            client.is_late("/etcdserverpb.KV/Range", &read).await;
        }
        let grant = LeaseGrantRequest { ttl: 60, id: 0 };
        client.is_late("/etcdserverpb.Lease/LeaseGrant", &grant).await;
        // What needs no other member is answered.
        let old = RangeRequest { serializable: true, ..read };
        let begun = Instant::now();
        // Unless the machine has so much else to do that even this takes longer than its client
        // waits.
        while client.call("/etcdserverpb.KV/Range", &old).await != OK {
            assert!(begun.elapsed() < 100 * PATIENCE, "never answered");
        }
    });
}
