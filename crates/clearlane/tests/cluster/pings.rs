//! Tests of clients that send pings more often than allowed.

use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::{Ping, Reason};
use tokio::net::TcpStream;

use crate::test_cluster::{TestCluster, block_on};

/// A time that is longer than any response takes, and shorter than the pause that clients must keep
/// between pings.
const A_WHILE: Duration = Duration::from_secs(3);

#[test]
fn a_client_that_pings_too_often_is_disconnected_with_the_reason() {
    let cluster = TestCluster::started(&["a"]);
    block_on(async {
        cluster.leader().await;
        let connection = TcpStream::connect(cluster.running["a"].client).await.unwrap();
        let handshake = h2::client::handshake(connection).await.unwrap();
        let (_requests, mut connection): (h2::client::SendRequest<Bytes>, _) = handshake;
        let mut pings = connection.ping_pong().unwrap();
        let ended = tokio::spawn(connection);
        let begun = Instant::now();
        let mut answered = 0;
        while pings.ping(Ping::opaque()).await.is_ok() {
            answered += 1;
        }
        assert!(begun.elapsed() < A_WHILE);
        // The first ping is never too early, and the next two are tolerated.
        assert_eq!(answered, 3);
        let error = ended.await.unwrap().unwrap_err();
        assert!(error.is_go_away() && error.is_remote(), "{error:?}");
        assert_eq!(error.reason(), Some(Reason::ENHANCE_YOUR_CALM));
        assert!(format!("{error:?}").contains("too_many_pings"), "{error:?}");
        // Other clients are not affected.
        cluster.put("a", "k", "v").await;
    });
}
