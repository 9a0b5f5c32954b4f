//! A member that was away for longer than the log is kept.

use crate::lab::{Lab, block_on, eventually};

#[test]
fn it_gets_a_copy_of_the_store_while_the_leader_goes_on() {
    let mut lab = Lab::new(&["a", "b", "c"]);
    lab.tune = |start| (start.snapshot_count, start.catch_up_entries) = (50, 10);
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
            let figures = lab.running[&leader].peers.figures();
            figures.iter().find(|link| link.id == id).is_some_and(|link| link.copies_sent > 0)
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
