//! One thread repeatedly counts all keys of a big store, while another thread puts.
//!
//! No thread is paused here. In the old eras, some put has waited for a count after a few rounds,
//! and the metrics of the locks show this wait. In the default era, no put of the run waits for a
//! count. (`tests/suite/index/blocked_walk.rs` shows that no put waits for a walk that is paused.)

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use clearlane_backend::{Config, Era, PreCommit};
use clearlane_contention::{Registry, TaskLabel};
use clearlane_engine::{Engine, KeyRange, MemoryEngine};
use clearlane_mvcc::{RangeOptions, Store, StoreConfig, open};

const KEYS: u64 = 100_000;
/// Maximum number of counts. At least one put must wait for one of these counts.
const COUNTS_MAX: u64 = 2_000;
/// Number of counts for the default era. Puts run at the same time.
const COUNTS: u64 = 20;

fn open_on(engine: &Arc<dyn Engine>, era: Era, locks: &Registry) -> Box<dyn Store<()>> {
    let config = Config { locks: locks.clone(), ..Config::default() };
    let store_config = StoreConfig::new(Arc::clone(engine), config, PreCommit::none(), ());
    open(era, store_config).unwrap().0
}

fn filled() -> Arc<dyn Engine> {
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let store = open_on(&engine, Era::Clearlane, &Registry::new());
    let mut txn = store.begin_write().unwrap();
    (0..KEYS).for_each(|key| txn.put(&key.to_be_bytes(), b"value", 0).unwrap());
    drop(txn.end(()).unwrap());
    store.commit().unwrap();
    engine
}

/// Returns true if a put has waited for this lock, or for any lock if `lock` is `None`, while the
/// counting thread held it.
fn put_has_waited(locks: &Registry, lock: Option<&str>) -> bool {
    let (put, counting) = (TaskLabel::named("put"), TaskLabel::named("counting"));
    let reports = locks.report();
    let asked = reports.iter().filter(|report| lock.is_none_or(|lock| report.name == lock));
    let mut blame = asked.flat_map(|report| &report.blame);
    blame.any(|blame| (blame.waiter, blame.blocker) == (put, counting))
}

/// Makes the counting thread end when the putting thread drops this value, even after a panic.
struct SetOnDrop<'f>(&'f AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Counts and puts at the same time until `enough` returns true. `enough` receives the number of
/// counts so far.
fn count_and_put(store: &dyn Store<()>, enough: impl Fn(u64) -> bool) {
    let (finished, counts) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|threads| {
        threads.spawn(|| {
            let _as = TaskLabel::named("counting").enter();
            while !finished.load(Ordering::SeqCst) {
                let options = RangeOptions { count_only: true, ..RangeOptions::default() };
                let answer = store.begin_read().range(KeyRange::ALL, options).unwrap();
                assert_eq!(answer.count, KEYS);
                counts.fetch_add(1, Ordering::SeqCst);
            }
        });
        let _finish = SetOnDrop(&finished);
        let _as = TaskLabel::named("put").enter();
        while !enough(counts.load(Ordering::SeqCst)) {
            let mut txn = store.begin_write().unwrap();
            txn.put(&0_u64.to_be_bytes(), b"again", 0).unwrap();
            drop(txn.end(()).unwrap());
        }
    });
}

#[test]
fn in_the_old_eras_a_put_waits_for_a_count() {
    let engine = filled();
    for era in Era::DISTINCT_STORES.into_iter().filter(|era| *era != Era::Clearlane) {
        // In 3.1 a count already holds `store`, which every put takes before it reaches the index.
        let lock = if era == Era::V3_1 { "store" } else { "treeIndex" };
        let locks = Registry::new();
        let store = open_on(&engine, era, &locks);
        let waited = || put_has_waited(&locks, Some(lock));
        count_and_put(&*store, |counts| waited() || counts >= COUNTS_MAX);
        assert!(waited(), "{era}: no put has waited for {lock}");
    }
}

#[test]
fn in_the_default_era_no_put_waits_for_a_count() {
    let locks = Registry::new();
    let store = open_on(&filled(), Era::Clearlane, &locks);
    count_and_put(&*store, |counts| counts >= COUNTS);
    assert!(!put_has_waited(&locks, None), "{:?}", locks.report());
    assert!(locks.report().iter().all(|report| report.name != "treeIndex"));
}
