//! Leaders come and go; what was acknowledged stays.

use std::time::Instant;

use crate::test_cluster::{ELECTION, TestCluster, block_on, eventually};

#[test]
fn what_is_written_anywhere_is_read_everywhere() {
    let lab = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        lab.leader().await;
        for writer in lab.names() {
            lab.put(&writer, &writer, "1").await;
            for reader in lab.names() {
                let found = lab.get(&reader, &writer).await.unwrap();
                assert_eq!(found.as_deref(), Some("1"), "written at {writer}, read at {reader}");
            }
        }
        for name in lab.names() {
            let node = lab.node(&name);
            eventually("what all have published", || {
                let members = node.members();
                let names: Vec<&str> = members.iter().map(|member| &*member.name).collect();
                let all_there = ["a", "b", "c"].iter().all(|name| names.contains(name));
                (all_there && members.version() == Some("3.7.0")).then_some(())
            })
            .await;
        }
        lab.agree().await;
    });
}

#[test]
fn when_the_leader_dies_another_goes_on_and_the_first_comes_back() {
    let mut lab = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        let mut healed = Vec::new();
        let (leader, left) = loop {
            let leader = lab.leader().await;
            lab.put(&leader, "before", "1").await;
            let begin = Instant::now();
            lab.kill(&leader).await;
            let left = lab.names();
            lab.put(&left[0], "after", "2").await;
            healed.push(begin.elapsed());
            // Two time-outs, and what a busy machine takes for a round of votes and a write. It may
            // not have run at all for a while, but not every time.
            if healed[healed.len() - 1] < 3 * ELECTION {
                break (leader, left);
            }
            assert!(healed.len() < 3, "healed in {healed:?}");
            lab.start(&leader);
            lab.agree().await;
        };
        assert_eq!(lab.get(&left[1], "before").await.unwrap().as_deref(), Some("1"));
        lab.start(&leader);
        let found = lab.get(&leader, "after").await;
        if let Ok(found) = found {
            assert_eq!(found.as_deref(), Some("2"), "a linearizable read is never old");
        }
        lab.agree().await;
        lab.put(&leader, "again", "3").await;
        assert_eq!(lab.get(&left[0], "again").await.unwrap().as_deref(), Some("3"));
        lab.agree().await;
    });
}

#[test]
fn leadership_is_handed_over() {
    let lab = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        let followers = lab.followers().await;
        let leader = lab.leader().await;
        lab.put(&leader, "a", "1").await;
        // It must have caught up, or the old leader goes on.
        lab.agree().await;
        let to = lab.id(&followers[0]);
        lab.hand_over(&leader, to).await;
        lab.put(&leader, "a", "2").await;
        assert_eq!(lab.get(&followers[1], "a").await.unwrap().as_deref(), Some("2"));
        lab.agree().await;
    });
}

#[test]
fn a_link_that_is_cut_moves_no_other_member() {
    let lab = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        let followers = lab.followers().await;
        let leader = lab.leader().await;
        let (cut, other) = (&followers[0], &followers[1]);
        lab.put(&leader, "a", "0").await;
        let term = lab.node(&leader).status().term();
        lab.running[&leader].peers.set_cut(lab.id(cut), true);
        lab.running[cut].peers.set_cut(lab.id(&leader), true);
        // It gets no votes: a member that still gets heartbeats of the leader gives none.
        eventually("that it knows no leader", || {
            (lab.node(cut).status().leader() == 0).then_some(())
        })
        .await;
        for number in 1..20 {
            lab.put(other, "a", &number.to_string()).await;
        }
        assert_eq!(lab.node(&leader).status().term(), term, "the leader goes on");
        lab.running[&leader].peers.set_cut(lab.id(cut), false);
        lab.running[cut].peers.set_cut(lab.id(&leader), false);
        lab.agree().await;
        assert_eq!(lab.get(cut, "a").await.unwrap().as_deref(), Some("19"));
        assert_eq!(lab.node(&leader).status().term(), term);
    });
}
