//! The only member of a cluster is killed repeatedly while clients write.

use std::sync::atomic::Ordering::SeqCst;

use crate::program::{TIMEOUT, members, short_pause};
use crate::writers::{Writers, check_keys_present};
use crate::{SeededRng, env_number};

const WRITERS: usize = 16;

#[tokio::test]
async fn alone_it_forgets_nothing_that_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let mut chance = SeededRng::new();
    let kills = env_number("CLEARLANE_KILLS").unwrap_or(6);
    let mut member = members(dir.path(), 1).remove(0);
    member.start();
    member.ready().await;
    let writers = Writers::start(&[member.client], WRITERS, 2);
    for kill in 0..kills {
        // The kill may occur at any point between two commits of the store and between two syncs of
        // the log.
        let until = writers.progress.acknowledged.load(SeqCst) + 1 + chance.below(600);
        let begin = std::time::Instant::now();
        while writers.progress.acknowledged.load(SeqCst) < until {
            assert!(begin.elapsed() < TIMEOUT, "no writes at kill {kill}: {}", member.log());
            short_pause().await;
        }
        member.kill();
        member.start();
        member.ready().await;
    }
    let healed = writers.progress.wait_for_recovery().await;
    let reads = writers.progress.reads.load(SeqCst);
    let keys = writers.end().await;
    member.kill();
    member.start();
    member.ready().await;
    check_keys_present(member.client, &keys, false).await;
    println!(
        "{kills} kills: {} acknowledged puts are there, {reads} reads never went back; the last one took \
         {healed:?} to be writable",
        keys.len()
    );
}
