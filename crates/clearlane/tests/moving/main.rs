//! etcd and Clearlane take turns on the same directories, and nothing that was acknowledged is
//! lost.
//!
//! `.ci/etcd-dump-logs` builds etcd and runs this. Other changes: `CLEARLANE_SEED=7`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the seed of a failure is printed with it")]

mod contents;
#[path = "../support/entries.rs"]
mod entries;
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

/// Starts with `first`; each turn the other program takes the directories over.
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
#[ignore = "needs etcd: run .ci/etcd-dump-logs"]
async fn one_member_is_handed_over_and_back_ten_times() {
    hand_over(1, 20, Program::Etcd).await;
}

#[tokio::test]
#[ignore = "needs etcd: run .ci/etcd-dump-logs"]
async fn three_members_are_handed_over_five_times_in_both_directions() {
    hand_over(3, 10, Program::Clearlane).await;
}

#[tokio::test]
#[ignore = "needs etcd: run .ci/etcd-dump-logs"]
async fn a_directory_that_etcd_has_open_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut members = Members::new(dir.path(), 1);
    members.start(Program::Etcd).await;
    let names = |all: Vec<(PathBuf, u64, SystemTime)>| {
        all.into_iter().map(|(path, length, _)| (path, length)).collect::<Vec<_>>()
    };
    let before = names(all_of(&members.data_dir(0)));
    let begin = Instant::now();
    // At its own addresses: only the directory is in use.
    let mut other = Members::new(dir.path(), 1).command(Program::Clearlane, 0);
    let refused = other.stderr(Stdio::piped()).output().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    assert_eq!(refused.status.code(), Some(1));
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(told.lines().last().unwrap().ends_with("db: already open elsewhere"), "{told}");
    assert_eq!(names(all_of(&members.data_dir(0))), before);
}
