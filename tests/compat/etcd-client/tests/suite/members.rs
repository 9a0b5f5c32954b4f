//! One client with three members, while some members are stopped.

use std::time::Duration;

use clearlane_compat_etcd_client::{Cluster, assert_refused, next, soon, until};
use etcd_client::{
    Client, ConnectOptions, Error, GetOptions, LeaseGrantOptions, LockOptions, PutOptions,
};
use tonic::Code;

/// Returns a client that waits only briefly for a single member.
async fn hasty(cluster: &Cluster) -> Client {
    let options = ConnectOptions::new()
        .with_timeout(Duration::from_secs(3))
        .with_connect_timeout(Duration::from_millis(500));
    cluster.client_with(options).await
}

async fn put(client: &Client, key: &str) {
    until("a put is acknowledged", || {
        let mut client = client.clone();
        async move { client.put(key, "", None).await.ok() }
    })
    .await;
}

async fn count(client: &Client, key: &str) -> i64 {
    until("a get is answered", || {
        let mut client = client.clone();
        let options = GetOptions::new().with_prefix().with_count_only();
        async move { client.get(key, Some(options)).await.ok() }
    })
    .await
    .count()
}

#[tokio::test]
async fn what_one_wrote_the_others_read() {
    let cluster = Cluster::three().await;
    for writer in 0..3 {
        let key = format!("key{writer}");
        cluster.client_of(writer).await.put(&*key, "1", None).await.unwrap();
        for reader in 0..3 {
            let mut reader = cluster.client_of(reader).await;
            assert_eq!(reader.get(&*key, None).await.unwrap().count(), 1);
        }
    }
    let mut ids = Vec::new();
    let mut hashes = Vec::new();
    for at in 0..3 {
        let mut client = cluster.client_of(at).await;
        let hash = client.hash_kv(4).await.unwrap();
        hashes.push(hash.hash());
        ids.push(hash.header().unwrap().member_id());
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 3);
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
}

#[tokio::test]
async fn the_requests_go_to_all_members() {
    let cluster = Cluster::three().await;
    let mut client = cluster.client().await;
    let mut asked = std::collections::BTreeSet::new();
    let all = async {
        while asked.len() < 3 {
            let answer = client.get("key", None).await.unwrap();
            asked.insert(answer.header().unwrap().member_id());
        }
    };
    soon("every member is asked", all).await;
}

#[tokio::test]
async fn one_member_is_not_missed() {
    let mut cluster = Cluster::three().await;
    let client = hasty(&cluster).await;
    put(&client, "key0").await;
    let leader = cluster.leader().await;
    let follower = (leader + 1) % 3;
    cluster.stop(follower);
    for n in 1..10 {
        put(&client, &format!("key{n}")).await;
    }
    assert_eq!(count(&client, "key").await, 10);
    // The member is started again and gets the missed entries.
    cluster.start(follower).await;
    assert_eq!(count(&cluster.client_of(follower).await, "key").await, 10);
}

#[tokio::test]
async fn another_one_leads_when_the_leader_is_gone() {
    let mut cluster = Cluster::three().await;
    let client = hasty(&cluster).await;
    put(&client, "key0").await;
    let mut control = cluster.client().await;
    let grant = LeaseGrantOptions::new().with_id(7);
    control.lease_grant(600, Some(grant)).await.unwrap();
    let leased = PutOptions::new().with_lease(7);
    control.put("leased", "", Some(leased)).await.unwrap();
    let former = cluster.leader().await;
    cluster.stop(former);
    put(&client, "key1").await;
    let leader = cluster.leader().await;
    assert_ne!(leader, former);
    // The new leader also has the lease, and keeps it alive.
    let mut client = cluster.client_of(leader).await;
    let left = client.lease_time_to_live(7, None).await.unwrap();
    assert!((590..=600).contains(&left.ttl()), "{left:?}");
    let (mut keeper, mut stream) = client.lease_keep_alive(7).await.unwrap();
    keeper.keep_alive().await.unwrap();
    assert_eq!(soon("an answer", stream.message()).await.unwrap().unwrap().ttl(), 600);
    assert_eq!(count(&client, "").await, 3);
}

#[tokio::test]
async fn alone_a_member_tells_what_it_knew() {
    let mut cluster = Cluster::three().await;
    let leader = cluster.leader().await;
    let alone = (leader + 1) % 3;
    cluster.client_of(alone).await.put("key", "1", None).await.unwrap();
    let options =
        ConnectOptions::new().with_timeout(Duration::from_secs(20)).with_require_leader(true);
    let url = cluster.client_url(alone);
    let mut demanding = Client::connect([url], Some(options)).await.unwrap();
    let mut watch = demanding.watch("key", None).await.unwrap();
    assert!(next(&mut watch).await.created());
    for gone in (0..3).filter(|at| *at != alone) {
        cluster.stop(gone);
    }
    // A request that requires a leader gets the error that there is none.
    let ended = soon("the watch ends", watch.message()).await;
    let words = "etcdserver: no leader";
    match ended {
        Ok(Some(last)) => {
            assert_eq!((last.canceled(), last.cancel_reason()), (true, words));
        }
        Err(Error::GRpcStatus(status)) => {
            assert_eq!((status.code(), status.message()), (Code::Unavailable, words));
        }
        other => panic!("{other:?}"),
    }
    let refused = demanding.get("key", None).await;
    assert_refused(refused, Code::Unavailable, words);
    // A serializable read is answered from the member's own store.
    let mut content = cluster.client_of(alone).await;
    let old = GetOptions::new().with_serializable();
    assert_eq!(content.get("key", Some(old)).await.unwrap().count(), 1);
    let refused = content.put("key", "2", None).await;
    assert_refused(refused, Code::DeadlineExceeded, "context deadline exceeded");
}

#[tokio::test]
async fn a_watch_hears_what_others_were_told() {
    let cluster = Cluster::three().await;
    let mut streams = Vec::new();
    for at in 0..3 {
        let mut client = cluster.client_of(at).await;
        let mut stream = client.watch("key", None).await.unwrap();
        assert!(next(&mut stream).await.created());
        streams.push(stream);
    }
    for at in 0..3 {
        cluster.client_of(at).await.put("key", at.to_string(), None).await.unwrap();
    }
    for stream in &mut streams {
        let mut heard = Vec::new();
        while heard.len() < 3 {
            for event in next(stream).await.events() {
                heard.push(event.kv().unwrap().value_str().unwrap().to_owned());
            }
        }
        assert_eq!(heard, ["0", "1", "2"]);
    }
}

#[tokio::test]
async fn a_lock_is_one_lock_everywhere() {
    let cluster = Cluster::three().await;
    let mut first = cluster.client_of(0).await;
    let mut second = cluster.client_of(1).await;
    first.lease_grant(600, Some(LeaseGrantOptions::new().with_id(1))).await.unwrap();
    second.lease_grant(600, Some(LeaseGrantOptions::new().with_id(2))).await.unwrap();
    let options = |id| Some(LockOptions::new().with_lease(id));
    let held = first.lock("name", options(1)).await.unwrap();
    let waiting = tokio::spawn(async move { second.lock("name", options(2)).await.unwrap() });
    let third = cluster.client_of(2).await;
    until("the second waits", || {
        let third = third.clone();
        async move { (count(&third, "name/").await == 2).then_some(()) }
    })
    .await;
    assert!(!waiting.is_finished());
    third.lock_client().unlock(held.key()).await.unwrap();
    assert_eq!(soon("the second", waiting).await.unwrap().key(), b"name/2");
}

#[tokio::test]
async fn an_election_is_one_election_everywhere() {
    let cluster = Cluster::three().await;
    let mut first = cluster.client_of(0).await;
    first.lease_grant(600, Some(LeaseGrantOptions::new().with_id(1))).await.unwrap();
    first.campaign("name", "one", 1).await.unwrap();
    let mut second = cluster.client_of(1).await;
    assert_eq!(second.leader("name").await.unwrap().kv().unwrap().value(), b"one");
    let mut observer = cluster.client_of(2).await.observe("name").await.unwrap();
    let seen = soon("a leader", observer.message()).await.unwrap().unwrap();
    assert_eq!(seen.kv().unwrap().lease(), 1);
}
