//! Runs era clearlane under a model checker. A writer, a committer and two readers run in thousands
//! of different orders.
//!
//! Run it with `cargo test -p clearlane-backend --features shuttle --test shuttle`.
//!
//! With the feature `shuttle`, the model checker may switch to another task at every load and every
//! replacement of the published pointer. It runs one task at a time, in an order that a seed
//! decides.
//!
//! The named locks and the engine block a real thread, which would block all tasks. So there is
//! only one writer and one committer, and neither ever finds a lock taken. They share one lock,
//! `removals`, but neither holds it at a point where tasks may be switched.
//!
//! All other shared data of the backend is read and written without a switch in between. So the
//! order of tasks can matter only at loads and replacements of the pointer.

#![cfg(feature = "shuttle")]
#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

mod support;

use std::sync::Arc;

use clearlane_backend::{Backend, Config, SnapshotBackend};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use shuttle::thread;
use support::{Entry, batches, memory_engine, save_consistent_index};

const SEED: u64 = 2;
const BATCHES: Entry = 5;
const COMMITS: usize = 2;
const READS: usize = 3;
/// Depth of the PCT scheduler (probabilistic concurrency testing). The scheduler changes the order
/// of tasks at only a few points, so it quickly finds bugs that need few task switches.
const PCT_DEPTH: usize = 3;

fn run(scheduler: impl Scheduler + 'static, body: fn()) {
    let mut config = shuttle::Config::new();
    // The stack is large, because a registry of locks is built on it before it is moved.
    config.stack_size = 1 << 20;
    shuttle::Runner::new(scheduler, config).run(body);
}

fn random(schedules: usize, body: fn()) {
    run(RandomScheduler::new_from_seed(SEED, schedules), body);
}

fn pct(schedules: usize, body: fn()) {
    run(PctScheduler::new_from_seed(SEED, PCT_DEPTH, schedules), body);
}

struct Store {
    backend: SnapshotBackend<Entry>,
    acknowledged: AtomicU64,
    removal_requested: AtomicU64,
}

impl Store {
    /// Writes all batches. Requests the removal of each batch as soon as the next is visible, often
    /// before either batch is durable.
    fn apply(&self) {
        for number in 1..=BATCHES {
            batches::write(&self.backend, number).unwrap();
            self.acknowledged.store(number, SeqCst);
            self.backend.remove(&batches::records(number - 1)).unwrap();
            self.removal_requested.store(number - 1, SeqCst);
        }
    }

    fn commit(&self) {
        for _ in 0..COMMITS {
            let removed = self.removal_requested.load(SeqCst);
            self.backend.commit().unwrap();
            let oldest = batches::inspect(&self.backend.begin_snapshot_read()).oldest;
            assert!(oldest > removed, "batch {oldest} is there, removed up to {removed}");
        }
        self.backend.defragment().unwrap();
    }

    fn read(&self) {
        let mut before = 0;
        for _ in 0..READS {
            let acknowledged = self.acknowledged.load(SeqCst);
            let tx = self.backend.begin_snapshot_read();
            let seen = batches::inspect(&tx);
            assert!(seen.newest >= acknowledged, "batch {acknowledged} was acknowledged");
            assert!(seen.newest >= before, "batch {before} was seen before");
            assert_eq!(tx.payload, seen.newest, "the payload belongs to the records");
            before = seen.newest;
            thread::yield_now();
            assert_eq!(batches::inspect(&tx), seen, "a state does not change");
        }
    }
}

fn readers_beside_an_applier_and_a_committer() {
    let engine = memory_engine();
    let hook = save_consistent_index();
    let backend = SnapshotBackend::open(Arc::clone(&engine), Config::default(), hook, 0).unwrap();
    let (acknowledged, removal_requested) = (AtomicU64::new(0), AtomicU64::new(0));
    let store = Arc::new(Store { backend, acknowledged, removal_requested });
    let spawn = |task: fn(&Store)| {
        let store = Arc::clone(&store);
        thread::spawn(move || task(&store))
    };
    let tasks = [Store::apply, Store::commit, Store::read, Store::read].map(spawn);
    tasks.into_iter().for_each(|task| task.join().unwrap());

    store.backend.commit().unwrap();
    assert_ends_with_the_last_batch(&store.backend);
    let hook = save_consistent_index();
    let reopened = SnapshotBackend::open(engine, Config::default(), hook, BATCHES).unwrap();
    assert_ends_with_the_last_batch(&reopened);
}

/// Asserts that all batches except the last were removed, and that no removed batch has reappeared.
fn assert_ends_with_the_last_batch(backend: &SnapshotBackend<Entry>) {
    let seen = batches::inspect(&backend.begin_snapshot_read());
    assert_eq!((seen.oldest, seen.newest), (BATCHES, BATCHES));
}

#[test]
fn readers_see_whole_states_in_random_orders() {
    random(2_000, readers_beside_an_applier_and_a_committer);
}

#[test]
fn readers_see_whole_states_in_orders_with_few_switches() {
    pct(2_000, readers_beside_an_applier_and_a_committer);
}

/// A small version of the published pointer, with two ways to replace it.
///
/// It shows that the model checker finds a lost update: if the wrong way is used, the assertions in
/// `publish_with` must fail.
struct Pointer(Mutex<Arc<PublishedState>>);

#[derive(Clone, Copy, Debug)]
struct PublishedState {
    /// Only the writer changes this field.
    payload: u64,
    /// Only the committer changes this field.
    durable: u64,
}

type Replace = fn(&Pointer, &dyn Fn(PublishedState) -> PublishedState);

impl Pointer {
    fn load(&self) -> Arc<PublishedState> {
        Arc::clone(&self.0.lock().unwrap())
    }

    /// The backend's way: builds the new state from the current state. If the current state was
    /// replaced before the new state is published, starts again.
    fn compare_and_swap(&self, next: &dyn Fn(PublishedState) -> PublishedState) {
        loop {
            let current = self.load();
            let replacement = Arc::new(next(*current));
            let mut published = self.0.lock().unwrap();
            if Arc::ptr_eq(&published, &current) {
                *published = replacement;
                return;
            }
        }
    }

    /// The planted bug: the new state may be built from a state that is out of date.
    fn store_stale(&self, next: &dyn Fn(PublishedState) -> PublishedState) {
        let replacement = Arc::new(next(*self.load()));
        *self.0.lock().unwrap() = replacement;
    }
}

fn publish_with(replace: Replace) {
    let pointer =
        Arc::new(Pointer(Mutex::new(Arc::new(PublishedState { payload: 0, durable: 0 }))));
    let shared = Arc::clone(&pointer);
    let applier = thread::spawn(move || {
        for number in 1..=BATCHES {
            replace(&shared, &|shown| PublishedState { payload: number, ..shown });
            assert_eq!(shared.load().payload, number, "an acknowledged state was taken back");
        }
    });
    let shared = Arc::clone(&pointer);
    let committer = thread::spawn(move || {
        let frozen = shared.load().payload;
        replace(&shared, &|shown| PublishedState { durable: frozen, ..shown });
        assert_eq!(shared.load().durable, frozen, "a commit was taken back");
    });
    applier.join().unwrap();
    committer.join().unwrap();
}

fn publish_by_compare_and_swap() {
    publish_with(Pointer::compare_and_swap);
}

fn publish_stale() {
    publish_with(Pointer::store_stale);
}

#[test]
fn compare_and_swap_takes_nothing_back() {
    random(2_000, publish_by_compare_and_swap);
    pct(2_000, publish_by_compare_and_swap);
}

#[test]
#[should_panic(expected = "was taken back")]
fn a_stale_publication_is_found_in_random_orders() {
    random(2_000, publish_stale);
}

#[test]
#[should_panic(expected = "was taken back")]
fn a_stale_publication_is_found_in_orders_with_few_switches() {
    pct(2_000, publish_stale);
}
