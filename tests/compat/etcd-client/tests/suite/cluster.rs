//! Listing, adding, updating, promoting and removing members.

use std::time::Duration;

use clearlane_compat_etcd_client::{Cluster, assert_refused, soon, until};
use etcd_client::{Client, Error, Member, MemberAddOptions, MemberAddResponse};
use tonic::Code;

/// Adds a member. A server rejects the addition until it has been connected to all members for some
/// seconds.
async fn added(client: &Client, url: &str, options: Option<MemberAddOptions>) -> MemberAddResponse {
    until("the cluster is healthy enough", || {
        let (mut client, options) = (client.clone(), options.clone());
        async move {
            match client.member_add([url], options).await {
                Err(Error::GRpcStatus(status)) if status.code() == Code::Unavailable => None,
                answer => Some(answer.unwrap()),
            }
        }
    })
    .await
}

fn learner() -> Option<MemberAddOptions> {
    Some(MemberAddOptions::new().with_is_learner())
}

fn names(members: &[Member]) -> Vec<&str> {
    let mut names: Vec<_> = members.iter().map(Member::name).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn members_know_each_other() {
    let cluster = Cluster::three().await;
    for at in 0..3 {
        let mut client = cluster.client_of(at).await;
        let mut list = until("all have told their names", || {
            let mut client = client.clone();
            async move {
                let list = client.member_list().await.unwrap();
                (names(list.members()) == ["m0", "m1", "m2"]).then_some(list)
            }
        })
        .await;
        let me = list.members().iter().find(|member| member.name() == format!("m{at}")).unwrap();
        assert_eq!(me.client_urls(), [cluster.client_url(at)]);
        assert_eq!(me.peer_urls(), [cluster.peer_url(at)]);
        assert_eq!((me.id(), me.is_learner()), (cluster.id(at).await, false));
        assert_eq!(list.take_header().unwrap().member_id(), cluster.id(at).await);
        assert!(list.header().is_none());
        let again = client.cluster_client().member_list().await.unwrap();
        assert_eq!(list.members(), again.members());
        client.get("key", None).await.unwrap();
    }
}

#[tokio::test]
async fn a_member_is_expected_and_struck_off() {
    let cluster = Cluster::three().await;
    let mut client = cluster.client_of(0).await;
    let url = "http://127.0.0.1:32101";
    let mut answer = added(&client, url, None).await;
    let member = answer.member().unwrap().clone();
    assert_eq!((member.name(), member.is_learner()), ("", false));
    assert_eq!(member.peer_urls(), [url]);
    assert_eq!(answer.member_list().len(), 4);
    assert!(answer.take_header().is_some());

    let twice = client.cluster_client().member_add([url.to_owned()], None).await;
    assert!(
        matches!(twice, Err(Error::GRpcStatus(status)) if status.code() == Code::FailedPrecondition)
    );
    let elsewhere = ["http://127.0.0.1:32102".to_owned()];
    let updated = client.member_update(member.id(), elsewhere.clone()).await.unwrap();
    let found = updated.members().iter().find(|found| found.id() == member.id()).unwrap();
    assert_eq!(found.peer_urls(), elsewhere);
    let removed = client.member_remove(member.id()).await.unwrap();
    assert!(removed.members().iter().all(|rest| rest.id() != member.id()));
    assert_eq!((removed.members().len(), removed.header().is_some()), (3, true));
    client.put("key", "1", None).await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_done_to_members() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    let words = "etcdserver: member not found";
    assert_refused(client.member_remove(77).await, Code::NotFound, words);
    assert_refused(client.member_promote(77).await, Code::NotFound, words);
    let url = ["http://127.0.0.1:32103".to_owned()];
    assert_refused(client.member_update(77, url).await, Code::NotFound, words);
    let words = "etcdserver: Peer URLs already exists";
    let taken = client.member_add([cluster.peer_url(0)], None).await;
    assert_refused(taken, Code::FailedPrecondition, words);
    let id = cluster.id(0).await;
    let words = "etcdserver: can only promote a learner member";
    assert_refused(client.member_promote(id).await, Code::FailedPrecondition, words);
    let wrong = client.member_add(["127.0.0.1"], None).await;
    let words = "etcdserver: given member URLs are invalid";
    assert_refused(wrong, Code::InvalidArgument, words);
}

#[tokio::test]
async fn a_learner_joins_and_is_promoted() {
    let mut cluster = Cluster::one().await;
    let mut client = cluster.client_of(0).await;
    for n in 0..100 {
        client.put(format!("key{n}"), "", None).await.unwrap();
    }
    let at = cluster.prepare();
    let answer = added(&client, &cluster.peer_url(at), learner()).await;
    let id = answer.member().unwrap().id();
    assert!(answer.member().unwrap().is_learner());
    let words = "etcdserver: can only promote a learner member which is in sync with leader";
    assert_refused(client.member_promote(id).await, Code::FailedPrecondition, words);
    let words = "etcdserver: too many learner members in cluster";
    let second = client.member_add(["http://127.0.0.1:32104"], learner()).await;
    assert_refused(second, Code::FailedPrecondition, words);

    cluster.join(at);
    let promoted = until("the learner has caught up", || {
        let mut client = client.clone();
        async move { client.member_promote(id).await.ok() }
    })
    .await;
    assert!(promoted.header().is_some());
    assert!(promoted.members().iter().all(|member| !member.is_learner()));
    cluster.answers(at).await;
    let mut joined = cluster.client_of(at).await;
    let options = etcd_client::GetOptions::new().with_prefix().with_count_only();
    assert_eq!(joined.get("key", Some(options)).await.unwrap().count(), 100);
    joined.put("key", "1", None).await.unwrap();
    assert_eq!(client.get("key", None).await.unwrap().count(), 1);
}

#[tokio::test]
async fn a_learner_answers_little() {
    let mut cluster = Cluster::one().await;
    let client = cluster.client_of(0).await;
    let at = cluster.prepare();
    added(&client, &cluster.peer_url(at), learner()).await;
    cluster.join(at);
    let mut learner = cluster.client_of(at).await;
    let status = until("the learner knows itself", || {
        let mut learner = learner.clone();
        async move { learner.status().await.ok().filter(|status| status.is_learner()) }
    })
    .await;
    assert_ne!(status.leader(), status.header().unwrap().member_id());
    let words = "etcdserver: rpc not supported for learner";
    assert_refused(learner.get("key", None).await, Code::FailedPrecondition, words);
    assert_refused(learner.put("key", "1", None).await, Code::FailedPrecondition, words);
    let old = etcd_client::GetOptions::new().with_serializable();
    assert_eq!(learner.get("key", Some(old)).await.unwrap().count(), 0);
}

#[tokio::test]
async fn a_member_that_was_removed_is_not_missed() {
    let mut cluster = Cluster::three().await;
    let leader = cluster.leader().await;
    let gone = (leader + 1) % 3;
    let id = cluster.id(gone).await;
    let mut client = cluster.client_of(leader).await;
    let removed = until("the cluster is healthy enough", || {
        let mut client = client.clone();
        async move {
            match client.member_remove(id).await {
                Err(Error::GRpcStatus(status)) if status.code() == Code::Unavailable => None,
                answer => Some(answer.unwrap()),
            }
        }
    })
    .await;
    assert_eq!(removed.members().len(), 2);
    // The removed member notices its removal and stops serving clients.
    let mut former = cluster.client_of(gone).await;
    let refuses = async {
        while former.put("key", "1", None).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    soon("the removed one refuses", refuses).await;
    cluster.stop(gone);
    client.put("key", "2", None).await.unwrap();
    let words = "etcdserver: member not found";
    assert_refused(client.member_remove(id).await, Code::NotFound, words);
}
