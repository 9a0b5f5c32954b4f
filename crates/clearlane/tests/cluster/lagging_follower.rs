//! Tests of a member that was stopped until the leader's log no longer had its next entries.

use std::time::Duration;

use clearlane_proto::etcdserverpb::CompactionRequest;
use clearlane_replica::CompactionConfig;

use crate::support::{TIMEOUT, block_on_for, put_all};
use crate::test_cluster::{TestCluster, block_on, eventually, put};

#[test]
fn it_gets_a_copy_of_the_store_while_the_leader_goes_on() {
    let mut cluster = TestCluster::new(&["a", "b", "c"]);
    cluster.tune =
        |start| (start.replica.snapshot_count, start.replica.catch_up_entries) = (50, 10);
    for name in ["a", "b", "c"] {
        cluster.start(name);
    }
    block_on(async {
        let away = cluster.followers().await.remove(0);
        let leader = cluster.leader().await;
        cluster.put(&leader, "k", "0").await;
        cluster.agree().await;
        let id = cluster.id(&away);
        cluster.kill(&away).await;
        let value = "v".repeat(16 << 10);
        for number in 0..300 {
            cluster.put(&leader, &format!("k{number}"), &value).await;
        }
        cluster.start(&away);
        let copied = || {
            let figures = cluster.node(&leader).peer_clients().unwrap().traffic();
            let mut links = figures.iter().filter(|link| link.id == id);
            links.any(|link| link.raft_snapshots_sent > 0)
        };
        let mut written = 0;
        while !copied() {
            cluster.put(&leader, "meanwhile", &written.to_string()).await;
            written += 1;
        }
        eventually("that it has caught up", || {
            let (has, all) = (cluster.node(&away).status(), cluster.node(&leader).status());
            (has.applied() >= all.committed()).then_some(())
        })
        .await;
        let found = cluster.get(&away, "k299").await.unwrap();
        assert_eq!(found.as_deref(), Some(&*value));
        cluster.agree().await;
        // Restarts the member, to check that the received store is on its disk.
        cluster.kill(&away).await;
        cluster.start(&away);
        cluster.agree().await;
    });
}

/// Puts `keys` keys through the member `name`. Returns the revision of the last transaction.
async fn fill(cluster: &TestCluster, name: &str, keys: usize) -> i64 {
    let puts = (0..keys).map(|key| put(format!("filled{key:06}"), "v"));
    put_all(&mut cluster.kv(name).await, puts).await
}

/// The compaction of the old store still has steps left when the raft snapshot is installed. None
/// of these steps may run on the new store, which continues from its own compaction.
#[test]
fn it_installs_a_snapshot_while_a_compaction_is_under_way() {
    let mut cluster = TestCluster::new(&["a", "b", "c"]);
    cluster.tune = |start| {
        (start.replica.snapshot_count, start.replica.catch_up_entries) = (50, 10);
        // The compaction must run during the whole test, so its steps are small, with a short pause
        // between them.
        start.replica.compaction = CompactionConfig { batch: 1, pause: Duration::from_micros(50) };
    };
    for name in ["a", "b", "c"] {
        cluster.start(name);
    }
    // The test puts 150,000 keys, so it gets more time.
    block_on_for(4 * TIMEOUT, async {
        for _ in 0..5 {
            let away = cluster.followers().await.remove(0);
            let leader = cluster.leader().await;
            fill(&cluster, &leader, 5_000).await;
            let revision = fill(&cluster, &leader, 5_000).await;
            let compaction = CompactionRequest { revision, physical: false };
            cluster.kv(&leader).await.compact(compaction).await.unwrap();
            eventually("that it compacts", || {
                let compacted = cluster.node(&away).store().begin_read().compact_revision();
                (compacted == revision).then_some(())
            })
            .await;
            cluster.kill(&away).await;
            fill(&cluster, &leader, 20_000).await;
            cluster.start(&away);
            eventually("that it has caught up", || {
                let node = cluster.node(&away);
                let failure = node.failure();
                assert!(failure.borrow().is_none(), "it has stopped: {:?}", failure.borrow());
                let all = cluster.node(&leader).status().committed();
                (node.status().applied() >= all).then_some(())
            })
            .await;
        }
        cluster.agree().await;
    });
}
