//! Tests in every store which compaction jobs may run. Some jobs must wait, some are dropped, and
//! some belong to another store.

use std::sync::Arc;

use clearlane_backend::{Config, Era, PreCommit};
use clearlane_contention::Registry;
use clearlane_engine::{KeyRange, MemoryEngine};
use clearlane_mvcc::{CompactionJob, Error, HashKv, RangeOptions, Store, StoreConfig, open};

/// Returns a store with puts of `a` at the revisions 2 to 9.
fn store(era: Era) -> Box<dyn Store<()>> {
    store_with(era, Config::default())
}

fn store_with(era: Era, config: Config) -> Box<dyn Store<()>> {
    let engine = Arc::new(MemoryEngine::new());
    let opened = open(era, StoreConfig::new(engine, config, PreCommit::none(), ()));
    let store = opened.unwrap().0;
    (2..10).for_each(|_| put(&*store));
    store
}

fn put(store: &dyn Store<()>) {
    let mut txn = store.begin_write().unwrap();
    txn.put(b"a", b"value", 0).unwrap();
    drop(txn.end(()).unwrap());
}

fn schedule(store: &dyn Store<()>, at: i64) -> CompactionJob {
    let (job, ended) = store.compact(at, ()).unwrap();
    assert!(ended.changes.is_empty());
    job
}

fn finish(store: &dyn Store<()>, job: &mut CompactionJob) {
    while !store.compact_step(job, 1).unwrap() {}
}

fn hash(store: &dyn Store<()>, revision: i64) -> HashKv {
    let mut job = store.hash(revision).unwrap();
    loop {
        if let Some(hash) = job.step(2).unwrap() {
            return hash;
        }
    }
}

#[test]
fn one_job_at_a_time_until_it_is_done() {
    for era in Era::DISTINCT_STORES {
        let store = store(era);
        let mut first = schedule(&*store, 4);
        let mut second = schedule(&*store, 6);
        store.compact_step(&mut first, 1).unwrap();
        assert!(matches!(store.compact_step(&mut second, 1), Err(Error::CompactionBusy)));
        finish(&*store, &mut first);
        assert_eq!(first.removed(), 2, "of the revisions 2, 3 and 4 the last one stays");
        assert!(store.compact_step(&mut first, 1).unwrap());
        finish(&*store, &mut second);
        assert_eq!(
            store.begin_read().range(KeyRange::ALL, RangeOptions::default()).unwrap().count,
            1
        );
    }
}

#[test]
fn a_job_that_is_dropped_does_not_block_the_next() {
    for era in Era::DISTINCT_STORES {
        // Number of steps before the job is dropped. After this number of steps, the job has not
        // started, or is compacting the index, or is removing records.
        for steps in 0..5 {
            let store = store(era);
            let mut dropped = schedule(&*store, 4);
            for _ in 0..steps {
                assert!(!store.compact_step(&mut dropped, 1).unwrap(), "{era:?}: {steps}");
            }
            drop(dropped);
            finish(&*store, &mut schedule(&*store, 6));
            let read = store.begin_read();
            for (revision, version) in [(6, 5), (7, 6), (9, 8)] {
                let options = RangeOptions { revision, ..RangeOptions::default() };
                let answer = read.range(KeyRange::ALL, options).unwrap();
                assert_eq!(answer.records[0].version, version, "{era:?}: {steps}");
            }
        }
    }
}

/// A job that runs out of order must not store its hash, which would be incomplete. All members
/// must return the same `HashKV` for a revision, in whatever order their compactions ran.
#[test]
fn only_a_whole_hash_is_remembered() {
    for era in Era::DISTINCT_STORES {
        let expected = [4, 6, 8].map(|at| {
            let store = store(era);
            for at in [4, 6, 8].into_iter().filter(|earlier| *earlier < at) {
                finish(&*store, &mut schedule(&*store, at));
            }
            hash(&*store, at)
        });
        let remembered = store(era);
        for at in [4, 6, 8] {
            finish(&*remembered, &mut schedule(&*remembered, at));
        }
        assert_eq!([4, 6, 8].map(|at| hash(&*remembered, at)), expected, "{era:?}");

        // The later job runs first, and removes records that the hash at 4 must include.
        let store = store(era);
        let (mut early, mut late) = (schedule(&*store, 4), schedule(&*store, 6));
        finish(&*store, &mut late);
        finish(&*store, &mut early);
        for revision in [4, 5] {
            assert!(matches!(store.hash(revision), Err(Error::Compacted)), "{era:?}");
        }
        // Afterwards the results are the same as if the jobs had run in order.
        finish(&*store, &mut schedule(&*store, 8));
        assert_eq!(hash(&*store, 8), expected[2], "{era:?}");
    }
}

#[test]
fn a_job_of_another_store_is_refused() {
    for era in Era::DISTINCT_STORES {
        let (one, other) = (store(era), store(era));
        let mut job = schedule(&*one, 4);
        assert!(matches!(other.compact_step(&mut job, 1), Err(Error::ForeignJob)));
        one.compact_step(&mut job, 1).unwrap();
        assert!(matches!(other.compact_step(&mut job, 1), Err(Error::ForeignJob)));
        finish(&*one, &mut job);
        assert_eq!(other.begin_read().compact_revision(), -1);
    }
}

/// Up to 3.3, the index is walked while a compaction is scheduled, with `store` held exclusively.
/// Since 3.4, the job walks the index.
#[test]
fn the_index_is_compacted_where_etcd_does_it() {
    for era in Era::DISTINCT_STORES.into_iter().filter(|era| *era != Era::Clearlane) {
        let locks = Registry::new();
        let config = Config { locks: locks.clone(), ..Config::default() };
        let store = store_with(era, config);
        let taken = || {
            let reports = locks.report();
            let index = reports.iter().find(|report| report.name == "treeIndex");
            index.unwrap().write.acquisitions
        };
        let before = taken();
        let mut job = schedule(&*store, 4);
        let by_scheduling = taken() - before;
        finish(&*store, &mut job);
        let by_job = taken() - before - by_scheduling;
        // The job takes the lock to clone the tree, and once for each key. There is one key.
        let expected = if era < Era::V3_4 { (1, 0) } else { (0, 2) };
        assert_eq!((by_scheduling, by_job), expected, "{era}");
    }
}

/// Members are compared by their stored hashes, starting with the newest.
#[test]
fn the_last_ten_hashes_are_remembered_newest_first() {
    for era in Era::DISTINCT_STORES {
        let store = store(era);
        (10..15).for_each(|_| put(&*store));
        assert_eq!(store.compaction_hashes(), []);
        for at in 2..14 {
            finish(&*store, &mut schedule(&*store, at));
        }
        let hashes = store.compaction_hashes();
        let revisions: Vec<i64> = hashes.iter().map(|hash| hash.hash_revision).collect();
        assert_eq!(revisions, (4..14).rev().collect::<Vec<i64>>(), "{era:?}");
        assert_eq!(hashes[0], hash(&*store, 13), "{era:?}");
    }
}
