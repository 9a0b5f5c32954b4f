//! Tests that the leader keeps leases, and that clients can use them through any member.

use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseTimeToLiveRequest,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request};

use crate::test_cluster::{TestCluster, block_on};

#[test]
fn any_member_answers_for_the_leader() {
    let cluster = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        let leader = cluster.leader().await;
        let mut at_leader = LeaseClient::new(cluster.channel(&leader).await);
        let grant = LeaseGrantRequest { id: 7, ttl: 60 };
        assert_eq!(at_leader.lease_grant(grant).await.unwrap().into_inner().ttl, 60);
        for name in cluster.names() {
            let mut lease = LeaseClient::new(cluster.channel(&name).await);
            let response = lease.lease_time_to_live(LeaseTimeToLiveRequest { id: 7, keys: true });
            let response = response.await.unwrap().into_inner();
            assert_eq!((response.id, response.granted_ttl), (7, 60), "{name}");
            assert_eq!(
                response.header.unwrap().member_id,
                cluster.id(&name),
                "the member that was asked answers"
            );
            for (id, ttl) in [(7, 60), (8, 0)] {
                let asked = tokio_stream::once(LeaseKeepAliveRequest { id });
                let mut answers = lease.lease_keep_alive(asked).await.unwrap().into_inner();
                let answer = answers.message().await.unwrap().unwrap();
                assert_eq!((answer.id, answer.ttl), (id, ttl), "{name}");
            }
        }
    });
}

/// As in etcd, a keep-alive stream that requires a leader ends if its member has no leader. So a
/// client of a member that is cut off notices the loss of the leader, and can connect to another
/// member.
#[test]
fn a_keep_alive_that_requires_a_leader_ends_without_one() {
    let mut cluster = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        cluster.leader().await;
        let mut lease = LeaseClient::new(cluster.channel("a").await);
        let grant = LeaseGrantRequest { id: 7, ttl: 60 };
        lease.lease_grant(grant).await.unwrap();
        let (requests, receiver) = tokio::sync::mpsc::channel(1);
        let mut request = Request::new(ReceiverStream::new(receiver));
        request.metadata_mut().insert("hasleader", "true".parse().unwrap());
        requests.send(LeaseKeepAliveRequest { id: 7 }).await.unwrap();
        let mut responses = lease.lease_keep_alive(request).await.unwrap().into_inner();
        assert_eq!(responses.message().await.unwrap().unwrap().ttl, 60);
        cluster.kill("b").await;
        cluster.kill("c").await;
        let error = responses.message().await.unwrap_err();
        assert_eq!((error.code(), error.message()), (Code::Unavailable, "etcdserver: no leader"));
    });
}
