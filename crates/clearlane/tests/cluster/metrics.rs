//! Tests of the metrics of connections between members.

use clearlane_replica::apply::Limits;
use clearlane_rpc::metrics::RpcMetrics;
use clearlane_server::Server;

use crate::test_cluster::{TestCluster, block_on, eventually};

fn page(cluster: &TestCluster, name: &str) -> String {
    let member = Server::new(&cluster.running[name].node, Limits::default());
    RpcMetrics::default().render(&member)
}

fn value(page: &str, sample: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(sample));
    line.map_or(0.0, |value| value.trim().parse().unwrap())
}

#[test]
fn traffic_between_members_is_counted_by_member() {
    let cluster = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        let leader = cluster.leader().await;
        cluster.put(&leader, "k", "v").await;
        cluster.agree().await;
        let own = format!("{:x}", cluster.id(&leader));
        for follower in cluster.followers().await {
            let id = format!("{:x}", cluster.id(&follower));
            eventually("that all of it was counted", || {
                let page = page(&cluster, &leader);
                let active =
                    format!("etcd_network_active_peers{{Local=\"{own}\",Remote=\"{id}\"}}");
                let counted = [
                    active,
                    format!("etcd_network_peer_sent_bytes_total{{To=\"{id}\"}}"),
                    format!("etcd_network_peer_received_bytes_total{{From=\"{id}\"}}"),
                    format!("etcd_network_peer_round_trip_time_seconds_count{{To=\"{id}\"}}"),
                ];
                counted.iter().all(|sample| value(&page, sample) > 0.0).then_some(())
            })
            .await;
        }
        let page = page(&cluster, &leader);
        assert!(!page.contains(&format!("{{To=\"{own}\"}}")), "a member is no peer of its own");
    });
}
