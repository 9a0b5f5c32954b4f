//! A walk over the index is paused in its visitor. The tests show which other threads can continue.
//!
//! etcd's index is one tree under one lock, so a put waits for the walk, and a read of a single key
//! waits for that put. The persistent index is walked in a snapshot: puts and reads continue, and
//! the walk sees no put that is made while it is paused.

use std::ops::ControlFlow;
use std::thread;

use clearlane_contention::{Registry, TaskLabel};
use clearlane_engine::KeyRange;
use clearlane_mvcc::{
    CompactionLock, EncodedLen, IndexSnapshot, LockedIndex, PersistentIndex, Revision, TreeIndex,
};

use crate::index::blocked_threads::{Barrier, OpenOnDrop, ThreadStatus, watch};

#[derive(Clone, Copy, Debug)]
enum Walk {
    All,
    /// A page of one key. The keys after it are counted.
    Page,
    /// All changes, as they are read for an unsynced watcher.
    Changes,
}

const WALKS: [Walk; 3] = [Walk::All, Walk::Page, Walk::Changes];

/// The newest revision. The keys are put at revisions 2 to 4.
const NEWEST: i64 = 4;

fn fill(index: &mut impl TreeIndex) {
    for (key, main) in [b"a", b"b", b"c"].into_iter().zip(2..=NEWEST) {
        index.put(key, Revision::new(main, 0), EncodedLen::UNKNOWN);
    }
}

/// Walks, pauses at the first key, and returns how many keys or changes it visited.
fn walk(snapshot: &impl IndexSnapshot, how: Walk, barrier: &Barrier) -> u64 {
    let mut shown = 0;
    let mut stop_at_first = || {
        shown += 1;
        if shown == 1 {
            barrier.wait();
        }
        ControlFlow::Continue(())
    };
    match how {
        Walk::All => snapshot.walk(KeyRange::ALL, NEWEST, &mut |_, _| stop_at_first()),
        Walk::Page => {
            return snapshot.revisions(KeyRange::ALL, NEWEST, 1, &mut |_, _| stop_at_first());
        }
        Walk::Changes => snapshot.changes_since(KeyRange::ALL, 1, &mut |_, _| stop_at_first()),
    }
    shown
}

/// Runs a put, a read of one key and a read of a small range while a walk is paused. Returns the
/// status of each.
fn found_beside_a_walk(
    mut index: impl TreeIndex,
    locks: &Registry,
    how: Walk,
) -> [ThreadStatus; 3] {
    fill(&mut index);
    let barrier = Barrier::default();
    let actors = ["walk", "put", "get", "small_range"].map(TaskLabel::named);
    let [walking, putting, getting, ranging] = actors;
    let [first, second, third] = [(); 3].map(|()| index.snapshot());
    thread::scope(|threads| {
        let _open = OpenOnDrop(&barrier);
        let at = &barrier;
        let walker = threads.spawn(move || {
            let _as = walking.enter();
            assert_eq!(walk(&first, how, at), 3, "{how:?}: what was there when it began");
        });
        assert_eq!(watch(walking, &walker, at, locks), ThreadStatus::AtBarrier);
        let put = threads.spawn(move || {
            let _as = putting.enter();
            index.put(b"b", Revision::new(NEWEST + 1, 0), EncodedLen::UNKNOWN);
        });
        let put = watch(putting, &put, at, locks);
        let get = threads.spawn(move || {
            let _as = getting.enter();
            assert_eq!(second.get(b"a", NEWEST).unwrap().modified, Revision::new(2, 0));
        });
        let get = watch(getting, &get, at, locks);
        let range = threads.spawn(move || {
            let _as = ranging.enter();
            assert_eq!(third.count(KeyRange::new(b"a", b"c"), NEWEST), 2);
        });
        [put, get, watch(ranging, &range, at, locks)]
    })
}

#[test]
fn under_one_lock_a_put_waits_for_the_walk_and_readers_for_the_put() {
    let waits = |words: &str| ThreadStatus::Blocked(format!("waits for treeIndex, {words}"));
    for how in WALKS {
        let locks = Registry::new();
        let index = LockedIndex::new(&locks, CompactionLock::PerKey);
        let found = found_beside_a_walk(index, &locks, how);
        let expected = [waits("held by walk"), waits("behind put"), waits("behind put")];
        assert_eq!(found, expected, "{how:?}");
    }
}

#[test]
fn beside_a_walk_over_a_snapshot_puts_and_reads_go_on() {
    for how in WALKS {
        let locks = Registry::new();
        let found = found_beside_a_walk(PersistentIndex::default(), &locks, how);
        assert_eq!(
            found,
            [ThreadStatus::Finished, ThreadStatus::Finished, ThreadStatus::Finished],
            "{how:?}"
        );
    }
}
