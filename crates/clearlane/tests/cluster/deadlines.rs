//! Tests of clients that send a deadline to a cluster that cannot respond.

use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::{LeaseGrantRequest, RangeRequest};
use prost::Message;

use crate::test_cluster::{TestCluster, block_on, put};
use crate::wire_client::Client;

const PATIENCE: Duration = Duration::from_millis(300);
const OK: &str = "0";
const DEADLINE_EXCEEDED: &str = "4";

/// Makes a call and returns its status. Unlike tonic's client, this client waits for the server's
/// response after the deadline.
async fn call(client: &mut Client, path: &str, message: &impl Message) -> String {
    client.call(path, &[("grpc-timeout", "300m")], message).await.code
}

async fn is_late(client: &mut Client, path: &str, message: &impl Message) {
    let begun = Instant::now();
    assert_eq!(call(client, path, message).await, DEADLINE_EXCEEDED, "{path}");
    let took = begun.elapsed();
    // This is well before the request timeout, which is seven seconds.
    assert!(PATIENCE <= took && took < 20 * PATIENCE, "{path}: {took:?}");
}

#[test]
fn a_request_ends_with_its_clients_patience() {
    let mut cluster = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        let leader = cluster.leader().await;
        cluster.put(&leader, "k", "v").await;
        for name in cluster.followers().await {
            cluster.kill(&name).await;
        }
        // The last member still acts as the leader for a while, and then has no leader.
        let mut client = Client::connect(cluster.running[&leader].client).await;
        let read = RangeRequest { key: "k".into(), ..RangeRequest::default() };
        for _ in 0..3 {
            is_late(&mut client, "/etcdserverpb.KV/Put", &put("k", "w")).await;
            is_late(&mut client, "/etcdserverpb.KV/Range", &read).await;
        }
        let grant = LeaseGrantRequest { ttl: 60, id: 0 };
        is_late(&mut client, "/etcdserverpb.Lease/LeaseGrant", &grant).await;
        // A read that needs no other member succeeds.
        let old = RangeRequest { serializable: true, ..read };
        let begun = Instant::now();
        // On a busy machine even this read may take longer than its deadline, so it is tried again.
        while call(&mut client, "/etcdserverpb.KV/Range", &old).await != OK {
            assert!(begun.elapsed() < 100 * PATIENCE, "never answered");
        }
    });
}
