//! Elections: campaign, proclaim, observe, resign, and which candidate leads next.

use clearlane_compat_etcd_client::{Cluster, assert_refused, soon, until};
use etcd_client::{
    Client, GetOptions, LeaderKey, LeaseGrantOptions, ObserveStream, ProclaimOptions, ResignOptions,
};
use tokio_stream::StreamExt;
use tonic::Code;

/// Starts a server. Returns a client that has granted the leases 1 and 2.
async fn two_leases() -> (Cluster, Client) {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    for id in [1, 2] {
        let grant = LeaseGrantOptions::new().with_id(id);
        client.lease_grant(600, Some(grant)).await.unwrap();
    }
    (cluster, client)
}

async fn elected(client: &mut Client, value: &str, lease: i64) -> LeaderKey {
    client.campaign("name", value, lease).await.unwrap().take_leader().unwrap()
}

/// Starts a second candidate, and returns when this candidate waits for the first one.
async fn behind(client: &Client) -> tokio::task::JoinHandle<LeaderKey> {
    let mut second = client.clone();
    let campaign = tokio::spawn(async move { elected(&mut second, "two", 2).await });
    until("the second has joined", || {
        let mut client = client.clone();
        let options = GetOptions::new().with_prefix().with_count_only();
        async move {
            let count = client.get("name/", Some(options)).await.unwrap().count();
            (count == 2).then_some(())
        }
    })
    .await;
    campaign
}

async fn observed(stream: &mut ObserveStream) -> String {
    let answer = soon("a leader", stream.message()).await.unwrap().unwrap();
    assert!(answer.header().unwrap().revision() > 1);
    answer.kv().unwrap().value_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_only_candidate_leads() {
    let (_cluster, mut client) = two_leases().await;
    let words = "election: no leader";
    assert_refused(client.leader("name").await, Code::Unknown, words);
    let mut answer = client.election_client().campaign("name", "one", 1).await.unwrap();
    assert_eq!(answer.header().unwrap().revision(), 2);
    let key = answer.leader().unwrap();
    assert_eq!(
        (key.name(), key.key(), key.rev(), key.lease()),
        (&b"name"[..], &b"name/1"[..], 2, 1)
    );
    assert_eq!((key.name_str().unwrap(), key.key_str().unwrap()), ("name", "name/1"));
    assert!(answer.take_leader().is_some() && answer.leader().is_none());

    let mut leader = client.leader("name").await.unwrap();
    let kv = leader.kv().unwrap();
    assert_eq!((kv.key(), kv.value(), kv.lease()), (&b"name/1"[..], &b"one"[..], 1));
    assert_eq!(kv.create_revision(), 2);
    assert_eq!(leader.take_kv().unwrap().version(), 1);
    assert_eq!(leader.take_header().unwrap().revision(), 2);
}

#[tokio::test]
async fn campaigning_again_changes_the_value() {
    let (_cluster, mut client) = two_leases().await;
    let first = elected(&mut client, "one", 1).await;
    let again = elected(&mut client, "uno", 1).await;
    assert_eq!((first.key(), first.rev()), (again.key(), again.rev()));
    assert_eq!(client.leader("name").await.unwrap().kv().unwrap().value(), b"uno");
}

#[tokio::test]
async fn the_leader_may_say_something_else() {
    let (_cluster, mut client) = two_leases().await;
    let key = elected(&mut client, "one", 1).await;
    let options = ProclaimOptions::new().with_leader(key.clone());
    let answer = client.proclaim("uno", Some(options)).await.unwrap();
    assert_eq!(answer.header().unwrap().revision(), 3);
    let leader = client.leader("name").await.unwrap();
    let kv = leader.kv().unwrap();
    assert_eq!((kv.value(), kv.lease(), kv.create_revision()), (&b"uno"[..], 1, 2));

    // Another client may not proclaim a value.
    let other = LeaderKey::new().with_name("name").with_key("name/2").with_rev(2).with_lease(2);
    let options = ProclaimOptions::new().with_leader(other);
    let refused = client.proclaim("dos", Some(options)).await;
    assert_refused(refused, Code::Unknown, "election: not leader");
    let not_leader = client.election_client().proclaim("dos", None).await;
    let words = "\"leader\" field must be provided";
    assert_refused(not_leader, Code::Unknown, words);
}

#[tokio::test]
async fn who_resigns_is_followed_by_the_next() {
    let (_cluster, mut client) = two_leases().await;
    let first = elected(&mut client, "one", 1).await;
    let second = behind(&client).await;
    assert!(!second.is_finished());
    assert_eq!(client.leader("name").await.unwrap().kv().unwrap().value(), b"one");

    // A leader key of an earlier term: resigning with it changes nothing.
    let early = ResignOptions::new().with_leader(first.clone().with_rev(1));
    client.resign(Some(early)).await.unwrap();
    assert!(!second.is_finished());
    let answer =
        client.resign(Some(ResignOptions::new().with_leader(first.clone()))).await.unwrap();
    assert_eq!(answer.header().unwrap().revision(), 4);
    let second = soon("the second leads", second).await.unwrap();
    assert_eq!((second.key(), second.rev()), (&b"name/2"[..], 3));
    assert_eq!(client.leader("name").await.unwrap().kv().unwrap().value(), b"two");
    let late = ProclaimOptions::new().with_leader(first);
    let refused = client.proclaim("uno", Some(late)).await;
    assert_refused(refused, Code::Unknown, "election: not leader");
    let not_leader = client.election_client().resign(None).await;
    let words = "\"leader\" field must be provided";
    assert_refused(not_leader, Code::Unknown, words);
}

#[tokio::test]
async fn whose_lease_ends_is_followed_by_the_next() {
    let (_cluster, mut client) = two_leases().await;
    elected(&mut client, "one", 1).await;
    let second = behind(&client).await;
    client.lease_revoke(1).await.unwrap();
    assert_eq!(soon("the second leads", second).await.unwrap().key(), b"name/2");
    let refused = client.campaign("name", "three", 3).await;
    assert_refused(refused, Code::Unknown, "etcdserver: requested lease not found");
}

#[tokio::test]
async fn observers_see_every_leader() {
    let (_cluster, mut client) = two_leases().await;
    // Without a leader, the server may not even open the stream.
    let mut observer = client.clone();
    let early = tokio::spawn(async move { observer.observe("name").await.unwrap() });
    let first = elected(&mut client, "one", 1).await;
    let mut early = soon("the stream", early).await.unwrap();
    let mut late = client.election_client().observe("name").await.unwrap();
    for stream in [&mut early, &mut late] {
        assert_eq!(observed(stream).await, "one");
    }
    let options = ProclaimOptions::new().with_leader(first.clone());
    client.proclaim("uno", Some(options)).await.unwrap();
    let second = behind(&client).await;
    for stream in [&mut early, &mut late] {
        assert_eq!(observed(stream).await, "uno");
    }
    client.resign(Some(ResignOptions::new().with_leader(first))).await.unwrap();
    soon("the second leads", second).await.unwrap();
    assert_eq!(observed(&mut early).await, "two");
    let item = soon("an item", late.next()).await.unwrap().unwrap();
    assert_eq!(item.kv().unwrap().key(), b"name/2");
}

#[test]
fn a_key_of_a_leader_is_put_together() {
    let key = LeaderKey::default().with_name("name").with_key([0xff]).with_rev(3).with_lease(4);
    assert_eq!((key.name(), key.key(), key.rev(), key.lease()), (&b"name"[..], &[0xff][..], 3, 4));
    assert!(key.key_str().is_err());
}
