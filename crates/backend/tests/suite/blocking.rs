//! Tests which thread is blocked, and by which other thread. Every situation is tested in each of
//! the five eras that have different stores.
//!
//! A situation is a list of operations. Each operation runs on its own thread, and the threads
//! start one after the other. Each thread is watched until it pauses inside its operation, waits
//! for a lock, or has finished. The status of the last thread is the result. The whole table is in
//! `tests/golden/blocking`.

use crate::support;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use crate::support::blocked_threads::{Barrier, OpenOnDrop, ThreadStatus, watch};
use crate::support::hooked_engine::{EngineCall, HookedEngine};
use crate::support::{Entry, SetOnDrop, batches, memory_engine};
use bytes::Bytes;
use clearlane_backend::{Backend, Config, Era, Value};
use clearlane_contention::{LockReport, Registry, TaskLabel};
use clearlane_engine::{Bucket, KeyRange};

/// The operation that a thread runs. The first six operations pause in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    /// Opens a read and pauses.
    ExpensiveRead,
    /// Opens a locked read, as etcd does to hash the store, and pauses.
    PlainRead,
    /// Reads a range and pauses at the first record.
    Ranging,
    /// Opens the write transaction and pauses before its end.
    OpenWrite,
    /// Starts a commit and pauses where the engine would write and sync.
    Syncing,
    /// Starts a defragmentation and pauses in its first step.
    Rewriting,
    CheapRead,
    Put,
    Tick,
    Commit,
    Remove,
    Defragment,
    Copy,
}

impl Operation {
    fn actor(self) -> TaskLabel {
        TaskLabel::named(match self {
            Operation::ExpensiveRead => "expensive_read",
            Operation::PlainRead => "plain_read",
            Operation::Ranging => "ranging",
            Operation::OpenWrite => "open_write",
            Operation::Syncing => "syncing",
            Operation::Rewriting => "rewriting",
            Operation::CheapRead => "cheap_read",
            Operation::Put => "put",
            Operation::Tick => "tick",
            Operation::Commit => "commit",
            Operation::Remove => "remove",
            Operation::Defragment => "defragment",
            Operation::Copy => "copy",
        })
    }

    fn run(self, backend: &dyn Backend<Entry>, barrier: &Barrier) {
        let _as = self.actor().enter();
        match self {
            Operation::ExpensiveRead => {
                let _tx = backend.begin_read();
                barrier.wait();
            }
            Operation::PlainRead => {
                let _tx = backend.begin_locked_read();
                barrier.wait();
            }
            Operation::Ranging => {
                let mut look = |_: &[u8], _: Value<'_>| {
                    barrier.wait();
                    ControlFlow::Break(())
                };
                backend.begin_read().range(Bucket::Key, KeyRange::ALL, &mut look).unwrap();
            }
            Operation::OpenWrite => {
                let tx = backend.begin_write().unwrap();
                barrier.wait();
                drop(tx.end(9).unwrap());
            }
            Operation::CheapRead => drop(backend.begin_read().get(Bucket::Key, b"r1").unwrap()),
            Operation::Put => put(backend, "r3"),
            Operation::Tick => drop(backend.commit_if_due(Duration::from_secs(1)).unwrap()),
            Operation::Syncing | Operation::Commit => backend.commit().unwrap(),
            Operation::Remove => backend.remove(&[Bytes::from_static(b"r1")]).unwrap(),
            Operation::Rewriting | Operation::Defragment => backend.defragment().unwrap(),
            Operation::Copy => drop(backend.snapshot().unwrap()),
        }
    }
}

fn put(backend: &dyn Backend<Entry>, record: &str) {
    let mut tx = backend.begin_write().unwrap();
    tx.put(Bucket::Key, record.as_bytes(), Bytes::from_static(b"value")).unwrap();
    drop(tx.end(2).unwrap());
}

/// A situation to test. The status of the last operation's thread is the result.
struct Situation {
    title: &'static str,
    pending: bool,
    operations: &'static [Operation],
}

const fn situation(
    title: &'static str,
    pending: bool,
    operations: &'static [Operation],
) -> Situation {
    Situation { title, pending, operations }
}

const SITUATIONS: [Situation; 22] = [
    situation("read beside an open read", true, &[Operation::ExpensiveRead, Operation::CheapRead]),
    situation("read beside a read in its range", true, &[Operation::Ranging, Operation::CheapRead]),
    situation("put beside an open read", true, &[Operation::ExpensiveRead, Operation::Put]),
    situation(
        "read behind that put",
        true,
        &[Operation::ExpensiveRead, Operation::Put, Operation::CheapRead],
    ),
    situation("read beside a plain read", true, &[Operation::PlainRead, Operation::CheapRead]),
    situation("put beside a plain read", true, &[Operation::PlainRead, Operation::Put]),
    situation(
        "read behind that put",
        true,
        &[Operation::PlainRead, Operation::Put, Operation::CheapRead],
    ),
    situation(
        "tick, nothing pending, beside an open read",
        false,
        &[Operation::ExpensiveRead, Operation::Tick],
    ),
    situation(
        "read behind that tick",
        false,
        &[Operation::ExpensiveRead, Operation::Tick, Operation::CheapRead],
    ),
    situation(
        "tick, puts pending, beside an open read",
        true,
        &[Operation::ExpensiveRead, Operation::Tick],
    ),
    situation("commit beside an open read", true, &[Operation::ExpensiveRead, Operation::Commit]),
    situation("remove beside an open read", true, &[Operation::ExpensiveRead, Operation::Remove]),
    situation(
        "defragment beside an open read",
        true,
        &[Operation::ExpensiveRead, Operation::Defragment],
    ),
    situation("copy beside an open read", true, &[Operation::ExpensiveRead, Operation::Copy]),
    situation("read beside a commit that syncs", true, &[Operation::Syncing, Operation::CheapRead]),
    situation("put beside a commit that syncs", true, &[Operation::Syncing, Operation::Put]),
    situation("remove beside a commit that syncs", true, &[Operation::Syncing, Operation::Remove]),
    situation("commit beside a commit that syncs", true, &[Operation::Syncing, Operation::Commit]),
    situation("read beside a rewrite", true, &[Operation::Rewriting, Operation::CheapRead]),
    situation("put beside a rewrite", true, &[Operation::Rewriting, Operation::Put]),
    situation("read beside an open write", true, &[Operation::OpenWrite, Operation::CheapRead]),
    situation("commit beside an open write", true, &[Operation::OpenWrite, Operation::Commit]),
];

/// The only situation in the table in which a thread waits in era clearlane.
const SECOND_COMMIT: &str = "commit beside a commit that syncs";

/// Sets up a situation. Returns the status of the thread of the last operation as text.
fn run_situation(era: Era, situation: &Situation) -> String {
    let barrier = Arc::new(Barrier::default());
    let locks = Registry::new();
    let config = Config { locks: locks.clone(), ..Config::default() };
    let backend = support::open(era, blocking_engine(&barrier), config);
    put(&*backend, "r1");
    backend.commit().unwrap();
    if situation.pending {
        put(&*backend, "r2");
    }
    let mut found = ThreadStatus::Finished;
    thread::scope(|threads| {
        let _open = OpenOnDrop(&barrier);
        for part in situation.operations {
            let thread = threads.spawn(|| part.run(&*backend, &barrier));
            found = watch(part.actor(), &thread, &barrier, &locks);
        }
    });
    match found {
        ThreadStatus::Finished => "goes on".to_owned(),
        ThreadStatus::Blocked(words) => words,
        ThreadStatus::AtBarrier => panic!("{}: the last operation does not pause", situation.title),
    }
}

/// Returns an engine that pauses the thread `syncing` in a commit and the thread `rewriting` in a
/// defragmentation.
fn blocking_engine(barrier: &Arc<Barrier>) -> Arc<HookedEngine> {
    let barrier = Arc::clone(barrier);
    let (syncing, rewriting) = (Operation::Syncing.actor(), Operation::Rewriting.actor());
    HookedEngine::new(move |moment| {
        let stops = match moment {
            EngineCall::Commit => TaskLabel::current() == syncing,
            EngineCall::Defragment => TaskLabel::current() == rewriting,
            EngineCall::Read | EngineCall::Put => false,
        };
        if stops {
            barrier.wait();
        }
        Ok(())
    })
}

/// Returns the table as text: one row for each situation, one column for each era.
fn table() -> String {
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(Era::DISTINCT_STORES.map(|era| era.to_string()));
    for situation in &SITUATIONS {
        let cells = Era::DISTINCT_STORES.map(|era| run_situation(era, situation));
        rows.push([situation.title.to_owned()].into_iter().chain(cells).collect());
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join(" | ");
        format!("{}\n", line.trim_end())
    };
    rows.iter().map(line).collect()
}

#[test]
fn every_situation_in_every_era() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/blocking");
    let found = table();
    if std::env::var("UPDATE_GOLDENFILES").is_ok_and(|update| update == "1") {
        std::fs::write(&path, &found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert!(found == expected, "expected:\n{expected}\nfound:\n{found}");
}

#[test]
fn in_era_clearlane_only_a_second_commit_waits() {
    for situation in &SITUATIONS {
        let found = run_situation(Era::Clearlane, situation);
        if situation.title == SECOND_COMMIT {
            assert_eq!(found, "waits for committer, held by syncing");
        } else {
            assert_eq!(found, "goes on", "{}", situation.title);
        }
    }
}

/// Continues the situation `read behind that put` to its end. In eras 3.1 and 3.2, the reader that
/// waited for the writer gets the lock as soon as the writer releases it. In every era the reader
/// must see the put and the delete of the transaction together, so it finds exactly one lease.
#[test]
fn a_reader_behind_the_end_of_a_write_sees_its_puts_and_its_deletes() {
    for era in Era::DISTINCT_STORES {
        let (barrier, locks) = (Barrier::default(), Registry::new());
        let config = Config { locks: locks.clone(), ..Config::default() };
        let backend = support::open(era, memory_engine(), config);
        move_lease(&*backend, "new", "old");
        thread::scope(|threads| {
            let open = OpenOnDrop(&barrier);
            let spawn = |name: &'static str, work: fn(&dyn Backend<Entry>, &Barrier)| {
                let (backend, barrier, actor) = (&*backend, &barrier, TaskLabel::named(name));
                let thread = threads.spawn(move || {
                    let _as = actor.enter();
                    work(backend, barrier);
                });
                watch(actor, &thread, barrier, &locks)
            };
            spawn("expensive_read", |backend, barrier| {
                Operation::ExpensiveRead.run(backend, barrier)
            });
            spawn("mover", |backend, _| move_lease(backend, "old", "new"));
            spawn("reader", |backend, _| assert_one_lease(backend));
            drop(open);
        });
        assert_one_lease(&*backend);
    }
}

fn move_lease(backend: &dyn Backend<Entry>, from: &str, to: &str) {
    let mut tx = backend.begin_write().unwrap();
    tx.put(Bucket::Lease, to.as_bytes(), Bytes::new()).unwrap();
    tx.delete(Bucket::Lease, from.as_bytes()).unwrap();
    drop(tx.end(1).unwrap());
}

fn assert_one_lease(backend: &dyn Backend<Entry>) {
    let tx = backend.begin_read();
    let is_there = |name: &&[u8]| tx.get(Bucket::Lease, name).unwrap().is_some();
    let there = [&b"old"[..], b"new"].into_iter().filter(is_there).count();
    assert_eq!(there, 1, "{}: the lease was moved, not doubled or lost", backend.era());
}

/// Runs reads, puts and commits at the same time, and labels each thread with its kind of
/// operation. Returns the reports of all locks.
fn lock_reports_of_a_mixed_load(era: Era) -> Vec<LockReport> {
    let config = Config { batch_limit: 50, ..Config::default() };
    let locks = config.locks.clone();
    let backend = support::open(era, memory_engine(), config);
    let finished = AtomicBool::new(false);
    let until_finished = |actor: &str, work: &dyn Fn()| {
        let _as = TaskLabel::named(actor).enter();
        while !finished.load(SeqCst) {
            work();
        }
    };
    thread::scope(|threads| {
        threads
            .spawn(|| until_finished("read", &|| drop(batches::inspect(&*backend.begin_read()))));
        threads.spawn(|| until_finished("commit", &|| backend.commit().unwrap()));
        threads.spawn(|| {
            let _finish = SetOnDrop(&finished);
            let _as = TaskLabel::named("put").enter();
            (1..=200).for_each(|number| batches::write(&*backend, number).unwrap());
        });
    });
    // If the puts finished before the other threads started, no read and no commit has run yet.
    // So one of each runs here.
    until_once("read", || drop(batches::inspect(&*backend.begin_read())));
    until_once("commit", || backend.commit().unwrap());
    locks.report()
}

fn until_once(actor: &str, work: impl FnOnce()) {
    let _as = TaskLabel::named(actor).enter();
    work();
}

fn held_by(reports: &[LockReport], actor: &str) -> Vec<&'static str> {
    let actor = TaskLabel::named(actor);
    let holds = |report: &&LockReport| {
        let holders = report.read.holders.iter().chain(&report.write.holders);
        holders.into_iter().any(|holder| holder.task == actor)
    };
    reports.iter().filter(holds).map(|report| report.name).collect()
}

#[test]
fn in_era_clearlane_reads_and_puts_share_no_lock() {
    let reports = lock_reports_of_a_mixed_load(Era::Clearlane);
    assert_eq!(held_by(&reports, "read"), [""; 0]);
    assert_eq!(held_by(&reports, "put"), ["writer"]);
    assert_eq!(held_by(&reports, "commit"), ["committer", "removals"]);
    let blamed: Vec<_> = reports.iter().flat_map(|report| &report.blame).collect();
    assert!(blamed.is_empty(), "no thread has waited: {blamed:?}");
}

#[test]
fn in_era_3_2_the_same_figures_show_reads_and_puts_at_one_lock() {
    let reports = lock_reports_of_a_mixed_load(Era::V3_2);
    assert_eq!(held_by(&reports, "read"), ["readTx", "txMu"]);
    assert_eq!(held_by(&reports, "put"), ["batchTx", "readTx"]);
    assert_eq!(held_by(&reports, "commit"), ["batchTx", "readTx"]);
}
