//! Readers on other threads while the writer commits: no snapshot may show a part of a commit.
//!
//! Every commit writes the same number under every key. If a reader finds two different numbers in
//! one snapshot, the snapshot contains only a part of a commit. If a reader finds a smaller number
//! than before, it has seen an older state after a newer one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clearlane_engine::{Bucket, Engine, EngineKind, KeyRange, Snapshot};

use crate::support::{Store, records};

const KEYS: u32 = 300;
const COMMITS: u64 = 60;
const TIMEOUT: Duration = Duration::from_secs(60);

fn write_all(store: &Store, number: u64) {
    store.commit(|txn| {
        for key in 0..KEYS {
            txn.put(Bucket::Lease, &key.to_be_bytes(), &number.to_be_bytes()).unwrap();
        }
        // This record exists after every other commit. The commits in between delete it.
        match number % 2 {
            0 => txn.put(Bucket::Meta, b"even", &number.to_be_bytes()).unwrap(),
            _ => txn.delete(Bucket::Meta, b"even").unwrap(),
        }
    });
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().unwrap())
}

fn the_number_in(snapshot: &dyn Snapshot) -> u64 {
    let all = records(snapshot, Bucket::Lease, KeyRange::ALL);
    assert_eq!(all.len(), KEYS as usize);
    let first = number(&all[0].1);
    assert!(all.iter().all(|(_, value)| number(value) == first), "a torn commit");
    let even = snapshot.get(Bucket::Meta, b"even").unwrap();
    assert_eq!(even.map(|value| number(&value)), first.is_multiple_of(2).then_some(first));
    let middle = snapshot.get(Bucket::Lease, &(KEYS / 2).to_be_bytes()).unwrap();
    assert_eq!(number(&middle.unwrap()), first);
    first
}

fn read_until(engine: Arc<dyn Engine>, stop: &AtomicBool, rounds: &AtomicU64) {
    let (mut latest, mut held) = (0, None::<(Arc<dyn Snapshot>, u64)>);
    while !stop.load(Ordering::Acquire) {
        let snapshot = engine.snapshot().unwrap();
        let found = the_number_in(&*snapshot);
        assert!(found >= latest, "{found} after {latest}");
        latest = found;
        // One snapshot is kept for at least five commits, and must then still show the same state.
        match held.take() {
            Some((kept, expected)) if found < expected + 5 => held = Some((kept, expected)),
            Some((kept, expected)) => assert_eq!(the_number_in(&*kept), expected),
            None => held = Some((snapshot, found)),
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

fn race(kind: EngineKind) {
    let store = Store::new(kind);
    write_all(&store, 0);
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            let engine = Arc::clone(&store.engine);
            scope.spawn(|| read_until(engine, &stop, &rounds));
        }
        let mut defragment = None;
        for commit in 1..=COMMITS {
            write_all(&store, commit);
            match commit % 20 {
                5 => defragment = Some(store.engine.begin_defragment().unwrap()),
                6..15 => drop(defragment.as_mut().unwrap().step(70).unwrap()),
                15 => defragment.take().unwrap().finish().unwrap(),
                _ => {}
            }
        }
        // On a busy machine the readers may not have started yet. So the test waits until one of
        // the readers has read once.
        let written = Instant::now();
        while rounds.load(Ordering::Relaxed) == 0 && written.elapsed() < TIMEOUT {
            thread::yield_now();
        }
        stop.store(true, Ordering::Release);
    });
    assert!(rounds.into_inner() > 0, "the readers never ran");
    assert_eq!(the_number_in(&*store.engine.snapshot().unwrap()), COMMITS);
}

#[test]
fn bolt_snapshots_are_never_torn() {
    race(EngineKind::Bolt);
}

#[test]
fn sled_snapshots_are_never_torn() {
    race(EngineKind::Sled);
}

#[test]
fn memory_snapshots_are_never_torn() {
    race(EngineKind::Memory);
}
