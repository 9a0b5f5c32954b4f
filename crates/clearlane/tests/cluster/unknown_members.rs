//! Which members are not let in, and which do not get that far.

use clearlane::data::{Error, InitialClusterState, MemberConfig};
use clearlane_peer::headers::PeerHeaders;
use clearlane_proto::peerpb::peer_client::PeerClient;
use clearlane_proto::peerpb::{Greeting, MembersRequest};
use tonic::{Code, Request};

use crate::test_cluster::{TestCluster, block_on};

#[test]
fn another_cluster_is_refused() {
    let lab = TestCluster::started(&["a"]);
    block_on(async {
        lab.leader().await;
        let metadata = lab.node("a").metadata();
        let (cluster, to) = (metadata.cluster_id, metadata.node_id);
        let mut client = PeerClient::new(lab.peer_channel("a").await);
        let mut greet = async |badge: PeerHeaders, protocol: u32| {
            let (protocol_min, protocol_max) = (protocol, protocol);
            let version = String::new();
            let mut request = Request::new(Greeting { version, protocol_min, protocol_max });
            badge.write(request.metadata_mut());
            client.greet(request).await
        };
        let badge = PeerHeaders { cluster, from: 7, to, peer_urls: Vec::new() };
        greet(badge.clone(), 1).await.unwrap();
        let told = greet(PeerHeaders { cluster: 9, ..badge.clone() }, 1).await.unwrap_err();
        assert_eq!(told.code(), Code::FailedPrecondition);
        assert!(told.message().starts_with("cluster ID mismatch"), "{told}");
        let told = greet(PeerHeaders { to: 9, ..badge.clone() }, 1).await.unwrap_err();
        assert!(told.message().starts_with("member 9 is called"), "{told}");
        let told = greet(badge, 2).await.unwrap_err();
        assert!(told.message().starts_with("no common protocol"), "{told}");
        let unmarked = client.greet(Greeting::default()).await.unwrap_err();
        assert_eq!(unmarked.code(), Code::FailedPrecondition);
        let members = client.members(MembersRequest::default()).await.unwrap().into_inner();
        assert_eq!((members.cluster_id, members.members[0].id), (cluster, to));
    });
}

/// A member that was started with another token is of another cluster: no member follows it.
#[test]
fn a_member_of_another_cluster_disturbs_no_member() {
    let mut lab = TestCluster::new(&["a", "b", "c"]);
    lab.start("a");
    lab.start("b");
    let odd = MemberConfig { cluster_token: "another".to_owned(), ..lab.member_config("c") };
    lab.run(odd);
    block_on(async {
        let two = ["a".to_owned(), "b".to_owned()];
        let leader = lab.leader_of(&two).await;
        let term = lab.node(&leader).status().term();
        for number in 0..20 {
            lab.put("a", "k", &number.to_string()).await;
        }
        assert_eq!(lab.node(&leader).status().term(), term);
        assert_eq!(lab.node("c").status().leader(), 0);
    });
}

#[test]
fn a_member_that_was_not_added_cannot_join() {
    let mut lab = TestCluster::started(&["a"]);
    block_on(async { lab.leader().await });
    lab.bind("b");
    let start = MemberConfig {
        initial_cluster_state: InitialClusterState::Existing,
        ..lab.member_config("b")
    };
    let told = start.open().unwrap_err();
    assert!(matches!(told, Error::NotAdded { .. }), "{told}");
    block_on(lab.kill("a"));
    let told = start.open().unwrap_err();
    assert!(matches!(told, Error::NoPeerAnswered(_)), "{told}");
}
