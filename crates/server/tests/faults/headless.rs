//! A leader is killed while clients write through another member: what has not left that one goes to the
//! next leader, and nobody waits for long for what the old one has taken along.

use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::PutRequest;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::program::{PATIENCE, Program, leader_of, members, moment, patient};

const LEADER_LOST: &str = "etcdserver: request timed out, possibly due to previous leader failure";
/// The members choose another one in less than two seconds, and then a proposal may be late by half a
/// second; on a machine that has much else to do, some more. A request without an answer would wait for seven.
const LONGEST: Duration = Duration::from_millis(6000);

async fn put(client: &mut KvClient<Channel>, key: String) -> Result<(), Status> {
    let put = PutRequest { key: key.into(), value: "v".into(), ..PutRequest::default() };
    client.put(put).await.map(drop)
}

#[tokio::test]
async fn who_writes_through_a_follower_hears_what_became_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut members = members(dir.path(), 3);
    members.iter_mut().for_each(Program::start);
    let leader = leader_of(&mut members).await;
    let follower = (leader + 1) % 3;
    let client = patient(members[follower].client).await;
    let mut writers = JoinSet::new();
    let (ready, mut all_ready) = tokio::sync::mpsc::channel(1);
    let (stop, stopped) = tokio::sync::watch::channel(false);
    for writer in 0..32 {
        let (mut client, ready, stopped) = (client.clone(), ready.clone(), stopped.clone());
        writers.spawn(async move {
            let (mut lost, mut longest) = (0, Duration::ZERO);
            for number in 0.. {
                if *stopped.borrow() {
                    break;
                }
                let begin = Instant::now();
                let done = put(&mut client, format!("{writer}/{number}")).await;
                longest = longest.max(begin.elapsed());
                if let Err(status) = done {
                    assert_eq!((status.code(), status.message()), (Code::Unavailable, LEADER_LOST));
                    lost += 1;
                }
                if number == 20 {
                    ready.send(()).await.unwrap();
                }
            }
            (lost, longest)
        });
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
    put(&mut client.clone(), "after".to_owned()).await.unwrap();
    let after = begin.elapsed();
    stop.send_replace(true);
    let outcomes = writers.join_all().await;
    let lost: u32 = outcomes.iter().map(|(lost, _)| lost).sum();
    let longest = outcomes.iter().map(|(_, longest)| *longest).max().unwrap();
    println!(
        "the next put took {after:?}; of 32 writers {lost} lost one; {longest:?} was the longest"
    );
    assert!(after.max(longest) < LONGEST, "{after:?}, {longest:?}");
    // One for each writer at the most, what he had under way; and as many if leaders change once more.
    assert!(lost <= 64, "{lost} were lost");
}
