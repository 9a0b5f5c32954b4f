//! A leader is killed while clients write through another member: what has not left that one goes to the
//! next leader, and nobody waits for long for what the old one has taken along.

use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::PutRequest;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use tokio::sync::mpsc::{self, Sender};
use tokio::sync::watch::{self, Receiver};
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::program::{PATIENCE, Program, leader_of, members, moment, patient};

const LEADER_LOST: &str = "etcdserver: request timed out, possibly due to previous leader failure";
/// The members choose another one in less than two seconds, and then a proposal may be late by half a
/// second; on a machine that has much else to do, some more. A request without an answer would wait for seven.
const LONGEST: Duration = Duration::from_millis(6000);
/// A machine may have so much else to do that they choose twice, or that nobody runs for seconds. It does
/// not have that every time.
const ATTEMPTS: usize = 3;

async fn put(client: &mut KvClient<Channel>, key: String) -> Result<(), Status> {
    let put = PutRequest { key: key.into(), value: "v".into(), ..PutRequest::default() };
    client.put(put).await.map(drop)
}

#[tokio::test]
async fn who_writes_through_a_follower_hears_what_became_of_it() {
    for attempt in 1..=ATTEMPTS {
        match attempt_to_lose_the_leader().await {
            Ok(()) => return,
            Err(words) => println!("attempt {attempt}: {words}"),
        }
    }
    panic!("not once in {ATTEMPTS} attempts");
}

/// What a writer has come to.
#[derive(Default)]
struct Outcome {
    lost: u32,
    longest: Duration,
}

/// Whoever is refused has lost a leader, unless it took longer than it should in any case.
fn is_lost(status: &Status, begin: Instant) -> bool {
    let is_lost = (status.code(), status.message()) == (Code::Unavailable, LEADER_LOST);
    assert!(is_lost || begin.elapsed() >= LONGEST, "{status}");
    is_lost
}

async fn write(
    mut client: KvClient<Channel>,
    writer: usize,
    ready: Sender<()>,
    stopped: Receiver<bool>,
) -> Outcome {
    let mut outcome = Outcome::default();
    for number in 0.. {
        if *stopped.borrow() {
            break;
        }
        let begin = Instant::now();
        let done = put(&mut client, format!("{writer}/{number}")).await;
        outcome.longest = outcome.longest.max(begin.elapsed());
        outcome.lost += u32::from(done.is_err_and(|status| is_lost(&status, begin)));
        if number == 20 {
            ready.send(()).await.unwrap();
        }
    }
    outcome
}

/// Says what was not as it should be on a machine that has time.
async fn attempt_to_lose_the_leader() -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let mut members = members(dir.path(), 3);
    members.iter_mut().for_each(Program::start);
    let leader = leader_of(&mut members).await;
    let follower = (leader + 1) % 3;
    let client = patient(members[follower].client).await;
    let mut writers = JoinSet::new();
    let (ready, mut all_ready) = mpsc::channel(1);
    let (stop, stopped) = watch::channel(false);
    for writer in 0..32 {
        writers.spawn(write(client.clone(), writer, ready.clone(), stopped.clone()));
    }
    for _ in 0..32 {
        all_ready.recv().await.unwrap();
    }
    members[leader].kill();
    let begin = Instant::now();
    while !members[follower].log().contains("no connection") {
        assert!(begin.elapsed() < PATIENCE, "{}", members[follower].log());
        moment().await;
    }
    // What comes now finds a way that is broken, and is kept.
    let kept = put(&mut client.clone(), "after".to_owned()).await;
    let after = begin.elapsed();
    stop.send_replace(true);
    let outcomes = writers.join_all().await;
    let lost: u32 = outcomes.iter().map(|outcome| outcome.lost).sum();
    let longest = outcomes.iter().map(|outcome| outcome.longest).max().unwrap();
    println!(
        "the next put took {after:?}; of 32 writers {lost} lost one; {longest:?} was the longest"
    );
    if let Err(status) = kept {
        is_lost(&status, begin);
        return Err(format!("the next put was lost: {status}"));
    }
    if after.max(longest) >= LONGEST {
        return Err(format!("somebody waited for too long: {after:?}, {longest:?}"));
    }
    // One for each writer at the most, what he had under way; and as many if leaders change once more.
    if lost > 64 {
        return Err(format!("{lost} were lost"));
    }
    Ok(())
}
