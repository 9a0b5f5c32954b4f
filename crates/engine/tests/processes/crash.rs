//! Kills a writing child process with SIGKILL at random times. No acknowledged commit may be lost,
//! and every commit must be present completely or not at all.
//!
//! The child runs one test of this same binary, with its parameters in the environment. It commits
//! the workload of a seed, and prints a line for every commit *after* the commit has returned. The
//! parent reads some lines, kills the child, reads the rest of the pipe and opens the store. It
//! compares the store with the model after the last acknowledged commit or after the next one,
//! because a commit may be durable although its line was never printed. Then the next child
//! continues with the same store, so each store must survive many kills.
//!
//! After a kill, the kernel still has the bytes that were written and not synced. The loss of these
//! bytes in a power cut is tested on the simulated disk (`power_cut.rs` of `bolt`).
//!
//! Each seed has a store, whose writers are killed 20 times. Run one seed again:
//! `CLEARLANE_SEED=7 CLEARLANE_KILLS=20 cargo test -p clearlane-engine --test processes crash`.
//! `CLEARLANE_KILLS=2000` uses 100 seeds per engine.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clearlane_engine::{Defragment, EngineKind};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::support::{apply_all, changes_of, commit_number, model_after, open_small, seed_or};

const KILLS: u64 = 100;
const KILLS_PER_STORE: u64 = 20;

#[test]
fn bolt_survives_being_killed() {
    kill_many(EngineKind::Bolt);
}

#[test]
fn sled_survives_being_killed() {
    kill_many(EngineKind::Sled);
}

/// Only one test may run at a time. A child holds copies of all open files of this process until it
/// has started its own program. If another test had a store open at that time, the child would also
/// hold the lock on the directory of that store.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn kill_many(kind: EngineKind) {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    let first_seed = seed_or("CLEARLANE_SEED", 1);
    let kills = seed_or("CLEARLANE_KILLS", KILLS);
    let mut commits = 0;
    for seed in first_seed..first_seed + kills.div_ceil(KILLS_PER_STORE) {
        println!("{kind}: seed {seed}");
        commits += kill_one_store(kind, seed);
    }
    println!("{kind}: {kills} kills, {commits} commits, none lost");
}

/// Kills the writers of one store many times. Returns the number of commits that the store has at
/// the end.
fn kill_one_store(kind: EngineKind, seed: u64) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut commits = 0;
    for kill in 0..KILLS_PER_STORE {
        let acknowledged = write_and_kill(kind, dir.path(), seed, &mut rng).max(commits);
        commits = check(kind, dir.path(), seed, kill, acknowledged);
    }
    commits
}

/// Lets a child write until a random time, and kills it. Returns the last commit that the child
/// acknowledged.
fn write_and_kill(kind: EngineKind, dir: &Path, seed: u64, rng: &mut StdRng) -> u64 {
    let mut child = start_child(kind, dir, seed);
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut acknowledged = 0;
    let mut line = String::new();
    for _ in 0..rng.random_range(0..15) {
        line.clear();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "seed {seed}: the child stopped");
        acknowledged = acknowledged.max(parse(&line));
    }
    // The kill may hit any part of the next commits, not only the time after an acknowledgement.
    let moment = Instant::now() + Duration::from_micros(rng.random_range(0..4_000));
    while Instant::now() < moment {
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    // Only complete lines, which end with a newline, are used. The kill may have cut off the last
    // line, and its number may be incomplete.
    let whole = rest.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(parse).fold(acknowledged, u64::max)
}

/// Returns the commit that a line acknowledges, or 0 for other lines, which the test harness
/// prints.
fn parse(line: &str) -> u64 {
    let number = line.trim_end().rsplit_once("committed ").map(|(_, number)| number.parse());
    number.map_or(0, |number| number.expect("a number follows"))
}

fn check(kind: EngineKind, dir: &Path, seed: u64, kill: u64, acknowledged: u64) -> u64 {
    let engine = open_small(kind, dir);
    let snapshot = engine.snapshot().unwrap();
    let found = commit_number(&*snapshot);
    let hint = format!("{kind}, seed {seed}, kill {kill}: {acknowledged} acknowledged");
    assert!(found == acknowledged || found == acknowledged + 1, "{hint}, {found} there");
    let model = model_after(seed, found);
    model.assert_same(&*snapshot, &hint);
    assert_eq!(engine.size_in_use(), model.size(), "{hint}");
    found
}

fn start_child(kind: EngineKind, dir: &Path, seed: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::writing_child", "--nocapture", "--test-threads=1"])
        .env("CLEARLANE_CHILD_ENGINE", kind.name())
        .env("CLEARLANE_CHILD_DIR", dir)
        .env("CLEARLANE_CHILD_SEED", seed.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// This is the child's program. If the test harness runs it as a test, without parameters, it does
/// nothing.
#[test]
fn writing_child() {
    let Ok(kind) = std::env::var("CLEARLANE_CHILD_ENGINE") else { return };
    let dir = std::env::var("CLEARLANE_CHILD_DIR").unwrap();
    let seed = seed_or("CLEARLANE_CHILD_SEED", 0);
    write_forever(kind.parse().unwrap(), Path::new(&dir), seed);
}

fn write_forever(kind: EngineKind, dir: &Path, seed: u64) {
    let engine = open_small(kind, dir);
    let start = commit_number(&*engine.snapshot().unwrap());
    let mut defragment: Option<Box<dyn Defragment>> = None;
    for number in start + 1.. {
        let mut txn = engine.begin_write().unwrap();
        apply_all(&changes_of(seed, number), &mut *txn).unwrap();
        txn.commit().unwrap();
        let mut out = std::io::stdout();
        writeln!(out, "committed {number}").and_then(|()| out.flush()).unwrap();
        match number % 10 {
            3 => defragment = Some(engine.begin_defragment().unwrap()),
            4..8 => {
                if let Some(defragment) = &mut defragment {
                    defragment.step(40).unwrap();
                }
            }
            8 => {
                if let Some(defragment) = defragment.take() {
                    defragment.finish().unwrap();
                }
            }
            _ => {}
        }
    }
}
