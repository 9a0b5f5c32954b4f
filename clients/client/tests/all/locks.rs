//! Tests of locks and elections.

use std::time::Duration;

use clearlane_client::{Client, Error, Put, Txn};
use clearlane_test_server::{TestCluster, TestServer};

use crate::with_timeout;

async fn lease(client: &Client) -> i64 {
    client.lease_grant(Duration::from_secs(60)).await.unwrap().id
}

#[tokio::test]
async fn a_lock_has_one_holder() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().await.unwrap();
    let (mine, yours) = (lease(&client).await, lease(&client).await);
    let lock = client.lock("door", mine).await.unwrap();
    let again = client.lock("door", mine).await.unwrap();
    assert_eq!(lock.key(), again.key(), "the holder of a lock gets it again");
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.lock("door", yours).await }
    });
    let guarded = Txn::new().when(lock.is_held()).then(Put::new("inside", "me"));
    assert!(client.txn(guarded.clone()).await.unwrap().succeeded);
    assert!(!waiting.is_finished());
    lock.unlock().await.unwrap();
    let theirs = with_timeout(waiting).await.unwrap().unwrap();
    assert!(!client.txn(guarded).await.unwrap().succeeded);
    assert_ne!(theirs.key(), again.key());
    assert!(matches!(client.lock("door", 0).await, Err(Error::InvalidArgument(_))));
}

#[tokio::test]
async fn an_election_has_a_leader_who_speaks_and_goes() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().await.unwrap();
    assert_eq!(client.leader("boss").await.unwrap(), None);
    let mut observe = client.observe("boss");
    let (mine, yours) = (lease(&client).await, lease(&client).await);
    let first = client.campaign("boss", mine, "me").await.unwrap();
    assert_eq!(with_timeout(observe.next()).await.unwrap().value, "me");
    first.proclaim("still me").await.unwrap();
    assert_eq!(with_timeout(observe.next()).await.unwrap().value, "still me");
    assert_eq!(client.leader("boss").await.unwrap().unwrap().value, "still me");
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.campaign("boss", yours, "you").await }
    });
    let was_first = first.clone();
    first.resign().await.unwrap();
    let second = with_timeout(waiting).await.unwrap().unwrap();
    assert_eq!(with_timeout(observe.next()).await.unwrap().value, "you");
    assert!(matches!(was_first.proclaim("me?").await, Err(Error::NotElected)));
    let held = |leadership: &clearlane_client::Leadership| Txn::new().when(leadership.is_held());
    assert!(!client.txn(held(&was_first)).await.unwrap().succeeded);
    assert!(client.txn(held(&second)).await.unwrap().succeeded);
}

/// Revokes a lease. Tries again until the lease certainly does not exist.
async fn revoke(client: &Client, lease: i64) {
    loop {
        match client.lease_revoke(lease).await {
            Ok(()) | Err(Error::LeaseNotFound) => return,
            Err(Error::OutcomeUnknown(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn who_waits_for_a_lock_is_told_when_his_member_fails() {
    let mut cluster = TestCluster::start(3).await.unwrap();
    let client = cluster.client().await.unwrap();
    let mine = lease(&client).await;
    let lock = client.lock("door", mine).await.unwrap();
    let mut observe = client.observe("boss");
    client.campaign("boss", mine, "me").await.unwrap();
    assert_eq!(with_timeout(observe.next()).await.unwrap().value, "me");
    let mut leases = Vec::new();
    for _ in 0..10 {
        leases.push(lease(&client).await);
    }
    let waiting = tokio::spawn({
        let client = client.clone();
        async move {
            for yours in leases {
                match client.lock("door", yours).await {
                    // It is unknown whether the request has a place in the queue. Revoking the
                    // lease removes the place.
                    Err(Error::OutcomeUnknown(_)) => revoke(&client, yours).await,
                    done => return done,
                }
            }
            panic!("three members have failed more often than that")
        }
    });
    for member in 0..3 {
        cluster.stop(member).await.unwrap();
        cluster.leader().await.unwrap();
        cluster.restart(member).await.unwrap();
    }
    if waiting.is_finished() {
        panic!("it has ended early: {:?}", waiting.await);
    }
    lock.unlock().await.unwrap();
    with_timeout(waiting).await.unwrap().unwrap();
    let leader = client.campaign("boss", mine, "me again").await.unwrap();
    leader.proclaim("and again").await.unwrap();
    // The value "me", which was observed above, is not reported again, although streams were
    // reopened.
    let mut said = Vec::new();
    while said.last().is_none_or(|last| last != "and again") {
        said.push(with_timeout(observe.next()).await.unwrap().value);
    }
    assert!(said.iter().all(|value| value != "me"), "{said:?}");
}
