//! A leader is killed while clients write through another member. A request that the killed leader
//! has received, but not answered, fails with etcd's time-out error. No other request is lost, and
//! the next leader accepts all later requests.

use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use tokio::sync::mpsc::{self, Sender};
use tokio::sync::watch::{self, Receiver};
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::program::{Program, TIMEOUT, kv_with_timeout, leader_of, members, short_pause};
use crate::support;

/// The longest wait of a lost request: its time-out of seven seconds, and five seconds for a busy
/// machine.
const LONGEST: Duration = Duration::from_millis(12_000);
const WRITERS: u32 = 32;

async fn put(client: &mut KvClient<Channel>, key: String) -> Result<(), Status> {
    client.put(support::put(key, "v")).await.map(drop)
}

#[derive(Default)]
struct WriteOutcome {
    lost: u32,
    longest: Duration,
}

/// Checks that a failed request was lost with the leader. Its error has the text for a lost leader,
/// or, if the election took long, the text for a broken connection or for a time-out.
fn is_lost(status: &Status) -> bool {
    let is_lost = status.code() == Code::Unavailable
        && status.message().starts_with("etcdserver: request timed out");
    assert!(is_lost, "{status}");
    is_lost
}

async fn write(
    mut client: KvClient<Channel>,
    writer: u32,
    ready: Sender<()>,
    stopped: Receiver<bool>,
) -> WriteOutcome {
    let mut outcome = WriteOutcome::default();
    for number in 0.. {
        if *stopped.borrow() {
            break;
        }
        let begin = Instant::now();
        let done = put(&mut client, format!("{writer}/{number}")).await;
        outcome.longest = outcome.longest.max(begin.elapsed());
        outcome.lost += u32::from(done.is_err_and(|status| is_lost(&status)));
        if number == 20 {
            ready.send(()).await.unwrap();
        }
    }
    outcome
}

#[tokio::test]
async fn a_write_through_a_follower_is_done_or_times_out() {
    let dir = tempfile::tempdir().unwrap();
    let mut members = members(dir.path(), 3);
    members.iter_mut().for_each(Program::start);
    let leader = leader_of(&mut members).await;
    let follower = (leader + 1) % 3;
    let client = kv_with_timeout(members[follower].client).await;
    let mut writers = JoinSet::new();
    let (ready, mut all_ready) = mpsc::channel(1);
    let (stop, stopped) = watch::channel(false);
    for writer in 0..WRITERS {
        writers.spawn(write(client.clone(), writer, ready.clone(), stopped.clone()));
    }
    for _ in 0..WRITERS {
        all_ready.recv().await.unwrap();
    }
    members[leader].kill();
    let begin = Instant::now();
    // The log line names the killed member.
    let lost = format!(r#""name":"m{leader}""#);
    let is_lost_line = |line: &str| line.contains("no connection") && line.contains(&lost);
    while !members[follower].log().lines().any(is_lost_line) {
        assert!(begin.elapsed() < TIMEOUT, "{}", members[follower].log());
        short_pause().await;
    }
    // A request at this time is lost, or waits for the next leader.
    let next = put(&mut client.clone(), "next".to_owned()).await;
    let is_next_lost = next.is_err_and(|status| is_lost(&status));
    let after = begin.elapsed();
    put(&mut client.clone(), "after".to_owned()).await.unwrap();
    stop.send_replace(true);
    let outcomes = writers.join_all().await;
    let lost: u32 = outcomes.iter().map(|outcome| outcome.lost).sum();
    let longest = outcomes.iter().map(|outcome| outcome.longest).max().unwrap();
    println!(
        "the next put took {after:?}, lost: {is_next_lost}; of {WRITERS} writers {lost} lost one; \
         {longest:?} was the longest"
    );
    assert!(after.max(longest) < LONGEST, "{after:?}, {longest:?}");
    // Each writer can lose the one request that it had in flight, and one more request if the
    // leader changes again.
    assert!(lost <= 2 * WRITERS, "{lost} were lost");
}
