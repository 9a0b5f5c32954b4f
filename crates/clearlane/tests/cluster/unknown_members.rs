//! Tests of members that are rejected by others, or that fail at their own start.

use clearlane::data::{Error, InitialClusterState, MemberConfig};
use clearlane_peer::headers::PeerHeaders;
use clearlane_proto::peerpb::peer_client::PeerClient;
use clearlane_proto::peerpb::{Greeting, MembersRequest};
use tonic::{Code, Request};

use crate::test_cluster::{TestCluster, block_on};

#[test]
fn another_cluster_is_refused() {
    let cluster = TestCluster::started(&["a"]);
    block_on(async {
        cluster.leader().await;
        let metadata = cluster.node("a").metadata();
        let (cluster_id, to) = (metadata.cluster_id, metadata.node_id);
        let mut client = PeerClient::new(cluster.peer_channel("a").await);
        let mut greet = async |badge: PeerHeaders, protocol: u32| {
            let (protocol_min, protocol_max) = (protocol, protocol);
            let version = String::new();
            let mut request = Request::new(Greeting { version, protocol_min, protocol_max });
            badge.write(request.metadata_mut());
            client.greet(request).await
        };
        let badge = PeerHeaders { cluster: cluster_id, from: 7, to, peer_urls: Vec::new() };
        greet(badge.clone(), 1).await.unwrap();
        let error = greet(PeerHeaders { cluster: 9, ..badge.clone() }, 1).await.unwrap_err();
        assert_eq!(error.code(), Code::FailedPrecondition);
        assert!(error.message().starts_with("cluster ID mismatch"), "{error}");
        let error = greet(PeerHeaders { to: 9, ..badge.clone() }, 1).await.unwrap_err();
        assert!(error.message().starts_with("the call is for member 9,"), "{error}");
        let error = greet(badge, 2).await.unwrap_err();
        assert!(error.message().starts_with("no common protocol"), "{error}");
        let unmarked = client.greet(Greeting::default()).await.unwrap_err();
        assert_eq!(unmarked.code(), Code::FailedPrecondition);
        let members = client.members(MembersRequest::default()).await.unwrap().into_inner();
        assert_eq!((members.cluster_id, members.members[0].id), (cluster_id, to));
    });
}

/// A member that is started with another cluster token is in another cluster. It must not become
/// the leader of the others, and must not follow their leader.
#[test]
fn a_member_of_another_cluster_disturbs_no_member() {
    let mut cluster = TestCluster::new(&["a", "b", "c"]);
    cluster.start("a");
    cluster.start("b");
    let odd = MemberConfig { cluster_token: "another".to_owned(), ..cluster.member_config("c") };
    cluster.run(odd);
    block_on(async {
        let two = ["a".to_owned(), "b".to_owned()];
        let leader = cluster.leader_of(&two).await;
        let term = cluster.node(&leader).status().term();
        for number in 0..20 {
            cluster.put("a", "k", &number.to_string()).await;
        }
        assert_eq!(cluster.node(&leader).status().term(), term);
        assert_eq!(cluster.node("c").status().leader(), 0);
    });
}

#[test]
fn a_member_that_was_not_added_cannot_join() {
    let mut cluster = TestCluster::started(&["a"]);
    block_on(async { cluster.leader().await });
    cluster.bind("b");
    let start = MemberConfig {
        initial_cluster_state: InitialClusterState::Existing,
        ..cluster.member_config("b")
    };
    let error = start.open().unwrap_err();
    assert!(matches!(error, Error::NotAdded { .. }), "{error}");
    block_on(cluster.kill("a"));
    let error = start.open().unwrap_err();
    assert!(matches!(error, Error::NoPeerAnswered(_)), "{error}");
}
