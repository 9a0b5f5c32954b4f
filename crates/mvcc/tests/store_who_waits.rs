//! Who stands still, and behind whom? Every situation is staged in the store of every era.
//!
//! A situation is a cast of threads that enter one after the other. Each is watched until it
//! stands still: at the place where its part ends, at a lock, or because it is done. What is found
//! of the last one is the answer. The whole table is `tests/golden/store_who_waits`; the backend
//! has another one, for the locks below these.
//!
//! Each stage has a store, its hub, and two watchers of all keys: one is in step, the other starts
//! at revision 1 and has been told nothing yet.
//!
//! To write the table anew: `UPDATE_GOLDENFILES=1 cargo test -p clearlane-mvcc --test
//! store_who_waits`. Then read the difference: only what you can explain may be committed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "shared with the tests of the backend, which use all of it")]
#[path = "../../backend/tests/support/hooked_engine.rs"]
mod hooked_engine;
#[allow(dead_code, reason = "shared with the tests of the backend, which use all of it")]
#[path = "../../backend/tests/support/standing.rs"]
mod standing;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use clearlane_backend::{Config, Design, PreCommit};
use clearlane_engine::{Engine, KeyRange};
use clearlane_locks::{Actor, Registry};
use clearlane_mvcc::watch::{Says, WatchConfig, WatchHub, WatchRequest, WatchStream, WatchedKeys};
use clearlane_mvcc::{Change, CompactionJob, Ground, RangeOptions, Store, StoreParts, open};
use hooked_engine::{HookedEngine, Moment};
use standing::{Barrier, Found, OpenAtEnd, watch};

/// So many changes are committed at once. A put alone does not get there.
const BATCH_LIMIT: u64 = 4;

/// What a thread does. The first seven stand still in the middle of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Has opened a read, and takes its time.
    ExpensiveRead,
    /// Has begun a hash, and takes its time.
    Hash,
    /// Has opened the write transaction, and has not ended it.
    OpenWrite,
    /// Ends a write transaction that fills the batch. If that commits, the sync takes its time.
    EndingWrite,
    /// The timer's commit syncs, which takes its time.
    Syncing,
    /// Schedules a compaction. If that commits, the sync takes its time.
    Scheduling,
    /// Catches up for the watcher that is behind. In the middle of the records it takes its time.
    CatchingUp,
    CheapRead,
    Put,
    AnotherPut,
    Tick,
    /// The commit before a snapshot.
    Commit,
    Compact,
    /// All steps of a compaction that was scheduled before.
    CompactionJob,
    /// Makes another watcher.
    Watch,
    /// Ends the watcher that is in step.
    Cancel,
    /// Asks how far the watcher is that is in step.
    Progress,
    /// Hands on what was published, or tries again who had no room.
    Deliver,
}

impl Part {
    fn actor(self) -> Actor {
        Actor::named(match self {
            Part::ExpensiveRead => "expensive_read",
            Part::Hash => "hash",
            Part::OpenWrite => "open_write",
            Part::EndingWrite => "ending_write",
            Part::Syncing => "syncing",
            Part::Scheduling => "scheduling",
            Part::CatchingUp => "catching_up",
            Part::CheapRead => "cheap_read",
            Part::Put => "put",
            Part::AnotherPut => "another_put",
            Part::Tick => "tick",
            Part::Commit => "commit",
            Part::Compact => "compact",
            Part::CompactionJob => "compaction_job",
            Part::Watch => "watch",
            Part::Cancel => "cancel",
            Part::Progress => "progress",
            Part::Deliver => "deliver",
        })
    }

    /// Whether the engine stops it when it commits.
    fn stops_in_a_commit(self) -> bool {
        matches!(self, Part::EndingWrite | Part::Syncing | Part::Scheduling)
    }

    fn play(self, stage: &Stage) {
        let _as = self.actor().enter();
        let store = &*stage.store;
        match self {
            Part::ExpensiveRead => {
                let _read = store.read();
                stage.barrier.stand_still();
            }
            Part::Hash => {
                let mut job = store.hash(0).unwrap();
                assert_eq!(job.step(1).unwrap(), None);
                stage.barrier.stand_still();
            }
            Part::OpenWrite => {
                let mut txn = store.write().unwrap();
                txn.put(b"a", b"open", 0).unwrap();
                txn.range(KeyRange::ALL, RangeOptions::default()).unwrap();
                stage.barrier.stand_still();
                drop(txn.end(()).unwrap());
            }
            Part::EndingWrite => stage.put(BATCH_LIMIT),
            Part::CheapRead => {
                let read = store.read();
                assert!(read.range(KeyRange::ALL, RangeOptions::default()).unwrap().count > 0);
            }
            Part::Put | Part::AnotherPut => stage.put(1),
            Part::Syncing | Part::Tick => drop(store.tick(Duration::from_secs(1)).unwrap()),
            Part::Commit => store.commit().unwrap(),
            Part::Scheduling | Part::Compact => drop(store.compact(3, ()).unwrap()),
            Part::CompactionJob => {
                let mut job = stage.job.lock().unwrap().take().unwrap();
                while !store.compact_step(&mut job, 1).unwrap() {}
            }
            Part::CatchingUp => drop(stage.hub.catch_up().unwrap()),
            Part::Watch => stage.in_step.watch(everything_from(1)),
            Part::Cancel => stage.in_step.cancel(0),
            Part::Progress => stage.in_step.request_progress(),
            Part::Deliver => drop(stage.hub.deliver().unwrap()),
        }
    }
}

fn everything_from(start: i64) -> WatchRequest {
    WatchRequest { start, ..WatchRequest::of(WatchedKeys::From(Bytes::new())) }
}

/// What is staged. The last of the cast is the one whose way is asked about.
struct Situation {
    title: &'static str,
    cast: &'static [Part],
}

const fn situation(title: &'static str, cast: &'static [Part]) -> Situation {
    Situation { title, cast }
}

const SITUATIONS: &[Situation] = &[
    situation("read beside an open read", &[Part::ExpensiveRead, Part::CheapRead]),
    situation("put beside an open read", &[Part::ExpensiveRead, Part::Put]),
    situation("read behind that put", &[Part::ExpensiveRead, Part::Put, Part::CheapRead]),
    situation("tick beside an open read", &[Part::ExpensiveRead, Part::Tick]),
    situation("commit for a snapshot beside an open read", &[Part::ExpensiveRead, Part::Commit]),
    situation("read behind that commit", &[Part::ExpensiveRead, Part::Commit, Part::CheapRead]),
    situation("put behind that commit", &[Part::ExpensiveRead, Part::Commit, Part::Put]),
    situation("compaction scheduled beside an open read", &[Part::ExpensiveRead, Part::Compact]),
    situation("read behind that", &[Part::ExpensiveRead, Part::Compact, Part::CheapRead]),
    situation("put behind that", &[Part::ExpensiveRead, Part::Compact, Part::Put]),
    situation("compaction's job beside an open read", &[Part::ExpensiveRead, Part::CompactionJob]),
    situation("read beside a hash", &[Part::Hash, Part::CheapRead]),
    situation("put beside a hash", &[Part::Hash, Part::Put]),
    situation("read behind that put", &[Part::Hash, Part::Put, Part::CheapRead]),
    situation("commit for a snapshot beside a hash", &[Part::Hash, Part::Commit]),
    situation("read beside an open write", &[Part::OpenWrite, Part::CheapRead]),
    situation("tick beside an open write", &[Part::OpenWrite, Part::Tick]),
    situation("commit for a snapshot beside an open write", &[Part::OpenWrite, Part::Commit]),
    situation("read beside the end of a write, batch full", &[Part::EndingWrite, Part::CheapRead]),
    situation("hash beside the end of a write, batch full", &[Part::EndingWrite, Part::Hash]),
    situation("read beside the timer's sync", &[Part::Syncing, Part::CheapRead]),
    situation("put beside the timer's sync", &[Part::Syncing, Part::Put]),
    situation("compaction scheduled beside that", &[Part::Syncing, Part::Compact]),
    situation("read beside a compaction being scheduled", &[Part::Scheduling, Part::CheapRead]),
    situation("put beside a compaction being scheduled", &[Part::Scheduling, Part::Put]),
    situation("put beside a watcher's catching up", &[Part::CatchingUp, Part::Put]),
    situation("read beside that", &[Part::CatchingUp, Part::CheapRead]),
    situation("read behind that put", &[Part::CatchingUp, Part::Put, Part::CheapRead]),
    situation("put behind that put", &[Part::CatchingUp, Part::Put, Part::AnotherPut]),
    situation("tick behind that put", &[Part::CatchingUp, Part::Put, Part::Tick]),
    situation("delivery behind that put", &[Part::CatchingUp, Part::Put, Part::Deliver]),
    situation("tick beside a watcher's catching up", &[Part::CatchingUp, Part::Tick]),
    situation("commit for a snapshot beside it", &[Part::CatchingUp, Part::Commit]),
    situation("compaction scheduled beside it", &[Part::CatchingUp, Part::Compact]),
    situation("read behind that", &[Part::CatchingUp, Part::Compact, Part::CheapRead]),
    situation("watcher made beside it", &[Part::CatchingUp, Part::Watch]),
    situation("watcher ended beside it", &[Part::CatchingUp, Part::Cancel]),
    situation("progress asked for beside it", &[Part::CatchingUp, Part::Progress]),
    situation("watcher made beside an open read", &[Part::ExpensiveRead, Part::Watch]),
    situation("watcher made behind a put there", &[Part::ExpensiveRead, Part::Put, Part::Watch]),
    situation("watcher made behind a put beside a hash", &[Part::Hash, Part::Put, Part::Watch]),
    situation("watcher made beside an open write", &[Part::OpenWrite, Part::Watch]),
    situation("watcher made beside the end of a write, batch full", ENDING_WRITE_AND_WATCH),
    situation("watcher ended beside that", &[Part::EndingWrite, Part::Cancel]),
    situation("progress asked for beside that", &[Part::EndingWrite, Part::Progress]),
    situation("catching up beside that", &[Part::EndingWrite, Part::CatchingUp]),
    situation("watcher made beside the timer's sync", &[Part::Syncing, Part::Watch]),
    situation("watcher made beside a compaction being scheduled", SCHEDULING_AND_WATCH),
];

const ENDING_WRITE_AND_WATCH: &[Part] = &[Part::EndingWrite, Part::Watch];
const SCHEDULING_AND_WATCH: &[Part] = &[Part::Scheduling, Part::Watch];

/// A store with its watchers, and what its cast needs.
struct Stage {
    store: Arc<dyn Store<()>>,
    hub: Arc<dyn WatchHub>,
    in_step: WatchStream,
    behind: WatchStream,
    barrier: Arc<Barrier>,
    locks: Registry,
    job: Mutex<Option<CompactionJob>>,
}

impl Stage {
    fn new(design: Design, cast: &[Part]) -> Stage {
        let (barrier, locks) = (Arc::new(Barrier::default()), Registry::new());
        let config = Config { batch_limit: BATCH_LIMIT, locks: locks.clone(), ..Config::default() };
        let parts = StoreParts::from(design);
        let engine = stopping_engine(&barrier, cast);
        let store = open(parts, Ground::new(engine, config, PreCommit::none(), ())).unwrap().0;
        let store: Arc<dyn Store<()>> = Arc::from(store);
        let watching = WatchConfig::default();
        let hub = Arc::clone(&store).watch_hub(watching, &locks, Box::new(|_| {}));
        let stream = || WatchStream::open(Arc::clone(&hub), Arc::new(|| {}), 0);
        let (in_step, behind) = (stream(), stream());
        let job = Mutex::default();
        let stage = Stage { store, hub, in_step, behind, barrier, locks, job };
        stage.prepare(cast);
        stage
    }

    /// Revisions 2 to 4 are committed, 5 is not.
    fn prepare(&self, cast: &[Part]) {
        (0..3).for_each(|_| self.put(1));
        if cast.contains(&Part::CompactionJob) {
            *self.job.lock().unwrap() = Some(self.store.compact(3, ()).unwrap().0);
        }
        self.store.commit().unwrap();
        self.put(1);
        self.in_step.watch(everything_from(0));
        self.behind.watch(everything_from(1));
    }

    /// A write transaction, and what its writer does behind it.
    fn put(&self, changes: u64) {
        let mut txn = self.store.write().unwrap();
        (0..changes).for_each(|change| txn.put(&[b'a', change as u8], b"value", 0).unwrap());
        let ended = txn.end(()).unwrap();
        self.hub.publish(ended.revision, ended.changes);
    }
}

/// An engine that stops those who are to stand still in a commit, or at the second record.
fn stopping_engine(barrier: &Arc<Barrier>, cast: &[Part]) -> Arc<dyn Engine> {
    let barrier = Arc::clone(barrier);
    let stopped: Vec<Actor> =
        cast.iter().filter(|part| part.stops_in_a_commit()).map(|part| part.actor()).collect();
    let (catching_up, read) = (Part::CatchingUp.actor(), AtomicU64::new(0));
    HookedEngine::new(move |moment| {
        let stops = match moment {
            Moment::Commit => stopped.contains(&Actor::current()),
            Moment::Read => {
                Actor::current() == catching_up && read.fetch_add(1, Ordering::SeqCst) == 1
            }
            Moment::Put | Moment::Defragment => false,
        };
        if stops {
            barrier.stand_still();
        }
        Ok(())
    })
}

/// Stages a situation, and says how the last of the cast was found. `look` is called then, while
/// those who stand still do.
fn play(design: Design, cast: &[Part], look: impl FnOnce(&Stage)) -> (Stage, String) {
    let stage = Stage::new(design, cast);
    let mut found = Found::Done;
    thread::scope(|threads| {
        let _open = OpenAtEnd(&stage.barrier);
        for part in cast {
            let thread = threads.spawn(|| part.play(&stage));
            found = watch(part.actor(), &thread, &stage.barrier, &stage.locks);
        }
        look(&stage);
    });
    let words = match found {
        Found::Done | Found::AtBarrier => "goes on".to_owned(),
        Found::Waits(words) => words,
    };
    (stage, words)
}

/// The table as text: a row per situation, a column per design.
fn table() -> String {
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(Design::ALL.map(|design| design.to_string()));
    for situation in SITUATIONS {
        let cells = Design::ALL.map(|design| play(design, situation.cast, |_| {}).1);
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

#[test]
fn every_situation_in_every_era() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/store_who_waits");
    let found = table();
    if std::env::var("UPDATE_GOLDENFILES").is_ok_and(|update| update == "1") {
        std::fs::write(&path, &found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert!(found == expected, "expected:\n{expected}\nfound:\n{found}");
}

/// A second writer would, and a second commit; but there is one of each.
#[test]
fn in_the_default_era_nobody_waits() {
    for situation in SITUATIONS {
        let title = situation.title;
        let (_, found) = play(Design::SnapshotReadTx, situation.cast, |stage| {
            let blame = stage.locks.report().into_iter().flat_map(|report| report.blame);
            assert_eq!(blame.collect::<Vec<_>>(), [], "{title}: by the figures");
        });
        assert_eq!(found, "goes on", "{title}");
    }
}

/// The revisions that a stream's watcher was told of since the last call.
fn told(stream: &WatchStream) -> Vec<i64> {
    let mut revisions = Vec::new();
    for response in stream.take(usize::MAX).unwrap() {
        if let Says::Events { events, .. } = response.says {
            revisions.extend(events.iter().map(|event| match &event.change {
                Change::Put(record) | Change::Delete(record) => record.mod_revision,
            }));
        }
    }
    revisions
}

#[test]
fn who_is_in_step_is_told_while_another_catches_up() {
    let cast = [Part::CatchingUp, Part::Put, Part::Deliver];
    for design in Design::ALL {
        let mut at_once = Vec::new();
        let (stage, _) = play(design, &cast, |stage| at_once = told(&stage.in_step));
        let expected: &[i64] = if design == Design::SnapshotReadTx { &[6] } else { &[] };
        assert_eq!(at_once, expected, "{design}: while the other stands still");

        while stage.hub.deliver().unwrap() {}
        while stage.hub.catch_up().unwrap() {}
        at_once.extend(told(&stage.in_step));
        assert_eq!(at_once, [6], "{design}: in the end");
        assert_eq!(told(&stage.behind), [2, 3, 4, 5, 6], "{design}: the one that was behind");
    }
}
