//! Members are added, as learners and voters, and removed.

use clearlane::data::{InitialClusterState, MemberConfig};
use clearlane_proto::etcdserverpb::{
    MemberAddRequest, MemberListRequest, MemberPromoteRequest, MemberRemoveRequest,
};
use tonic::Code;

use crate::test_cluster::{TestCluster, block_on, eventually, eventually_async};

#[test]
fn a_learner_joins_and_is_promoted_through_a_follower() {
    let mut lab = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        let followers = lab.followers().await;
        lab.put(&followers[0], "k", "1").await;
        let url = lab.bind("d");
        let mut cluster = lab.cluster(&followers[0]).await;
        let add = MemberAddRequest { peer_urls: vec![url], is_learner: true };
        // Members count as connected after five seconds.
        let added = eventually_async("that it is added", async || {
            match cluster.member_add(add.clone()).await {
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
        let early = cluster.member_promote(promote).await.unwrap_err();
        let words = "etcdserver: can only promote a learner member which is in sync with leader";
        assert_eq!((early.code(), early.message()), (Code::FailedPrecondition, words));

        // It has found its id, and knows what it is before any member has sent to it; after a start
        // before anything was received, too.
        for _ in 0..2 {
            let start = MemberConfig {
                initial_cluster_state: InitialClusterState::Existing,
                ..lab.member_config("d")
            };
            let opened = start.open().unwrap();
            assert_eq!(opened.threads.metadata().node_id, id);
            assert!(opened.threads.status().is_learner() && opened.threads.status().applied() == 0);
        }
        lab.join("d");
        lab.agree().await;
        // The leader may have yet to hear that the learner has it all.
        let promoted = eventually_async("that it is in sync", async || {
            match cluster.member_promote(promote).await {
                Ok(promoted) => Some(promoted.into_inner()),
                Err(early) => {
                    assert_eq!(early.message(), words);
                    None
                }
            }
        })
        .await;
        assert!(promoted.members.iter().all(|member| !member.is_learner));
        lab.put("d", "k", "2").await;
        assert_eq!(lab.get("d", "k").await.unwrap().as_deref(), Some("2"));
        let mut at_d = lab.cluster("d").await;
        let listed = at_d.member_list(MemberListRequest { linearizable: true });
        let listed = listed.await.unwrap().into_inner().members;
        let one = listed.iter().find(|member| member.id == id).unwrap();
        assert_eq!((&*one.name, one.client_urls.len()), ("d", 1));
        lab.agree().await;
    });
}

#[test]
fn a_joining_voter_is_no_learner_meanwhile() {
    let mut lab = TestCluster::started(&["a"]);
    block_on(async {
        lab.leader().await;
        let add = MemberAddRequest { peer_urls: vec![lab.bind("b")], is_learner: false };
        lab.cluster("a").await.member_add(add).await.unwrap();
        let start = MemberConfig {
            initial_cluster_state: InitialClusterState::Existing,
            ..lab.member_config("b")
        };
        let opened = start.open().unwrap();
        assert!(!opened.threads.status().is_learner());
        drop(opened);
        lab.join("b");
        lab.put("b", "k", "1").await;
        assert!(!lab.node("b").status().is_learner());
    });
}

/// A reader at the only voter asks no other member. That must end before another can be elected:
/// before raft counts it, which is when the raft loop gets the change.
#[test]
fn a_member_that_is_no_longer_the_only_one_asks_again() {
    let mut lab = TestCluster::started(&["a"]);
    block_on(async {
        eventually("that it is alone", || lab.node("a").is_sole_voter_caught_up().then_some(()))
            .await;
        lab.put("a", "k", "1").await;
        assert_eq!(lab.get("a", "k").await.unwrap().as_deref(), Some("1"));
        let learns =
            MemberAddRequest { peer_urls: vec!["http://127.0.0.1:1".into()], is_learner: true };
        let learner = lab.cluster("a").await.member_add(learns).await.unwrap().into_inner();
        // A learner has no vote.
        eventually("that it is alone", || lab.node("a").is_sole_voter_caught_up().then_some(()))
            .await;
        let id = learner.member.unwrap().id;
        lab.cluster("a").await.member_remove(MemberRemoveRequest { id }).await.unwrap();
        let votes = MemberAddRequest { peer_urls: vec![lab.bind("b")], is_learner: false };
        let voter = lab.cluster("a").await.member_add(votes).await.unwrap().into_inner();
        eventually("that it is not alone", || {
            (!lab.node("a").is_sole_voter_caught_up()).then_some(())
        })
        .await;
        // The other one is not there yet, and without it nothing is certain.
        let late = lab.get("a", "k").await.unwrap_err();
        assert_eq!(
            (late.code(), late.message()),
            (Code::Unavailable, "etcdserver: request timed out")
        );
        lab.join("b");
        lab.put("b", "k", "2").await;
        assert_eq!(lab.get("a", "k").await.unwrap().as_deref(), Some("2"));
        assert!(
            !lab.node("a").is_sole_voter_caught_up() && !lab.node("b").is_sole_voter_caught_up()
        );
        remove(&lab, "a", voter.member.unwrap().id).await;
        eventually("that it is alone again", || {
            lab.node("a").is_sole_voter_caught_up().then_some(())
        })
        .await;
        assert_eq!(lab.get("a", "k").await.unwrap().as_deref(), Some("2"));
    });
}

#[test]
fn a_removed_member_stops() {
    let mut lab = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        let gone = lab.followers().await.remove(0);
        let (leader, id) = (lab.leader().await, lab.id(&gone));
        remove(&lab, &leader, id).await;
        lab.is_told_of_its_removal(&gone).await;
        lab.kill(&gone).await;
        lab.put(&leader, "k", "1").await;
        // It does not come back.
        lab.start(&gone);
        lab.is_told_of_its_removal(&gone).await;
        lab.kill(&gone).await;
        lab.agree().await;
    });
}

/// It was away when it was removed, and is notified when it comes back.
#[test]
fn a_member_removed_while_away_is_notified() {
    let mut lab = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        let gone = lab.followers().await.remove(0);
        let (leader, id) = (lab.leader().await, lab.id(&gone));
        lab.kill(&gone).await;
        remove(&lab, &leader, id).await;
        lab.start(&gone);
        lab.is_told_of_its_removal(&gone).await;
    });
}

async fn remove(lab: &TestCluster, at: &str, id: u64) {
    let mut cluster = lab.cluster(at).await;
    eventually_async("that it is removed", async || {
        match cluster.member_remove(MemberRemoveRequest { id }).await {
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
    let again = cluster.member_remove(MemberRemoveRequest { id }).await.unwrap_err();
    assert_eq!((again.code(), again.message()), (Code::NotFound, "etcdserver: member not found"));
}
