//! A member that is alone is killed again and again, while clients write.

use std::sync::atomic::Ordering::SeqCst;

use crate::program::{PATIENCE, members, moment};
use crate::writers::{Writers, are_there};
use crate::{Chance, setting};

/// Clients that write at the same time.
const WRITERS: usize = 16;

#[tokio::test]
async fn alone_it_forgets_nothing_that_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let mut chance = Chance::new();
    let kills = setting("CLEARLANE_KILLS").unwrap_or(6);
    let mut member = members(dir.path(), 1).remove(0);
    member.start();
    member.ready().await;
    let writers = Writers::start(&[member.client], WRITERS, 2);
    for kill in 0..kills {
        // Anywhere between two commits of the store, and between two syncs of the log.
        let until = writers.seen.acknowledged.load(SeqCst) + 1 + chance.below(600);
        let begin = std::time::Instant::now();
        while writers.seen.acknowledged.load(SeqCst) < until {
            assert!(begin.elapsed() < PATIENCE, "no writes at kill {kill}: {}", member.log());
            moment().await;
        }
        member.kill();
        member.start();
        member.ready().await;
    }
    let healed = writers.seen.heals().await;
    let reads = writers.seen.reads.load(SeqCst);
    let keys = writers.end().await;
    member.kill();
    member.start();
    member.ready().await;
    are_there(member.client, &keys, false).await;
    println!(
        "{kills} kills: {} acknowledged puts are there, {reads} reads never went back; the last one took \
         {healed:?} to be writable",
        keys.len()
    );
}
