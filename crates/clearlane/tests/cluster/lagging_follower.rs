//! A member that was away for longer than the log is kept.

use std::time::Duration;

use clearlane_proto::etcdserverpb::CompactionRequest;
use clearlane_server::replica::CompactionConfig;

use crate::support::put_all;
use crate::test_cluster::{TestCluster, block_on, eventually, put};

#[test]
fn it_gets_a_copy_of_the_store_while_the_leader_goes_on() {
    let mut lab = TestCluster::new(&["a", "b", "c"]);
    lab.tune = |start| (start.replica.snapshot_count, start.replica.catch_up_entries) = (50, 10);
    for name in ["a", "b", "c"] {
        lab.start(name);
    }
    block_on(async {
        let away = lab.followers().await.remove(0);
        let leader = lab.leader().await;
        lab.put(&leader, "k", "0").await;
        lab.agree().await;
        let id = lab.id(&away);
        lab.kill(&away).await;
        let value = "v".repeat(16 << 10);
        for number in 0..300 {
            lab.put(&leader, &format!("k{number}"), &value).await;
        }
        lab.start(&away);
        let copied = || {
            let figures = lab.node(&leader).peer_clients().unwrap().traffic();
            let mut links = figures.iter().filter(|link| link.id == id);
            links.any(|link| link.raft_snapshots_sent > 0)
        };
        let mut written = 0;
        while !copied() {
            lab.put(&leader, "meanwhile", &written.to_string()).await;
            written += 1;
        }
        eventually("that it has caught up", || {
            let (has, all) = (lab.node(&away).status(), lab.node(&leader).status());
            (has.applied() >= all.committed()).then_some(())
        })
        .await;
        let found = lab.get(&away, "k299").await.unwrap();
        assert_eq!(found.as_deref(), Some(&*value));
        lab.agree().await;
        // What it got is on its disk.
        lab.kill(&away).await;
        lab.start(&away);
        lab.agree().await;
    });
}

/// Returns the revision of the last put.
async fn fill(lab: &TestCluster, name: &str, keys: usize) -> i64 {
    let puts = (0..keys).map(|key| put(format!("filled{key:06}"), "v"));
    put_all(&mut lab.kv(name).await, puts).await
}

/// The compaction of the old store has steps left when the raft snapshot is installed. None of them
/// may be run on the new store, which goes on from its own mark.
#[test]
fn it_installs_a_snapshot_while_a_compaction_is_under_way() {
    let mut lab = TestCluster::new(&["a", "b", "c"]);
    lab.tune = |start| {
        (start.replica.snapshot_count, start.replica.catch_up_entries) = (50, 10);
        // Slow enough to be under way all the time, with as little as possible between its steps.
        start.replica.compaction = CompactionConfig { batch: 1, pause: Duration::from_micros(50) };
    };
    for name in ["a", "b", "c"] {
        lab.start(name);
    }
    block_on(async {
        for _ in 0..5 {
            let away = lab.followers().await.remove(0);
            let leader = lab.leader().await;
            fill(&lab, &leader, 5_000).await;
            let revision = fill(&lab, &leader, 5_000).await;
            let compaction = CompactionRequest { revision, physical: false };
            lab.kv(&leader).await.compact(compaction).await.unwrap();
            eventually("that it compacts", || {
                let compacted = lab.node(&away).store().begin_read().compact_revision();
                (compacted == revision).then_some(())
            })
            .await;
            lab.kill(&away).await;
            fill(&lab, &leader, 20_000).await;
            lab.start(&away);
            eventually("that it has caught up", || {
                let node = lab.node(&away);
                let failure = node.failure();
                assert!(failure.borrow().is_none(), "it has stopped: {:?}", failure.borrow());
                let all = lab.node(&leader).status().committed();
                (node.status().applied() >= all).then_some(())
            })
            .await;
        }
        lab.agree().await;
    });
}
