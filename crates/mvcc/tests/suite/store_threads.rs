//! Readers, a writer, compactions and commits run at the same time, in every store.
//!
//! Two keys are written together. A reader always sees values of both keys from the same
//! transaction. While its read is open, it always sees the same values.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use clearlane_backend::{Config, Era, PreCommit};
use clearlane_engine::{KeyRange, MemoryEngine};
use clearlane_mvcc::{RangeOptions, RangeRecords, ReadTxn, Store, StoreConfig, open};

const TRANSACTIONS: i64 = 200;

/// Makes the other threads end when the writer's thread drops this value, even after a panic.
struct SetOnDrop<'f>(&'f AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn write(store: &dyn Store<i64>, number: i64) {
    let mut txn = store.begin_write().unwrap();
    let value = number.to_string();
    txn.put(b"a", value.as_bytes(), 0).unwrap();
    if number % 3 == 0 {
        txn.delete_range(KeyRange::new(b"x", b"z")).unwrap();
    } else {
        txn.put(b"x", value.as_bytes(), 0).unwrap();
    }
    txn.put(b"b", value.as_bytes(), 0).unwrap();
    let ended = txn.end(number).unwrap();
    assert_eq!(ended.revision, number + 1);
}

fn check(answer: &RangeRecords, revision: i64) {
    let value = (revision - 1).to_string();
    let found: Vec<_> = answer.records.iter().map(|kv| (&*kv.key, &*kv.value)).collect();
    let mut expected: Vec<(&[u8], &[u8])> =
        vec![(b"a", value.as_bytes()), (b"b", value.as_bytes())];
    if (revision - 1) % 3 != 0 {
        expected.push((b"x", value.as_bytes()));
    }
    assert_eq!(found, expected, "at revision {revision}");
    assert!(answer.records.iter().all(|kv| kv.mod_revision == revision));
}

fn check_reads(read: &dyn ReadTxn) {
    let revision = read.revision();
    if revision < 2 {
        return; // Nothing is written yet.
    }
    let older = (revision - 3).max(read.compact_revision()).max(2);
    for (asked, revision) in [(0, revision), (older, older), (0, revision)] {
        let options = RangeOptions { revision: asked, ..RangeOptions::default() };
        check(&read.range(KeyRange::ALL, options).unwrap(), revision);
    }
}

fn compact(store: &dyn Store<i64>, applied: &AtomicI64) {
    let at = store.begin_read().revision() - 2;
    let Ok((mut job, ended)) = store.compact(at, applied.load(Ordering::SeqCst)) else { return };
    drop(ended);
    while !store.compact_step(&mut job, 7).unwrap() {}
}

fn run(era: Era) {
    let config = Config { batch_limit: 40, ..Config::default() };
    let engine = Arc::new(MemoryEngine::new());
    let store = open(era, StoreConfig::new(engine, config, PreCommit::none(), 0)).unwrap().0;
    let store = &*store;
    let (finished, seen, applied) = (AtomicBool::new(false), AtomicI64::new(1), AtomicI64::new(0));
    let until_finished = |work: &dyn Fn()| {
        while !finished.load(Ordering::SeqCst) {
            work();
        }
    };
    thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| {
                until_finished(&|| {
                    let before = seen.load(Ordering::SeqCst);
                    let read = store.begin_read();
                    assert!(read.revision() >= before, "a later read saw an older state");
                    seen.fetch_max(read.revision(), Ordering::SeqCst);
                    check_reads(&*read);
                });
            });
        }
        threads.spawn(|| until_finished(&|| compact(store, &applied)));
        threads.spawn(|| until_finished(&|| store.commit().unwrap()));
        threads.spawn(|| {
            let now = AtomicI64::new(0);
            until_finished(&|| {
                let now = now.fetch_add(200, Ordering::SeqCst) as u64;
                store.commit_if_due(Duration::from_millis(now)).unwrap();
            });
        });
        threads.spawn(|| {
            until_finished(&|| {
                let Ok(mut job) = store.hash(0) else { return };
                while matches!(job.step(5), Ok(None)) {}
            });
        });
        threads.spawn(|| {
            let _finish = SetOnDrop(&finished);
            for number in 1..=TRANSACTIONS {
                check_reads(&*store.begin_read_for_writer());
                write(store, number);
                applied.store(number, Ordering::SeqCst);
            }
        });
    });
    assert_eq!(store.begin_read().revision(), TRANSACTIONS + 1);
    check_reads(&*store.begin_read());
}

#[test]
fn a_reader_sees_whole_transactions() {
    Era::DISTINCT_STORES.into_iter().for_each(run);
}
