//! A lease is kept by the leader, and asked for anywhere.

use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseTimeToLiveRequest,
};

use crate::test_cluster::{TestCluster, block_on};

#[test]
fn any_member_answers_for_the_leader() {
    let lab = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        let leader = lab.leader().await;
        let mut at_leader = LeaseClient::new(lab.channel(&leader).await);
        let grant = LeaseGrantRequest { id: 7, ttl: 60 };
        assert_eq!(at_leader.lease_grant(grant).await.unwrap().into_inner().ttl, 60);
        for name in lab.names() {
            let mut lease = LeaseClient::new(lab.channel(&name).await);
            let told = lease.lease_time_to_live(LeaseTimeToLiveRequest { id: 7, keys: true });
            let told = told.await.unwrap().into_inner();
            assert_eq!((told.id, told.granted_ttl), (7, 60), "{name}");
            assert_eq!(
                told.header.unwrap().member_id,
                lab.id(&name),
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
