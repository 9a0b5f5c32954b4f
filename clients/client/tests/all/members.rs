//! Tests of membership and maintenance.

use clearlane_client::{Error, proto::etcdserverpb::Member};
use clearlane_test_server::{TestCluster, TestServer};

use crate::{wait_until, with_timeout};

#[tokio::test]
async fn members_come_change_and_go() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().await.unwrap();
    let first = client.member_list().await.unwrap();
    assert_eq!(first.len(), 1);
    let added = client.member_add(["http://127.0.0.1:1"], true).await.unwrap();
    assert!(added.is_learner);
    let moved = client.member_update(added.id, ["http://127.0.0.1:2"]).await.unwrap();
    let is_it = |member: &&Member| member.id == added.id;
    assert_eq!(moved.iter().find(is_it).unwrap().peer_urls, ["http://127.0.0.1:2"]);
    let unready = client.member_promote(added.id).await;
    assert!(matches!(unready, Err(Error::FailedPrecondition(_))), "{unready:?}");
    let left = client.member_remove(added.id).await.unwrap();
    assert_eq!(left.len(), 1);
    assert!(matches!(client.member_remove(added.id).await, Err(Error::MemberNotFound)));
}

#[tokio::test]
async fn a_member_tells_of_itself_and_gives_its_store() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().await.unwrap();
    for _ in 0..10 {
        client.put("a", vec![7; 10_000]).await.unwrap();
    }
    let status = client.status().await.unwrap();
    assert_eq!(
        (status.version.as_str(), status.leader),
        ("3.7.1", status.header.unwrap().member_id)
    );
    let hash = client.hash_kv(5).await.unwrap();
    assert_eq!(hash.hash_revision, 5);
    client.defragment().await.unwrap();
    let mut copy = Vec::new();
    let copied = client.snapshot(&mut copy).await.unwrap();
    assert_eq!(copied.bytes, copy.len() as u64);
    assert_eq!(copy.len() % 512, 32, "pages, and a sum");
    client.health().await.unwrap();
    assert!(matches!(client.only("elsewhere:1"), Err(Error::Setup(_))));
}

#[tokio::test]
async fn each_member_is_asked_alone_and_the_leader_is_found() {
    let cluster = TestCluster::start(3).await.unwrap();
    let client = cluster.client().await.unwrap();
    client.put("a", "1").await.unwrap();
    let mut ids = Vec::new();
    for endpoint in client.endpoints() {
        let status = client.only(&endpoint).unwrap().status().await.unwrap();
        ids.push(status.header.unwrap().member_id);
    }
    // On a slow machine, an unexpected election may change the result. The test then makes another
    // attempt.
    for attempt in 1.. {
        let heir = (cluster.leader().await.unwrap() + 1) % 3;
        let at_follower = client.only(&client.endpoints()[heir]).unwrap();
        let refused = at_follower.move_leader(ids[heir]).await;
        // A new leader may first have to find out which members are connected.
        let moves = async || with_timeout(client.move_leader(ids[heir])).await.is_ok();
        wait_until("it has moved", moves).await;
        let leader = cluster.leader().await.unwrap();
        if matches!(refused, Err(Error::NotLeader)) && leader == heir {
            break;
        }
        assert!(attempt < 3, "{refused:?}, and {leader} leads instead of {heir}");
    }
    ids.sort_unstable();
    let members = client.member_list().await.unwrap();
    let mut listed: Vec<u64> = members.iter().map(|member| member.id).collect();
    listed.sort_unstable();
    assert_eq!(ids, listed);
}
