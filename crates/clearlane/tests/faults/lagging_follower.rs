//! Measures how long puts take while a member that was stopped for a long time gets a raft
//! snapshot.

use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use tokio::task::JoinSet;
use tonic::Code;
use tonic::transport::Channel;

use crate::env_number;
use crate::program::{Program, TIMEOUT, kv_with_timeout, leader_of, members, short_pause};
use crate::support;
use crate::writers::value_of;

/// The interval between two timed puts.
const INTERVAL: Duration = Duration::from_millis(5);

async fn put(client: &mut KvClient<Channel>, key: String) -> Duration {
    let begin = Instant::now();
    let put = support::put(&key, value_of(&key));
    // On a busy machine there may be another leader, or no leader for a while.
    while let Err(status) = client.put(put.clone()).await {
        let is_late = matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded);
        assert!(is_late && begin.elapsed() < TIMEOUT, "{status}");
    }
    begin.elapsed()
}

async fn fill(client: &KvClient<Channel>, count: u64) {
    let mut fillers = JoinSet::new();
    for filler in 0..64 {
        let mut client = client.clone();
        fillers.spawn(async move {
            for number in (filler..count).step_by(64) {
                put(&mut client, format!("w{number:010}")).await;
            }
        });
    }
    fillers.join_all().await;
}

/// Starts a put every [`INTERVAL`] until `ends` returns true. Returns how long each put took, in
/// ascending order.
async fn timed(client: &KvClient<Channel>, mut ends: impl FnMut(usize) -> bool) -> Vec<Duration> {
    let mut puts = JoinSet::new();
    let mut clock = tokio::time::interval(INTERVAL);
    for number in 0.. {
        if ends(number) {
            break;
        }
        clock.tick().await;
        let mut client = client.clone();
        puts.spawn(async move { put(&mut client, format!("timed{:02}", number % 100)).await });
    }
    let mut took = puts.join_all().await;
    took.sort();
    took
}

fn p99(sorted: &[Duration]) -> Duration {
    sorted[(sorted.len() - 1) * 99 / 100]
}

#[tokio::test]
async fn a_member_far_behind_gets_a_copy_beside_the_writes() {
    let dir = tempfile::tempdir().unwrap();
    let entries = env_number("CLEARLANE_BEHIND").unwrap_or(20_000);
    let mut members = members(dir.path(), 3);
    members.iter_mut().for_each(Program::start);
    let leader = leader_of(&mut members).await;
    let client = kv_with_timeout(members[leader].client).await;
    fill(&client, 100).await;
    let away = (leader + 1) % 3;
    members[away].kill();
    fill(&client, entries).await;
    let calm = timed(&client, |number| number == 1000).await;

    let target = members[leader].ready().await.raft_applied_index;
    members[away].start();
    let begin = Instant::now();
    let (caught_up_sender, mut caught_up) = tokio::sync::watch::channel(None);
    let waits = async {
        while members[away].ready().await.raft_applied_index < target {
            assert!(begin.elapsed() < TIMEOUT, "it is behind: {}", members[away].log());
            // Polling without a pause would be an additional load that slows the puts.
            short_pause().await;
        }
        caught_up_sender.send_replace(Some(begin.elapsed()));
    };
    // At least 1,000 puts are needed for a meaningful 99th percentile.
    let ends = |number: usize| number >= 1000 && caught_up.borrow_and_update().is_some();
    let (beside, ()) = tokio::join!(timed(&client, ends), waits);
    let took = caught_up_sender.borrow().unwrap();
    assert!(
        members[away].log().contains("received a raft snapshot"),
        "it was to get a copy: {}",
        members[away].log()
    );
    println!(
        "{entries} entries behind, caught up in {took:?}; p99 of puts {:?} before, {:?} beside it",
        p99(&calm),
        p99(&beside)
    );
    let revision = members[leader].ready().await.header.unwrap().revision;
    let begin = Instant::now();
    while members[away].ready().await.header.unwrap().revision < revision {
        assert!(begin.elapsed() < TIMEOUT, "it stays behind: {}", members[away].log());
        short_pause().await;
    }
    let (its, the_leaders) =
        (members[away].hash(revision).await, members[leader].hash(revision).await);
    assert_eq!(its, the_leaders);
}
