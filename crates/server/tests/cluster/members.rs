//! Members come, learn, vote, and go.

use clearlane_proto::etcdserverpb::{
    MemberAddRequest, MemberListRequest, MemberPromoteRequest, MemberRemoveRequest,
};
use tonic::Code;

use crate::lab::{Lab, block_on, eventually_async};

#[test]
fn a_learner_joins_and_is_promoted_through_a_follower() {
    let mut lab = Lab::started(&["a", "b", "c"]);
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

        lab.join("d");
        assert_eq!(lab.id("d"), id, "it has found its number");
        lab.agree().await;
        let promoted = cluster.member_promote(promote).await.unwrap().into_inner();
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
fn who_is_removed_stops() {
    let mut lab = Lab::started(&["a", "b", "c"]);
    block_on(async {
        let gone = lab.followers().await.remove(0);
        let (leader, id) = (lab.leader().await, lab.id(&gone));
        remove(&lab, &leader, id).await;
        lab.is_told_to_go(&gone).await;
        lab.kill(&gone).await;
        lab.put(&leader, "k", "1").await;
        // It does not come back.
        lab.start(&gone);
        lab.is_told_to_go(&gone).await;
        lab.kill(&gone).await;
        lab.agree().await;
    });
}

/// It was away when it was removed, and is told when it comes back.
#[test]
fn who_was_removed_while_away_is_told() {
    let mut lab = Lab::started(&["a", "b", "c"]);
    block_on(async {
        let gone = lab.followers().await.remove(0);
        let (leader, id) = (lab.leader().await, lab.id(&gone));
        lab.kill(&gone).await;
        remove(&lab, &leader, id).await;
        lab.start(&gone);
        lab.is_told_to_go(&gone).await;
    });
}

async fn remove(lab: &Lab, at: &str, id: u64) {
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
