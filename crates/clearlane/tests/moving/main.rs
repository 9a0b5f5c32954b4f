//! etcd and Clearlane take turns on the same directories, and no acknowledged write is lost.
//!
//! `tests/compat/dump-logs/run` builds etcd and runs these tests. `CLEARLANE_SEED=7` selects other
//! changes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the seed of a failure is printed with it")]

mod contents;
#[path = "../support/entries.rs"]
mod entries;
mod log_loss;
mod servers;

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::contents::Contents;
use crate::entries::all_of;
use crate::servers::{Members, Program};

fn seeded() -> StdRng {
    let seed = std::env::var("CLEARLANE_SEED").map_or(1, |text| text.parse().unwrap());
    println!("CLEARLANE_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

/// Runs the members with the program `first`. At each turn, the other program takes over their
/// directories, and must serve all data of the earlier turns.
async fn hand_over(members: usize, turns: u32, first: Program) {
    let mut rng = seeded();
    let dir = tempfile::tempdir().unwrap();
    let mut members = Members::new(dir.path(), members);
    let (mut contents, mut program) = (Contents::default(), first);
    for turn in 0..turns {
        let channels = members.start(program).await;
        if turn > 0 {
            for channel in &channels {
                contents.check(channel).await;
            }
        }
        let channel = &channels[rng.random_range(0..channels.len())];
        contents.change(channel, turn, &mut rng).await;
        let signal = if turn % 4 < 2 { Signal::SIGKILL } else { Signal::SIGTERM };
        println!("turn {turn}: {program:?} ends by {signal}");
        members.stop(signal);
        program = program.other();
    }
    let channels = members.start(program).await;
    contents.check(&channels[0]).await;
}

#[tokio::test]
#[ignore = "needs etcd: run tests/compat/dump-logs/run"]
async fn one_member_is_handed_over_and_back_ten_times() {
    hand_over(1, 20, Program::Etcd).await;
}

#[tokio::test]
#[ignore = "needs etcd: run tests/compat/dump-logs/run"]
async fn three_members_are_handed_over_five_times_in_both_directions() {
    hand_over(3, 10, Program::Clearlane).await;
}

/// Runs etcd 3.6 for `rounds` rounds of changes, then Clearlane, then etcd 3.7.
async fn take_over_from_former(members: usize, rounds: u32, ends: Signal) {
    let mut rng = seeded();
    let dir = tempfile::tempdir().unwrap();
    let mut members = Members::new(dir.path(), members);
    let mut contents = Contents::default();
    let channels = members.start(Program::FormerEtcd).await;
    for round in 0..rounds {
        let channel = &channels[rng.random_range(0..channels.len())];
        contents.change(channel, round, &mut rng).await;
    }
    // The members of a new cluster agree on its version only after some seconds.
    let begin = Instant::now();
    while !members.get(0, "/version").contains("\"etcdcluster\":\"3.6.0\"") {
        assert!(begin.elapsed() < Duration::from_secs(60), "{}", members.get(0, "/version"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    members.stop(ends);
    let files = all_of(&members.data_dir(0));
    assert!(files.iter().any(|(path, ..)| path.extension().is_some_and(|end| end == "snap")));

    for (round, program) in [(rounds, Program::Clearlane), (rounds + 1, Program::Etcd)] {
        let channels = members.start(program).await;
        for channel in &channels {
            contents.check(channel).await;
        }
        contents.change(&channels[0], round, &mut rng).await;
        contents.check(&channels[channels.len() - 1]).await;
        members.stop(ends);
    }
}

#[tokio::test]
#[ignore = "needs etcd 3.6: run tests/compat/dump-logs/run"]
async fn one_member_of_etcd_3_6_is_taken_over() {
    for ends in [Signal::SIGTERM, Signal::SIGKILL] {
        take_over_from_former(1, 9, ends).await;
    }
}

#[tokio::test]
#[ignore = "needs etcd 3.6: run tests/compat/dump-logs/run"]
async fn three_members_of_etcd_3_6_are_taken_over() {
    for ends in [Signal::SIGTERM, Signal::SIGKILL] {
        take_over_from_former(3, 4, ends).await;
    }
}

#[tokio::test]
#[ignore = "needs etcd 3.6: run tests/compat/dump-logs/run"]
async fn a_snapshot_of_etcd_3_6_is_restored() {
    let mut rng = seeded();
    let dir = tempfile::tempdir().unwrap();
    let (file, mut contents) = (dir.path().join("saved"), Contents::default());
    let mut former = Members::new(dir.path(), 1);
    let channels = former.start(Program::FormerEtcd).await;
    for round in 0..2 {
        contents.change(&channels[0], round, &mut rng).await;
    }
    std::fs::write(&file, contents.snapshot(&channels[0]).await).unwrap();
    drop(former);
    let restored = dir.path().join("restored");
    std::fs::create_dir(&restored).unwrap();
    let mut members = Members::new(&restored, 3);
    members.restore(&file);
    for channel in members.start(Program::Clearlane).await {
        contents.check(&channel).await;
    }
}

/// A member lacks entries that its leader's log no longer has, and gets a snapshot from the leader.
/// Then the other program takes over.
async fn hand_over_after_snapshot(first: Program) {
    let mut rng = seeded();
    let dir = tempfile::tempdir().unwrap();
    let mut members = Members::new(dir.path(), 3);
    members.more_flags = vec!["--snapshot-catchup-entries=20"];
    let (mut contents, mut program) = (Contents::default(), first);
    for turn in 0..4 {
        let mut channels = members.start(program).await;
        if turn > 0 {
            for channel in &channels {
                contents.check(channel).await;
            }
        }
        let absent = turn as usize % 3;
        members.kill(absent);
        let present = (absent + 1) % 3;
        // The killed member may have been the leader, so the test first waits for a new leader.
        let channel = members.ready(present).await;
        contents.change(&channel, turn, &mut rng).await;
        channels[absent] = members.start_again(program, absent).await;
        contents.check(&channels[absent]).await;
        let received = match program {
            Program::Clearlane => "received a raft snapshot",
            Program::Etcd | Program::FormerEtcd => "applied snapshot",
        };
        assert!(members.said(absent).contains(received), "{program:?} was sent no snapshot");
        members.stop(if turn < 2 { Signal::SIGKILL } else { Signal::SIGTERM });
        program = program.other();
    }
    for channel in members.start(program).await {
        contents.check(&channel).await;
    }
}

#[tokio::test]
#[ignore = "needs etcd: run tests/compat/dump-logs/run"]
async fn members_that_were_sent_a_snapshot_are_handed_over() {
    hand_over_after_snapshot(Program::Clearlane).await;
}

#[tokio::test]
#[ignore = "needs etcd: run tests/compat/dump-logs/run"]
async fn a_directory_that_etcd_has_open_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut members = Members::new(dir.path(), 1);
    members.start(Program::Etcd).await;
    let names = |all: Vec<(PathBuf, u64, SystemTime)>| {
        all.into_iter().map(|(path, length, _)| (path, length)).collect::<Vec<_>>()
    };
    let before = names(all_of(&members.data_dir(0)));
    let begin = Instant::now();
    // The second member has its own addresses, so its start can fail only because the directory is
    // in use.
    let mut other = Members::new(dir.path(), 1).command(Program::Clearlane, 0);
    let refused = other.stderr(Stdio::piped()).output().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    assert_eq!(refused.status.code(), Some(1));
    let output = String::from_utf8(refused.stderr).unwrap();
    let words = "db: in use by another process or another part of this one";
    assert!(output.lines().last().unwrap().ends_with(words), "{output}");
    assert_eq!(names(all_of(&members.data_dir(0))), before);
}
