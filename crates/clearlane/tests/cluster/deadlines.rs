//! Clients that send how long they wait, to a cluster that cannot answer.

use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::{LeaseGrantRequest, RangeRequest};
use prost::Message;

use crate::test_cluster::{TestCluster, block_on, put};
use crate::wire_client::Client;

const PATIENCE: Duration = Duration::from_millis(300);
const OK: &str = "0";
const DEADLINE_EXCEEDED: &str = "4";

/// Tonic's client gives up by itself; this one waits for what comes back.
async fn call(client: &mut Client, path: &str, message: &impl Message) -> String {
    client.call(path, &[("grpc-timeout", "300m")], message).await.code
}

async fn is_late(client: &mut Client, path: &str, message: &impl Message) {
    let begun = Instant::now();
    assert_eq!(call(client, path, message).await, DEADLINE_EXCEEDED, "{path}");
    let took = begun.elapsed();
    // Well before the time-out of a request, which is seven seconds.
    assert!(PATIENCE <= took && took < 20 * PATIENCE, "{path}: {took:?}");
}

#[test]
fn a_request_ends_with_its_clients_patience() {
    let mut lab = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        let leader = lab.leader().await;
        lab.put(&leader, "k", "v").await;
        for name in lab.followers().await {
            lab.kill(&name).await;
        }
        // It goes on for a while as if it led, and then knows no leader.
        let mut client = Client::connect(lab.running[&leader].client).await;
        let read = RangeRequest { key: "k".into(), ..RangeRequest::default() };
        for _ in 0..3 {
            is_late(&mut client, "/etcdserverpb.KV/Put", &put("k", "w")).await;
            is_late(&mut client, "/etcdserverpb.KV/Range", &read).await;
        }
        let grant = LeaseGrantRequest { ttl: 60, id: 0 };
        is_late(&mut client, "/etcdserverpb.Lease/LeaseGrant", &grant).await;
        // What needs no other member is answered.
        let old = RangeRequest { serializable: true, ..read };
        let begun = Instant::now();
        // Unless the machine has so much else to do that even this takes longer than its client
        // waits.
        while call(&mut client, "/etcdserverpb.KV/Range", &old).await != OK {
            assert!(begun.elapsed() < 100 * PATIENCE, "never answered");
        }
    });
}
