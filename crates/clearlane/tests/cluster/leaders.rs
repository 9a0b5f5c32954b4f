//! Tests that acknowledged writes survive changes of the leader.

use std::time::Instant;

use crate::test_cluster::{ELECTION, TestCluster, block_on, eventually};

#[test]
fn what_is_written_anywhere_is_read_everywhere() {
    let cluster = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        cluster.leader().await;
        for writer in cluster.names() {
            cluster.put(&writer, &writer, "1").await;
            for reader in cluster.names() {
                let found = cluster.get(&reader, &writer).await.unwrap();
                assert_eq!(found.as_deref(), Some("1"), "written at {writer}, read at {reader}");
            }
        }
        for name in cluster.names() {
            let node = cluster.node(&name);
            eventually("what all have published", || {
                let members = node.members();
                let names: Vec<&str> = members.iter().map(|member| &*member.name).collect();
                let all_there = ["a", "b", "c"].iter().all(|name| names.contains(name));
                (all_there && members.version() == Some("3.7.0")).then_some(())
            })
            .await;
        }
        cluster.agree().await;
    });
}

#[test]
fn when_the_leader_dies_another_goes_on_and_the_first_comes_back() {
    let mut cluster = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        let mut healed = Vec::new();
        let (leader, left) = loop {
            let leader = cluster.leader().await;
            cluster.put(&leader, "before", "1").await;
            let begin = Instant::now();
            cluster.kill(&leader).await;
            let left = cluster.names();
            cluster.put(&left[0], "after", "2").await;
            healed.push(begin.elapsed());
            // Two of the three election timeouts are for the election itself, and one is for a busy
            // machine. The process may have been paused for a while, but not in all of three
            // attempts.
            if healed[healed.len() - 1] < 3 * ELECTION {
                break (leader, left);
            }
            assert!(healed.len() < 3, "healed in {healed:?}");
            cluster.start(&leader);
            cluster.agree().await;
        };
        assert_eq!(cluster.get(&left[1], "before").await.unwrap().as_deref(), Some("1"));
        cluster.start(&leader);
        let found = cluster.get(&leader, "after").await;
        if let Ok(found) = found {
            assert_eq!(found.as_deref(), Some("2"), "a linearizable read is never old");
        }
        cluster.agree().await;
        cluster.put(&leader, "again", "3").await;
        assert_eq!(cluster.get(&left[0], "again").await.unwrap().as_deref(), Some("3"));
        cluster.agree().await;
    });
}

#[test]
fn leadership_is_handed_over() {
    let cluster = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        let followers = cluster.followers().await;
        let leader = cluster.leader().await;
        cluster.put(&leader, "a", "1").await;
        // Raft transfers the leadership only to a member that has all entries. Otherwise the old
        // leader continues to lead.
        cluster.agree().await;
        let to = cluster.id(&followers[0]);
        cluster.hand_over(&leader, to).await;
        cluster.put(&leader, "a", "2").await;
        assert_eq!(cluster.get(&followers[1], "a").await.unwrap().as_deref(), Some("2"));
        cluster.agree().await;
    });
}

#[test]
fn a_link_that_is_cut_moves_no_other_member() {
    let cluster = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        let followers = cluster.followers().await;
        let leader = cluster.leader().await;
        let (cut, other) = (&followers[0], &followers[1]);
        cluster.put(&leader, "a", "0").await;
        let term = cluster.node(&leader).status().term();
        cluster.running[&leader].peers.set_cut(cluster.id(cut), true);
        cluster.running[cut].peers.set_cut(cluster.id(&leader), true);
        // The member that is cut off gets no votes: the other follower still receives heartbeats
        // from the leader, so it does not vote for another member.
        eventually("that it knows no leader", || {
            (cluster.node(cut).status().leader() == 0).then_some(())
        })
        .await;
        for number in 1..20 {
            cluster.put(other, "a", &number.to_string()).await;
        }
        assert_eq!(cluster.node(&leader).status().term(), term, "the leader goes on");
        cluster.running[&leader].peers.set_cut(cluster.id(cut), false);
        cluster.running[cut].peers.set_cut(cluster.id(&leader), false);
        cluster.agree().await;
        assert_eq!(cluster.get(cut, "a").await.unwrap().as_deref(), Some("19"));
        assert_eq!(cluster.node(&leader).status().term(), term);
    });
}
