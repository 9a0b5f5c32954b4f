//! Locks: one holder, a queue of waiting clients, and leases that release the lock of a dead
//! client.

use std::time::Duration;

use clearlane_compat_etcd_client::{Cluster, assert_refused, soon, until};
use etcd_client::{
    Client, Compare, CompareOp, Error, GetOptions, LeaseGrantOptions, LockOptions, Txn, TxnOp,
};
use tonic::Code;

async fn lease(client: &mut Client, id: i64) -> Option<LockOptions> {
    let grant = LeaseGrantOptions::new().with_id(id);
    client.lease_grant(600, Some(grant)).await.unwrap();
    Some(LockOptions::new().with_lease(id))
}

/// Waits until the queue has `count` entries, including the holder.
async fn queue_of(client: &Client, count: i64) {
    until("the queue is as long as it should be", || {
        let mut client = client.clone();
        let options = GetOptions::new().with_prefix().with_count_only();
        async move {
            let found = client.get("name/", Some(options)).await.unwrap().count();
            (found == count).then_some(())
        }
    })
    .await;
}

#[tokio::test]
async fn held_and_let_go() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    let mut held = client.lock("name", None).await.unwrap();
    assert_eq!(held.take_header().unwrap().revision(), 2);
    let key = held.key().to_vec();
    // The key ends with the ID of the lease that the server granted for it.
    let id = client.leases().await.unwrap().leases()[0].id();
    assert_eq!(key, format!("name/{id:x}").into_bytes());
    let kv = client.get(key.clone(), None).await.unwrap().take_kvs().remove(0);
    assert_eq!((kv.lease(), kv.value(), kv.create_revision()), (id, &b""[..], 2));
    assert_eq!(client.lease_time_to_live(id, None).await.unwrap().granted_ttl(), 60);

    let let_go = client.unlock(key.clone()).await.unwrap();
    assert_eq!(let_go.header().unwrap().revision(), 3);
    assert_eq!(client.get(key.clone(), None).await.unwrap().count(), 0);
    // Unlocking a key that no longer exists succeeds.
    client.lock_client().unlock(key).await.unwrap();
}

#[tokio::test]
async fn those_behind_wait_in_order() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    let options = lease(&mut client, 1).await;
    let first = client.lock("name", options).await.unwrap();
    assert_eq!(first.key(), b"name/1");
    let mut waiting = Vec::new();
    for id in [0x20, 0x30] {
        let options = lease(&mut client, id).await;
        let mut client = client.clone();
        let lock = async move { client.lock("name", options).await.unwrap().key().to_vec() };
        waiting.push(tokio::spawn(lock));
        queue_of(&cluster.client().await, i64::try_from(waiting.len()).unwrap() + 1).await;
    }
    let [second, third] = <[_; 2]>::try_from(waiting).unwrap();
    assert!(!second.is_finished() && !third.is_finished());
    client.unlock(first.key()).await.unwrap();
    assert_eq!(soon("the second", second).await.unwrap(), b"name/20");
    assert!(!third.is_finished());
    client.unlock("name/20").await.unwrap();
    assert_eq!(soon("the third", third).await.unwrap(), b"name/30");
}

#[tokio::test]
async fn the_holder_may_ask_again() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    let options = lease(&mut client, 1).await;
    let first = client.lock("name", options.clone()).await.unwrap();
    let again = client.lock("name", options).await.unwrap();
    assert_eq!(first.key(), again.key());
    assert_eq!(client.get("name/1", None).await.unwrap().kvs()[0].create_revision(), 2);
}

#[tokio::test]
async fn a_lease_that_ends_lets_go() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    let options = lease(&mut client, 1).await;
    client.lock("name", options).await.unwrap();
    let second = {
        let (options, mut client) = (lease(&mut client, 2).await, client.clone());
        tokio::spawn(async move { client.lock("name", options).await.unwrap().key().to_vec() })
    };
    queue_of(&client, 2).await;
    client.lease_revoke(1).await.unwrap();
    assert_eq!(soon("the second", second).await.unwrap(), b"name/2");
    let unknown = Some(LockOptions::new().with_lease(3));
    let refused = client.lock("name", unknown).await;
    assert_refused(refused, Code::Unknown, "etcdserver: requested lease not found");
}

#[tokio::test]
async fn who_gives_up_leaves_the_queue() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    let options = lease(&mut client, 1).await;
    client.lock("name", options).await.unwrap();
    let options = lease(&mut client, 2).await;
    let mut second = cluster.client().await;
    let waiting = tokio::spawn(async move { second.lock("name", options).await.map(|_| ()) });
    queue_of(&client, 2).await;
    waiting.abort();
    queue_of(&client, 1).await;
    assert_eq!(client.get("name/2", None).await.unwrap().count(), 0);
}

#[tokio::test]
async fn the_key_guards_what_is_done() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    let options = lease(&mut client, 1).await;
    let held = client.lock("name", options).await.unwrap();
    let guarded = Txn::new()
        .when([Compare::create_revision(held.key(), CompareOp::Greater, 0)])
        .and_then([TxnOp::put("guarded", "1", None)]);
    assert!(client.txn(guarded.clone()).await.unwrap().succeeded());
    client.unlock(held.key()).await.unwrap();
    assert!(!client.txn(guarded).await.unwrap().succeeded());
}

#[tokio::test]
async fn nobody_waits_longer_than_he_wants() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    client.lock("name", None).await.unwrap();
    let options = etcd_client::ConnectOptions::new().with_timeout(Duration::from_millis(300));
    let mut hasty = cluster.client_with(options).await;
    let refused = hasty.lock("name", None).await;
    assert!(matches!(&refused, Err(Error::GRpcStatus(_))), "{refused:?}");
    queue_of(&client, 1).await;
}
