//! Tests of leases, and of the notification when a lease has ended.

use std::time::{Duration, Instant};

use clearlane_client::{Error, LeaseEnd, Put};
use clearlane_test_server::{TestCluster, TestServer};

use crate::with_timeout;

#[tokio::test]
async fn a_lease_has_keys_and_they_end_with_it() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().await.unwrap();
    let lease = client.lease_grant(Duration::from_secs(60)).await.unwrap();
    assert_eq!(lease.ttl, Duration::from_secs(60));
    client.put_with(Put::new("a", "1").lease(lease.id)).await.unwrap();
    let response = client.lease_time_to_live(lease.id, true).await.unwrap();
    assert_eq!((response.granted_ttl, &response.keys[..]), (lease.ttl, &["a".into()][..]));
    assert!(response.remaining <= lease.ttl);
    assert_eq!(client.leases().await.unwrap(), [lease.id]);
    client.lease_grant_as(7, Duration::from_secs(60)).await.unwrap();
    let again = client.lease_grant_as(7, Duration::from_secs(60)).await;
    assert!(matches!(again, Err(Error::LeaseExists)), "{again:?}");
    client.lease_revoke(lease.id).await.unwrap();
    assert_eq!(client.get("a").await.unwrap().count, 0);
    let gone = client.lease_time_to_live(lease.id, false).await;
    assert!(matches!(gone, Err(Error::LeaseNotFound)), "{gone:?}");
    assert!(matches!(client.lease_revoke(lease.id).await, Err(Error::LeaseNotFound)));
    assert!(matches!(client.keep_alive(lease.id).await, Err(Error::LeaseNotFound)));
}

#[tokio::test]
async fn the_keeper_hears_that_a_lease_was_revoked() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().await.unwrap();
    // The next keep-alive request is sent after a third of this TTL. It fails, because the lease is
    // revoked before that time.
    let lease = client.lease_grant(Duration::from_secs(15)).await.unwrap();
    let mut kept = client.keep_alive(lease.id).await.unwrap();
    assert!(kept.is_alive() && kept.time_left() <= kept.ttl() && kept.id() == lease.id);
    client.lease_revoke(lease.id).await.unwrap();
    assert_eq!(with_timeout(kept.ended()).await, LeaseEnd::NotFound);
    assert!(!kept.is_alive());
}

#[tokio::test]
async fn the_keeper_hears_in_time_that_nobody_can_be_reached() {
    let mut server = TestServer::start().await.unwrap();
    let client = server.client().await.unwrap();
    let lease = client.lease_grant(Duration::from_secs(2)).await.unwrap();
    let before = Instant::now();
    let mut kept = client.keep_alive(lease.id).await.unwrap();
    server.stop().await.unwrap();
    assert_eq!(with_timeout(kept.ended()).await, LeaseEnd::Unreachable);
    // The client reports the end only after the whole TTL, because until then another keep-alive
    // request could have succeeded.
    assert!(before.elapsed() >= lease.ttl, "{:?}", before.elapsed());
}

#[tokio::test]
async fn a_lease_is_kept_alive_while_each_member_fails_in_turn() {
    let mut cluster = TestCluster::start(3).await.unwrap();
    let client = cluster.client().await.unwrap();
    // The TTL is longer than an election on a busy machine.
    let lease = client.lease_grant(Duration::from_secs(10)).await.unwrap();
    client.put_with(Put::new("a", "1").lease(lease.id)).await.unwrap();
    let kept = client.keep_alive(lease.id).await.unwrap();
    let begin = Instant::now();
    for round in 0.. {
        let member = round % 3;
        if round >= 6 && member == 0 && begin.elapsed() > lease.ttl {
            break;
        }
        cluster.stop(member).await.unwrap();
        cluster.leader().await.unwrap();
        // All rounds together take longer than the TTL.
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert!(kept.is_alive());
        cluster.restart(member).await.unwrap();
    }
    assert_eq!(client.get("a").await.unwrap().count, 1);
}
