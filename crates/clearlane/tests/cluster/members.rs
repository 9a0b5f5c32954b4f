//! Tests that add members, as learners and as voters, and remove them.

use clearlane::data::{InitialClusterState, MemberConfig};
use clearlane_proto::etcdserverpb::{
    MemberAddRequest, MemberListRequest, MemberPromoteRequest, MemberRemoveRequest,
};
use tonic::Code;

use crate::test_cluster::{TestCluster, block_on, eventually, eventually_async};

#[test]
fn a_learner_joins_and_is_promoted_through_a_follower() {
    let mut cluster = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        let followers = cluster.followers().await;
        cluster.put(&followers[0], "k", "1").await;
        let url = cluster.bind("d");
        let mut cluster_client = cluster.cluster_client(&followers[0]).await;
        let add = MemberAddRequest { peer_urls: vec![url], is_learner: true };
        // A server considers another one connected only after five seconds.
        let added = eventually_async("that it is added", async || {
            match cluster_client.member_add(add.clone()).await {
                Ok(added) => Some(added.into_inner()),
                Err(status) => {
                    assert_eq!(status.message(), "etcdserver: unhealthy cluster");
                    None
                }
            }
        })
        .await;
        let id = added.member.unwrap().id;
        assert_eq!((added.members.len(), added.header.unwrap().revision), (4, 0));
        let promote = MemberPromoteRequest { id };
        // The leader may apply the new member after the follower.
        let early = eventually_async("that the leader has the member", async || {
            let early = cluster_client.member_promote(promote).await.unwrap_err();
            (early.code() != Code::NotFound).then_some(early)
        })
        .await;
        let words = "etcdserver: can only promote a learner member which is in sync with leader";
        assert_eq!((early.code(), early.message()), (Code::FailedPrecondition, words));

        // The learner has found its id, and knows that it is a learner before any member has sent
        // it a message. This is also true after a restart.
        for _ in 0..2 {
            let start = MemberConfig {
                initial_cluster_state: InitialClusterState::Existing,
                ..cluster.member_config("d")
            };
            let opened = start.open().unwrap();
            assert_eq!(opened.threads.metadata().node_id, id);
            assert!(opened.threads.status().is_learner() && opened.threads.status().applied() == 0);
        }
        cluster.join("d");
        cluster.agree().await;
        // The leader may not know yet that the learner has all entries.
        let promoted = eventually_async("that it is in sync", async || {
            match cluster_client.member_promote(promote).await {
                Ok(promoted) => Some(promoted.into_inner()),
                Err(early) => {
                    assert_eq!(early.message(), words);
                    None
                }
            }
        })
        .await;
        assert!(promoted.members.iter().all(|member| !member.is_learner));
        cluster.put("d", "k", "2").await;
        assert_eq!(cluster.get("d", "k").await.unwrap().as_deref(), Some("2"));
        let mut at_d = cluster.cluster_client("d").await;
        let listed = at_d.member_list(MemberListRequest { linearizable: true });
        let listed = listed.await.unwrap().into_inner().members;
        let one = listed.iter().find(|member| member.id == id).unwrap();
        assert_eq!((&*one.name, one.client_urls.len()), ("d", 1));
        cluster.agree().await;
    });
}

#[test]
fn a_joining_voter_is_no_learner_meanwhile() {
    let mut cluster = TestCluster::started(&["a"]);
    block_on(async {
        cluster.leader().await;
        let add = MemberAddRequest { peer_urls: vec![cluster.bind("b")], is_learner: false };
        cluster.cluster_client("a").await.member_add(add).await.unwrap();
        let start = MemberConfig {
            initial_cluster_state: InitialClusterState::Existing,
            ..cluster.member_config("b")
        };
        let opened = start.open().unwrap();
        assert!(!opened.threads.status().is_learner());
        drop(opened);
        cluster.join("b");
        cluster.put("b", "k", "1").await;
        assert!(!cluster.node("b").status().is_learner());
    });
}

/// While a member is the only voter, its reads query no other member. This exception must end
/// before another member can be elected. So it ends when the raft loop gets the membership change,
/// before raft counts the new voter.
#[test]
fn a_member_that_is_no_longer_the_only_one_asks_again() {
    let mut cluster = TestCluster::started(&["a"]);
    block_on(async {
        eventually("that it is alone", || {
            cluster.node("a").is_sole_voter_caught_up().then_some(())
        })
        .await;
        cluster.put("a", "k", "1").await;
        assert_eq!(cluster.get("a", "k").await.unwrap().as_deref(), Some("1"));
        let learns =
            MemberAddRequest { peer_urls: vec!["http://127.0.0.1:1".into()], is_learner: true };
        let learner =
            cluster.cluster_client("a").await.member_add(learns).await.unwrap().into_inner();
        // A learner has no vote, so member `a` is still the only voter.
        eventually("that it is alone", || {
            cluster.node("a").is_sole_voter_caught_up().then_some(())
        })
        .await;
        let id = learner.member.unwrap().id;
        cluster.cluster_client("a").await.member_remove(MemberRemoveRequest { id }).await.unwrap();
        let votes = MemberAddRequest { peer_urls: vec![cluster.bind("b")], is_learner: false };
        let voter = cluster.cluster_client("a").await.member_add(votes).await.unwrap().into_inner();
        eventually("that it is not alone", || {
            (!cluster.node("a").is_sole_voter_caught_up()).then_some(())
        })
        .await;
        // The other voter is not running yet, so there is no quorum.
        let late = cluster.get("a", "k").await.unwrap_err();
        assert_eq!(
            (late.code(), late.message()),
            (Code::Unavailable, "etcdserver: request timed out")
        );
        cluster.join("b");
        cluster.put("b", "k", "2").await;
        assert_eq!(cluster.get("a", "k").await.unwrap().as_deref(), Some("2"));
        assert!(
            !cluster.node("a").is_sole_voter_caught_up()
                && !cluster.node("b").is_sole_voter_caught_up()
        );
        remove(&cluster, "a", voter.member.unwrap().id).await;
        eventually("that it is alone again", || {
            cluster.node("a").is_sole_voter_caught_up().then_some(())
        })
        .await;
        assert_eq!(cluster.get("a", "k").await.unwrap().as_deref(), Some("2"));
    });
}

#[test]
fn a_removed_member_stops() {
    let mut cluster = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        let gone = cluster.followers().await.remove(0);
        let (leader, id) = (cluster.leader().await, cluster.id(&gone));
        remove(&cluster, &leader, id).await;
        cluster.is_told_of_its_removal(&gone).await;
        cluster.kill(&gone).await;
        cluster.put(&leader, "k", "1").await;
        // If the removed member is started again, it learns again that it was removed.
        cluster.start(&gone);
        cluster.is_told_of_its_removal(&gone).await;
        cluster.kill(&gone).await;
        cluster.agree().await;
    });
}

/// The member was stopped when it was removed, and is notified when it starts again.
#[test]
fn a_member_removed_while_away_is_notified() {
    let mut cluster = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        let gone = cluster.followers().await.remove(0);
        let (leader, id) = (cluster.leader().await, cluster.id(&gone));
        cluster.kill(&gone).await;
        remove(&cluster, &leader, id).await;
        cluster.start(&gone);
        cluster.is_told_of_its_removal(&gone).await;
    });
}

async fn remove(cluster: &TestCluster, at: &str, id: u64) {
    let mut cluster_client = cluster.cluster_client(at).await;
    eventually_async("that it is removed", async || {
        match cluster_client.member_remove(MemberRemoveRequest { id }).await {
            Ok(removed) => {
                assert!(removed.into_inner().members.iter().all(|member| member.id != id));
                Some(())
            }
            Err(status) => {
                let early = [
                    "etcdserver: unhealthy cluster",
                    "etcdserver: re-configuration failed due to not enough started members",
                ];
                assert!(early.contains(&status.message()), "{status}");
                None
            }
        }
    })
    .await;
    let again = cluster_client.member_remove(MemberRemoveRequest { id }).await.unwrap_err();
    assert_eq!((again.code(), again.message()), (Code::NotFound, "etcdserver: member not found"));
}
