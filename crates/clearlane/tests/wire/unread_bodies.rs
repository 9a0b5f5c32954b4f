//! Tests of requests over HTTP/2 whose response does not depend on their body.

use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::client::{Client, Reply, reply, with_server};

const TEXT: [(&str, &str); 1] = [("content-type", "text/plain")];
const UNKNOWN_ENCODING: [(&str, &str); 1] = [("grpc-encoding", "br")];
type Headers = &'static [(&'static str, &'static str)];
/// Paths and headers of requests, with the status of their responses.
const REFUSED: [(&str, Headers, u16); 6] = [
    ("/nosuch", &TEXT, 404),
    ("/v3/nosuch", &TEXT, 404),
    ("/health", &TEXT, 405),
    ("/etcdserverpb.KV/Nosuch", &[], 200),
    ("/etcdserverpb.KV/Put", &[("content-type", "application/grpcs")], 415),
    ("/etcdserverpb.Cluster/MemberList", &UNKNOWN_ENCODING, 200),
];

async fn health(client: &mut Client) -> Reply {
    let (answer, mut sends) = client.open("/health", &TEXT);
    sends.send_data(Bytes::new(), true).unwrap();
    reply(answer).await
}

#[test]
fn a_response_waits_for_the_rest_of_its_request() {
    with_server(async |server| {
        let mut client = server.client().await;
        for (path, headers, status) in REFUSED {
            let (answer, mut sends) = client.open(path, headers);
            for _ in 0..4 {
                // If the response had been sent too early, it would have reset the stream, and the
                // next piece could not be sent.
                health(&mut client).await;
                sends.send_data(Bytes::from_static(&[b'{'; 16 << 10]), false).expect(path);
            }
            health(&mut client).await;
            sends.send_data(Bytes::new(), true).expect(path);
            let reply = reply(answer).await;
            assert_eq!(reply.http.as_u16(), status, "{path}: {}", reply.message);
        }
    });
}

#[test]
fn a_response_does_not_wait_for_a_long_rest_or_for_long() {
    with_server(async |server| {
        let mut client = server.client().await;
        for (path, headers, status) in REFUSED {
            for length in [1, (64 << 10) + 1] {
                let begin = Instant::now();
                let (answer, mut sends) = client.open(path, headers);
                sends.send_data(vec![b'{'; length].into(), false).unwrap();
                let reply = reply(answer).await;
                assert_eq!(reply.http.as_u16(), status, "{path}");
                let waited = begin.elapsed() >= Duration::from_secs(1);
                assert!(length > 1 || waited, "{path}: {:?}", begin.elapsed());
            }
        }
    });
}
