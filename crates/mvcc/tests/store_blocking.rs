//! Tests which thread is blocked, and by which other thread. Each situation is set up with the
//! store of every era.
//!
//! A situation is a list of operations, each on a separate thread. The threads start one after the
//! other. The test waits until each operation is paused at a barrier, blocked at a lock, or done.
//! The status of the last operation is the result. The whole table is in
//! `tests/golden/store_blocking`. The backend has its own table, for the locks that are taken below
//! the locks of the store.
//!
//! Each situation has a new store with its watchable store, and two watchers of all keys. One
//! watcher is synced. The other starts at revision 1, and none of its events has been delivered
//! yet.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "shared with the tests of the backend, which use all of it")]
#[path = "../../backend/tests/support/hooked_engine.rs"]
mod hooked_engine;
#[allow(dead_code, reason = "shared with the tests of the backend, which use all of it")]
#[path = "../../backend/tests/support/blocked_threads.rs"]
mod blocked_threads;
#[path = "support/wait_table.rs"]
mod wait_table;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use blocked_threads::{Barrier, OpenOnDrop, ThreadStatus, watch};
use bytes::Bytes;
use clearlane_backend::{Config, Era, PreCommit};
use clearlane_contention::{Registry, TaskLabel};
use clearlane_engine::{Engine, KeyRange};
use clearlane_mvcc::watch::{
    CurrentWatchableStore, ResponseKind, WakeSet, WatchConfig, WatchRequest, WatchStream,
    WatchableStore, WatchedKeys,
};
use clearlane_mvcc::{Change, CompactionJob, RangeOptions, StoreConfig, WatchableKv, open};
use hooked_engine::{EngineCall, HookedEngine};

/// Number of pending changes at which the store commits. A single put does not reach it.
const BATCH_LIMIT: u64 = 4;

/// The operation that a thread runs. The first seven operations are paused in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    /// Opens a read and pauses.
    ExpensiveRead,
    /// Starts a hash and pauses after its first step.
    Hash,
    /// Opens the write transaction and pauses before its end.
    OpenWrite,
    /// Ends a write transaction that fills the batch. If the end commits, the thread pauses where
    /// the engine would write and sync.
    EndingWrite,
    /// Makes the timer's commit and pauses where the engine would write and sync.
    Syncing,
    /// Schedules a compaction. If the scheduling commits, the thread pauses where the engine would
    /// write and sync.
    Scheduling,
    /// Reads for the unsynced watcher and pauses in the middle of the records.
    CatchingUp,
    CheapRead,
    Put,
    AnotherPut,
    Tick,
    /// Makes the commit before a raft snapshot.
    Commit,
    Compact,
    /// Runs all steps of a compaction that was scheduled before.
    CompactionJob,
    Watch,
    /// Cancels the synced watcher.
    Cancel,
    Progress,
    /// In the default era, delivers published transactions. In the old eras, retries the victims,
    /// which are the watchers whose channel was full.
    Deliver,
}

impl Operation {
    fn actor(self) -> TaskLabel {
        TaskLabel::named(match self {
            Operation::ExpensiveRead => "expensive_read",
            Operation::Hash => "hash",
            Operation::OpenWrite => "open_write",
            Operation::EndingWrite => "ending_write",
            Operation::Syncing => "syncing",
            Operation::Scheduling => "scheduling",
            Operation::CatchingUp => "catching_up",
            Operation::CheapRead => "cheap_read",
            Operation::Put => "put",
            Operation::AnotherPut => "another_put",
            Operation::Tick => "tick",
            Operation::Commit => "commit",
            Operation::Compact => "compact",
            Operation::CompactionJob => "compaction_job",
            Operation::Watch => "watch",
            Operation::Cancel => "cancel",
            Operation::Progress => "progress",
            Operation::Deliver => "deliver",
        })
    }

    fn stops_in_a_commit(self) -> bool {
        matches!(self, Operation::EndingWrite | Operation::Syncing | Operation::Scheduling)
    }

    fn run(self, stage: &StoreWithWatchers) {
        let _as = self.actor().enter();
        let store = &*stage.store;
        match self {
            Operation::ExpensiveRead => {
                let _read = store.begin_read();
                stage.barrier.wait();
            }
            Operation::Hash => {
                let mut job = store.hash(0).unwrap();
                assert_eq!(job.step(1).unwrap(), None);
                stage.barrier.wait();
            }
            Operation::OpenWrite => {
                let mut txn = store.begin_write().unwrap();
                txn.put(b"a", b"open", 0).unwrap();
                txn.range(KeyRange::ALL, RangeOptions::default()).unwrap();
                stage.barrier.wait();
                drop(txn.end(()).unwrap());
            }
            Operation::EndingWrite => stage.put(BATCH_LIMIT),
            Operation::CheapRead => {
                let read = store.begin_read();
                assert!(read.range(KeyRange::ALL, RangeOptions::default()).unwrap().count > 0);
            }
            Operation::Put | Operation::AnotherPut => stage.put(1),
            Operation::Syncing | Operation::Tick => {
                let _ = store.commit_if_due(Duration::from_secs(1)).unwrap();
            }
            Operation::Commit => store.commit().unwrap(),
            Operation::Scheduling | Operation::Compact => drop(store.compact(3, ()).unwrap()),
            Operation::CompactionJob => {
                let mut job = stage.job.lock().unwrap().take().unwrap();
                while !store.compact_step(&mut job, 1).unwrap() {}
            }
            Operation::CatchingUp => drop(stage.watchable_store.sync_watchers().unwrap()),
            Operation::Watch => stage.synced.watch(everything_from(1)),
            Operation::Cancel => stage.synced.cancel(0),
            Operation::Progress => stage.synced.request_progress(),
            Operation::Deliver => drop(stage.watchable_store.deliver().unwrap()),
        }
    }
}

fn everything_from(start: i64) -> WatchRequest {
    WatchRequest { start_revision: start, ..WatchRequest::new(WatchedKeys::From(Bytes::new())) }
}

struct Situation {
    title: &'static str,
    operations: &'static [Operation],
}

const fn situation(title: &'static str, cast: &'static [Operation]) -> Situation {
    Situation { title, operations: cast }
}

const SITUATIONS: &[Situation] = &[
    situation("read beside an open read", &[Operation::ExpensiveRead, Operation::CheapRead]),
    situation("put beside an open read", &[Operation::ExpensiveRead, Operation::Put]),
    situation(
        "read behind that put",
        &[Operation::ExpensiveRead, Operation::Put, Operation::CheapRead],
    ),
    situation("tick beside an open read", &[Operation::ExpensiveRead, Operation::Tick]),
    situation(
        "commit for a snapshot beside an open read",
        &[Operation::ExpensiveRead, Operation::Commit],
    ),
    situation(
        "read behind that commit",
        &[Operation::ExpensiveRead, Operation::Commit, Operation::CheapRead],
    ),
    situation(
        "put behind that commit",
        &[Operation::ExpensiveRead, Operation::Commit, Operation::Put],
    ),
    situation(
        "compaction scheduled beside an open read",
        &[Operation::ExpensiveRead, Operation::Compact],
    ),
    situation(
        "read behind that",
        &[Operation::ExpensiveRead, Operation::Compact, Operation::CheapRead],
    ),
    situation("put behind that", &[Operation::ExpensiveRead, Operation::Compact, Operation::Put]),
    situation(
        "compaction's job beside an open read",
        &[Operation::ExpensiveRead, Operation::CompactionJob],
    ),
    situation("read beside a hash", &[Operation::Hash, Operation::CheapRead]),
    situation("put beside a hash", &[Operation::Hash, Operation::Put]),
    situation("read behind that put", &[Operation::Hash, Operation::Put, Operation::CheapRead]),
    situation("commit for a snapshot beside a hash", &[Operation::Hash, Operation::Commit]),
    situation("read beside an open write", &[Operation::OpenWrite, Operation::CheapRead]),
    situation("tick beside an open write", &[Operation::OpenWrite, Operation::Tick]),
    situation(
        "commit for a snapshot beside an open write",
        &[Operation::OpenWrite, Operation::Commit],
    ),
    situation(
        "read beside the end of a write, batch full",
        &[Operation::EndingWrite, Operation::CheapRead],
    ),
    situation(
        "hash beside the end of a write, batch full",
        &[Operation::EndingWrite, Operation::Hash],
    ),
    situation("read beside the timer's sync", &[Operation::Syncing, Operation::CheapRead]),
    situation("put beside the timer's sync", &[Operation::Syncing, Operation::Put]),
    situation("compaction scheduled beside that", &[Operation::Syncing, Operation::Compact]),
    situation(
        "read beside a compaction being scheduled",
        &[Operation::Scheduling, Operation::CheapRead],
    ),
    situation("put beside a compaction being scheduled", &[Operation::Scheduling, Operation::Put]),
    situation("put beside a watcher's catching up", &[Operation::CatchingUp, Operation::Put]),
    situation("read beside that", &[Operation::CatchingUp, Operation::CheapRead]),
    situation(
        "read behind that put",
        &[Operation::CatchingUp, Operation::Put, Operation::CheapRead],
    ),
    situation(
        "put behind that put",
        &[Operation::CatchingUp, Operation::Put, Operation::AnotherPut],
    ),
    situation("tick behind that put", &[Operation::CatchingUp, Operation::Put, Operation::Tick]),
    situation(
        "delivery behind that put",
        &[Operation::CatchingUp, Operation::Put, Operation::Deliver],
    ),
    situation("tick beside a watcher's catching up", &[Operation::CatchingUp, Operation::Tick]),
    situation("commit for a snapshot beside it", &[Operation::CatchingUp, Operation::Commit]),
    situation("compaction scheduled beside it", &[Operation::CatchingUp, Operation::Compact]),
    situation(
        "read behind that",
        &[Operation::CatchingUp, Operation::Compact, Operation::CheapRead],
    ),
    situation("watcher made beside it", &[Operation::CatchingUp, Operation::Watch]),
    situation("watcher ended beside it", &[Operation::CatchingUp, Operation::Cancel]),
    situation("progress asked for beside it", &[Operation::CatchingUp, Operation::Progress]),
    situation("watcher made beside an open read", &[Operation::ExpensiveRead, Operation::Watch]),
    situation(
        "watcher made behind a put there",
        &[Operation::ExpensiveRead, Operation::Put, Operation::Watch],
    ),
    situation(
        "watcher made behind a put beside a hash",
        &[Operation::Hash, Operation::Put, Operation::Watch],
    ),
    situation("watcher made beside an open write", &[Operation::OpenWrite, Operation::Watch]),
    situation("watcher made beside the end of a write, batch full", ENDING_WRITE_AND_WATCH),
    situation("watcher ended beside that", &[Operation::EndingWrite, Operation::Cancel]),
    situation("progress asked for beside that", &[Operation::EndingWrite, Operation::Progress]),
    situation("catching up beside that", &[Operation::EndingWrite, Operation::CatchingUp]),
    situation("watcher made beside the timer's sync", &[Operation::Syncing, Operation::Watch]),
    situation("watcher made beside a compaction being scheduled", SCHEDULING_AND_WATCH),
];

const ENDING_WRITE_AND_WATCH: &[Operation] = &[Operation::EndingWrite, Operation::Watch];
const SCHEDULING_AND_WATCH: &[Operation] = &[Operation::Scheduling, Operation::Watch];

struct StoreWithWatchers {
    store: Arc<dyn WatchableKv<()>>,
    watchable_store: Arc<dyn WatchableStore>,
    synced: WatchStream,
    unsynced: WatchStream,
    barrier: Arc<Barrier>,
    locks: Registry,
    job: Mutex<Option<CompactionJob>>,
}

impl StoreWithWatchers {
    fn new(era: Era, cast: &[Operation]) -> StoreWithWatchers {
        let (barrier, locks) = (Arc::new(Barrier::default()), Registry::new());
        let config = Config { batch_limit: BATCH_LIMIT, locks: locks.clone(), ..Config::default() };
        let engine = blocking_engine(&barrier, cast);
        let store = open(era, StoreConfig::new(engine, config, PreCommit::none(), ())).unwrap().0;
        let store: Arc<dyn WatchableKv<()>> = Arc::from(store);
        let watching = WatchConfig::default();
        let watchable_store =
            Arc::clone(&store).open_watchable_store(watching, &locks, Box::new(|_| {}));
        let stream = || {
            WatchStream::open(
                CurrentWatchableStore::of(Arc::clone(&watchable_store)),
                WakeSet::new(|| {}),
            )
        };
        let (in_step, behind) = (stream(), stream());
        let job = Mutex::default();
        let stage = StoreWithWatchers {
            store,
            watchable_store,
            synced: in_step,
            unsynced: behind,
            barrier,
            locks,
            job,
        };
        stage.prepare(cast);
        stage
    }

    /// Prepares the store and the watchers. Revisions 2 to 4 are committed, and revision 5 is
    /// pending. If the situation runs a compaction job, the compaction is scheduled here.
    fn prepare(&self, cast: &[Operation]) {
        (0..3).for_each(|_| self.put(1));
        if cast.contains(&Operation::CompactionJob) {
            *self.job.lock().unwrap() = Some(self.store.compact(3, ()).unwrap().0);
        }
        self.store.commit().unwrap();
        self.put(1);
        self.synced.watch(everything_from(0));
        self.unsynced.watch(everything_from(1));
    }

    fn put(&self, changes: u64) {
        let mut txn = self.store.begin_write().unwrap();
        (0..changes).for_each(|change| txn.put(&[b'a', change as u8], b"value", 0).unwrap());
        let ended = txn.end(()).unwrap();
        self.watchable_store.publish_all(vec![(ended.revision, ended.changes)]);
    }
}

/// Returns an engine that pauses threads. The operations of `cast` that stop in a commit pause when
/// the engine commits. The operation `CatchingUp` pauses at its second record.
fn blocking_engine(barrier: &Arc<Barrier>, cast: &[Operation]) -> Arc<dyn Engine> {
    let barrier = Arc::clone(barrier);
    let stopped: Vec<TaskLabel> =
        cast.iter().filter(|part| part.stops_in_a_commit()).map(|part| part.actor()).collect();
    let (catching_up, read) = (Operation::CatchingUp.actor(), AtomicU64::new(0));
    HookedEngine::new(move |operation| {
        let stops = match operation {
            EngineCall::Commit => stopped.contains(&TaskLabel::current()),
            EngineCall::Read => {
                TaskLabel::current() == catching_up && read.fetch_add(1, Ordering::SeqCst) == 1
            }
            EngineCall::Put | EngineCall::Defragment => false,
        };
        if stops {
            barrier.wait();
        }
        Ok(())
    })
}

/// Runs the operations of a situation, each on its own thread. Calls `look` while the paused
/// threads are still paused. Returns the store, and the status of the last operation as text.
fn run_situation(
    era: Era,
    cast: &[Operation],
    look: impl FnOnce(&StoreWithWatchers),
) -> (StoreWithWatchers, String) {
    let stage = StoreWithWatchers::new(era, cast);
    let mut found = ThreadStatus::Finished;
    thread::scope(|threads| {
        let _open = OpenOnDrop(&stage.barrier);
        for part in cast {
            let thread = threads.spawn(|| part.run(&stage));
            found = watch(part.actor(), &thread, &stage.barrier, &stage.locks);
        }
        look(&stage);
    });
    let words = match found {
        ThreadStatus::Finished | ThreadStatus::AtBarrier => "goes on".to_owned(),
        ThreadStatus::Blocked(words) => words,
    };
    (stage, words)
}

/// Returns the table as text: one row per situation, one column per era.
fn table() -> String {
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(Era::DISTINCT_STORES.map(|era| era.to_string()));
    for situation in SITUATIONS {
        let cells =
            Era::DISTINCT_STORES.map(|era| run_situation(era, situation.operations, |_| {}).1);
        rows.push([situation.title.to_owned()].into_iter().chain(cells).collect());
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join(" | ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

fn updates_files() -> bool {
    std::env::var("UPDATE_GOLDENFILES").is_ok_and(|update| update == "1")
}

#[test]
fn every_situation_in_every_era() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/store_blocking");
    let found = table();
    if updates_files() {
        std::fs::write(&path, &found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert!(found == expected, "expected:\n{expected}\nfound:\n{found}");
    wait_table::check(&found, SITUATIONS);
}

fn held_up_by_an_open_read(era: Era) -> &'static str {
    let waits = |operations: &[Operation]| run_situation(era, operations, |_| {}).1 != "goes on";
    let read = Operation::ExpensiveRead;
    let another_read = waits(&[read, Operation::CheapRead]);
    let put = waits(&[read, Operation::Put]);
    let behind_the_put = waits(&[read, Operation::Put, Operation::CheapRead]);
    let commit = waits(&[read, Operation::Commit]);
    let behind_the_commit = waits(&[read, Operation::Commit, Operation::CheapRead]);
    let compaction = waits(&[read, Operation::Compact]);
    match [another_read, put, behind_the_put, commit, behind_the_commit, compaction] {
        [true, true, true, true, true, true] => "every other read and write",
        [false, true, true, true, true, true] => "a put or a commit, then every request",
        [false, false, false, true, true, true] => {
            "a commit for a snapshot or large puts, or a compaction, then every request"
        }
        [false, false, false, false, false, false] => "nothing: see [what blocks]",
        other => panic!("era {era}: the table has no words for {other:?}"),
    }
}

fn era_row(era: Era) -> String {
    let (linearizable, read_tx, index) = match era {
        Era::V3_0 => ("an entry of the raft log", "holds the mutex `batchTx`", "one lock"),
        Era::V3_1 => ("ReadIndex", "holds the mutex `batchTx`", "one lock"),
        Era::V3_2 => ("ReadIndex", "`ReadTx`: holds `readTx` shared", "one lock"),
        Era::V3_4 => (
            "ReadIndex",
            "`ConcurrentReadTx`: copies the read buffer",
            "one lock, and a clone for a compaction",
        ),
        Era::V3_5 => ("ReadIndex", "`ConcurrentReadTx`: shares a copy", "as in 3.4"),
        Era::Clearlane => (
            "ReadIndex with [shortcuts]",
            "`SnapshotReadTx`: loads one pointer",
            "persistent, with counts",
        ),
    };
    let held_up = held_up_by_an_open_read(era);
    format!("| `{era}` | {linearizable} | {read_tx} | {index} | {held_up} |\n")
}

/// `docs/eras.md` must contain the table of eras. Its last column is computed here from the
/// behaviour of the threads.
#[test]
fn the_table_of_eras_is_what_threads_show() {
    let chapter = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/eras.md");
    let chapter = std::fs::read_to_string(chapter).unwrap();
    let table: String = Era::ALL.map(era_row).concat();
    assert!(chapter.contains(&table), "docs/eras.md should have these rows:\n{table}");
}

/// If there were a second writer, it would wait for the first writer at `store`. If there were a
/// second commit, it would wait for the first commit at `committer`. But no situation has two
/// writers or two commits at the same time, so no operation waits.
#[test]
fn in_the_default_era_no_staged_operation_waits() {
    for situation in SITUATIONS {
        let title = situation.title;
        let (_, found) = run_situation(Era::Clearlane, situation.operations, |stage| {
            let blame = stage.locks.report().into_iter().flat_map(|report| report.blame);
            assert_eq!(blame.collect::<Vec<_>>(), [], "{title}: by the figures");
        });
        assert_eq!(found, "goes on", "{title}");
    }
}

/// Writes and compactions take `store`, the only lock of the default era's store that is held for
/// long. Reads, hashes, sync steps and commits do not take it.
#[test]
fn beside_an_open_write_the_next_writer_waits_and_reads_go_on() {
    let found = |last| run_situation(Era::Clearlane, &[Operation::OpenWrite, last], |_| {}).1;
    for last in [Operation::Put, Operation::Compact, Operation::CompactionJob] {
        assert_eq!(found(last), "waits for store, held by open_write", "{last:?}");
    }
    for last in [Operation::CheapRead, Operation::Hash, Operation::CatchingUp, Operation::Commit] {
        assert_eq!(found(last), "goes on", "{last:?}");
    }
}

fn delivered_revisions(stream: &WatchStream) -> Vec<i64> {
    let mut revisions = Vec::new();
    for response in stream.take_responses(usize::MAX).unwrap() {
        if let ResponseKind::Events { events, .. } = response.kind {
            revisions.extend(events.iter().map(|event| match &event.change {
                Change::Put(record) | Change::Delete(record) => record.mod_revision,
            }));
        }
    }
    revisions
}

#[test]
fn a_synced_watcher_gets_its_events_beside_a_step_for_an_unsynced_one() {
    let cast = [Operation::CatchingUp, Operation::Put, Operation::Deliver];
    for era in Era::DISTINCT_STORES {
        let mut at_once = Vec::new();
        let (stage, _) =
            run_situation(era, &cast, |stage| at_once = delivered_revisions(&stage.synced));
        let expected: &[i64] = if era == Era::Clearlane { &[6] } else { &[] };
        assert_eq!(at_once, expected, "{era}: while the other stands still");

        while stage.watchable_store.deliver().unwrap() {}
        while stage.watchable_store.sync_watchers().unwrap() {}
        at_once.extend(delivered_revisions(&stage.synced));
        assert_eq!(at_once, [6], "{era}: in the end");
        assert_eq!(
            delivered_revisions(&stage.unsynced),
            [2, 3, 4, 5, 6],
            "{era}: the one that was unsynced"
        );
    }
}
