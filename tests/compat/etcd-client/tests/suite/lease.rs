//! Leases: granting, listing, reading the remaining TTL, keeping alive, revoking, and expiring.

use std::time::{Duration, Instant};

use clearlane_compat_etcd_client::{Cluster, assert_refused, next, soon, until};
use etcd_client::{
    Client, Error, EventType, LeaseGrantOptions, LeaseTimeToLiveOptions, PutOptions,
};
use tokio_stream::StreamExt;
use tonic::Code;

fn with_id(id: i64) -> Option<LeaseGrantOptions> {
    Some(LeaseGrantOptions::new().with_id(id))
}

async fn put(client: &mut Client, key: &str, lease: i64) {
    client.put(key, "", Some(PutOptions::new().with_lease(lease))).await.unwrap();
}

async fn keys(client: &mut Client, lease: i64) -> Vec<String> {
    let options = Some(LeaseTimeToLiveOptions::new().with_keys());
    let answer = client.lease_time_to_live(lease, options).await.unwrap();
    let mut keys: Vec<_> =
        answer.keys().iter().map(|key| String::from_utf8(key.clone()).unwrap()).collect();
    keys.sort();
    keys
}

#[tokio::test]
async fn granted_and_listed() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    let mut grant = client.lease_grant(600, None).await.unwrap();
    assert_eq!((grant.ttl(), grant.error()), (600, ""));
    assert!(grant.id() > 0);
    assert_eq!(grant.take_header().unwrap().revision(), 1);
    let named = client.lease_client().grant(60, with_id(77)).await.unwrap();
    assert_eq!((named.id(), named.ttl()), (77, 60));
    let list = client.leases().await.unwrap();
    assert_eq!(list.header().unwrap().revision(), 1);
    let mut ids: Vec<_> = list.leases().iter().map(etcd_client::LeaseStatus::id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [77, grant.id()]);
}

#[tokio::test]
async fn what_cannot_be_granted() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    client.lease_grant(60, with_id(77)).await.unwrap();
    let twice = client.lease_grant(60, with_id(77)).await;
    assert_refused(twice, Code::FailedPrecondition, "etcdserver: lease already exists");
    let large = client.lease_grant(9_000_000_001, None).await;
    assert_refused(large, Code::OutOfRange, "etcdserver: too large lease TTL");
    // The server raises a TTL that is too short for the members to agree on the expiry.
    let short = client.lease_grant(1, None).await.unwrap();
    assert_eq!(short.ttl(), 2);
}

#[tokio::test]
async fn asked_how_long() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    client.lease_grant(600, with_id(7)).await.unwrap();
    put(&mut client, "b", 7).await;
    put(&mut client, "a", 7).await;
    let mut answer = client.lease_time_to_live(7, None).await.unwrap();
    assert_eq!((answer.id(), answer.granted_ttl(), answer.keys().len()), (7, 600, 0));
    assert!((590..=600).contains(&answer.ttl()), "{answer:?}");
    assert_eq!(answer.take_header().unwrap().revision(), 3);
    assert_eq!(keys(&mut client, 7).await, ["a", "b"]);
    let unknown = client.lease_client().time_to_live(8, None).await.unwrap();
    assert_eq!((unknown.id(), unknown.ttl(), unknown.granted_ttl()), (8, -1, 0));
}

#[tokio::test]
async fn a_key_has_one_lease_at_most() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    for id in [7, 8] {
        client.lease_grant(600, with_id(id)).await.unwrap();
    }
    put(&mut client, "moves", 7).await;
    put(&mut client, "moves", 8).await;
    put(&mut client, "leaves", 7).await;
    client.put("leaves", "", None).await.unwrap();
    put(&mut client, "goes", 8).await;
    client.delete("goes", None).await.unwrap();
    assert_eq!(keys(&mut client, 7).await, [""; 0]);
    assert_eq!(keys(&mut client, 8).await, ["moves"]);
    client.lease_revoke(7).await.unwrap();
    assert_eq!(client.get("leaves", None).await.unwrap().count(), 1);
}

#[tokio::test]
async fn revoked_with_its_keys() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    client.lease_grant(600, with_id(7)).await.unwrap();
    put(&mut client, "a", 7).await;
    put(&mut client, "b", 7).await;
    let mut watch = client.watch("a", None).await.unwrap();
    assert!(next(&mut watch).await.created());
    let revoked = client.lease_revoke(7).await.unwrap();
    assert_eq!(revoked.header().unwrap().revision(), 4);
    assert_eq!(next(&mut watch).await.events()[0].event_type(), EventType::Delete);
    assert_eq!(client.get("b", None).await.unwrap().count(), 0);
    let words = "etcdserver: requested lease not found";
    assert_refused(client.lease_revoke(7).await, Code::NotFound, words);
    assert_refused(client.lease_client().revoke(1).await, Code::NotFound, words);
    assert!(client.leases().await.unwrap().leases().is_empty());
}

#[tokio::test]
async fn kept_alive_on_request() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    client.lease_grant(600, with_id(7)).await.unwrap();
    let (mut keeper, mut stream) = client.lease_keep_alive(7).await.unwrap();
    assert_eq!(keeper.id(), 7);
    for _ in 0..3 {
        keeper.keep_alive().await.unwrap();
        let mut answer = soon("an answer", stream.message()).await.unwrap().unwrap();
        assert_eq!((answer.id(), answer.ttl()), (7, 600));
        assert_eq!(answer.take_header().unwrap().revision(), 1);
    }
    keeper.keep_alive().await.unwrap();
    assert_eq!(soon("an item", stream.next()).await.unwrap().unwrap().ttl(), 600);
    // After the lease has been revoked, the response to a keep-alive has TTL 0.
    client.lease_revoke(7).await.unwrap();
    keeper.keep_alive().await.unwrap();
    let answer = soon("an answer", stream.message()).await.unwrap().unwrap();
    assert_eq!((answer.id(), answer.ttl()), (7, 0));
    let unknown = client.lease_client().keep_alive(8).await;
    assert!(
        matches!(unknown, Err(Error::LeaseKeepAliveError(words)) if words == "lease not found")
    );
}

#[tokio::test]
async fn over_when_nobody_keeps_it() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    client.lease_grant(7, with_id(7)).await.unwrap();
    client.lease_grant(10, with_id(8)).await.unwrap();
    put(&mut client, "lost", 7).await;
    put(&mut client, "kept", 8).await;
    let mut watch = client.watch("lost", None).await.unwrap();
    assert!(next(&mut watch).await.created());
    let (mut keeper, mut stream) = client.lease_keep_alive(8).await.unwrap();
    // Longer than the TTL, so the lease would have expired without keep-alives.
    let enough = Instant::now() + Duration::from_secs(12);
    while Instant::now() < enough {
        keeper.keep_alive().await.unwrap();
        assert_eq!(stream.message().await.unwrap().unwrap().ttl(), 10);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(client.get("kept", None).await.unwrap().count(), 1);
    assert_eq!(next(&mut watch).await.events()[0].event_type(), EventType::Delete);
    assert_eq!(client.lease_time_to_live(7, None).await.unwrap().ttl(), -1);
    // Stop keeping this lease alive: now it expires as well.
    until("the second lease is over", || {
        let mut client = client.clone();
        async move { (client.get("kept", None).await.unwrap().count() == 0).then_some(()) }
    })
    .await;
}

#[tokio::test]
async fn kept_over_a_restart() {
    let mut cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    client.lease_grant(600, with_id(7)).await.unwrap();
    put(&mut client, "key", 7).await;
    cluster.stop(0);
    cluster.start(0).await;
    let mut client = cluster.client().await;
    assert_eq!(client.get("key", None).await.unwrap().kvs()[0].lease(), 7);
    assert_eq!(keys(&mut client, 7).await, ["key"]);
    assert_eq!(client.lease_time_to_live(7, None).await.unwrap().granted_ttl(), 600);
}
