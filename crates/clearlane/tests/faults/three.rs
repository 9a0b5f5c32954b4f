//! Any of three members is killed repeatedly, often the leader, while clients write and read.

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use crate::program::{Program, TIMEOUT, leader_of, members, short_pause};
use crate::writers::{Writers, check_keys_present};
use crate::{SeededRng, env_number};

/// The default election timeout.
const ELECTION: Duration = Duration::from_secs(1);

#[tokio::test]
async fn three_members_lose_nothing_and_agree() {
    let dir = tempfile::tempdir().unwrap();
    let mut chance = SeededRng::new();
    let seconds = Duration::from_secs(env_number("CLEARLANE_SECONDS").unwrap_or(10));
    let mut members = members(dir.path(), 3);
    members.iter_mut().for_each(Program::start);
    for member in &mut members {
        member.ready().await;
    }
    let ports: Vec<u16> = members.iter().map(|member| member.client).collect();
    let writers = Writers::start(&ports, 12, 6);
    writers.progress.wait_for_recovery().await;
    let (begin, mut led, mut followed) = (Instant::now(), Vec::new(), Vec::new());
    while begin.elapsed() < seconds {
        let until = writers.progress.acknowledged.load(SeqCst) + chance.below(2000);
        let begin = Instant::now();
        while writers.progress.acknowledged.load(SeqCst) < until {
            assert!(begin.elapsed() < TIMEOUT, "no writes: {}", members[0].log());
            short_pause().await;
        }
        let leader = leader_of(&mut members).await;
        let (victim, healed) = match chance.below(2) {
            0 => (leader, &mut led),
            _ => (chance.below(3) as usize, &mut followed),
        };
        members[victim].kill();
        let took = writers.progress.wait_for_recovery().await;
        if victim == leader {
            led.push(took)
        } else {
            healed.push(took)
        }
        members[victim].start();
        members[victim].ready().await;
    }
    let reads = writers.progress.reads.load(SeqCst);
    let keys = writers.end().await;
    agree(&mut members).await;
    for member in &members {
        check_keys_present(member.client, &keys, false).await;
        check_keys_present(member.client, &keys, true).await;
    }
    led.sort();
    println!(
        "{} kills of the leader, {} of others: {} acknowledged puts are there, {reads} reads never went \
         back, all members have the same hash; a leader's kill was healed after {:?} (median) and {:?} \
         (longest)",
        led.len(),
        followed.len(),
        keys.len(),
        led.get(led.len() / 2),
        led.last()
    );
    if let Some(longest) = led.last() {
        // A long run is a measurement, so its limit is two election timeouts. In a short run, other
        // tests run at the same time and slow the members, so the limit is only a safeguard.
        let bound = if env_number("CLEARLANE_SECONDS").is_some() { 2 } else { 30 };
        assert!(*longest <= bound * ELECTION, "{led:?}");
    }
}

/// Waits until all members have the same revision and the same hash.
pub(crate) async fn agree(members: &mut [Program]) {
    let begin = Instant::now();
    loop {
        let mut revisions = Vec::new();
        for member in &mut *members {
            revisions.push(member.ready().await.header.unwrap().revision);
        }
        if revisions.iter().all(|revision| *revision == revisions[0]) {
            let mut hashes = Vec::new();
            for member in &*members {
                hashes.push(member.hash(revisions[0]).await);
            }
            if hashes.iter().all(|hash| *hash == hashes[0]) {
                return;
            }
            // The hashes differ while one member has not applied a compaction yet. A compaction
            // does not change the revision.
            assert!(begin.elapsed() < TIMEOUT, "{hashes:?}");
        }
        assert!(begin.elapsed() < TIMEOUT, "they are at {revisions:?}");
        short_pause().await;
    }
}
