//! Tests that the time that a thread spends blocked at the inner lock is not part of a hold, and
//! that on entry this time counts as a wait. The test itself holds the inner lock, in place of a
//! thread that lost its processor while it held the inner lock.

use std::sync::mpsc::channel;

use super::*;

const BLOCKED_NS: u64 = 1_000_000;

fn new_lock() -> BlockingLock {
    BlockingLock::new(Arc::new(LockMetrics::new("lock")), Arc::default())
}

/// Holds the inner lock for [`BLOCKED_NS`], and returns the time of its release.
fn hold_inner(inner: MutexGuard<'_, Inner>) -> u64 {
    let until_ns = now_ns() + BLOCKED_NS;
    while now_ns() < until_ns {
        thread::yield_now();
    }
    let freed_ns = now_ns();
    drop(inner);
    freed_ns
}

/// Acquires the lock in a thread while the inner lock is taken. Returns true if the thread started
/// early enough to be blocked. Checks that its hold then started after the inner lock became free.
fn acquire_contended() -> bool {
    let door = new_lock();
    thread::scope(|scope| {
        let inner = door.inner.lock();
        let entering = scope.spawn(|| {
            let _stay = door.acquire(LockMode::Write);
            (waited_ns(), door.holders()[0].since_ns)
        });
        let freed_ns = hold_inner(inner);
        let (waited_ns, since_ns) = entering.join().expect("it does not panic");
        let blocked = waited_ns > BLOCKED_NS / 2;
        assert!(!blocked || freed_ns <= since_ns, "held since {since_ns}, free at {freed_ns}");
        blocked
    })
}

#[test]
fn being_blocked_on_the_way_in_is_a_wait_and_no_hold() {
    assert!((0..1_000).any(|_| acquire_contended()));
}

#[test]
fn being_blocked_on_the_way_out_is_no_hold_of_the_next() {
    let door = new_lock();
    let (sender, receiver) = channel();
    thread::scope(|scope| {
        let reading = door.acquire(LockMode::Read);
        scope.spawn(|| {
            let _writing = door.acquire(LockMode::Write);
            sender.send(door.holders()[0].since_ns).expect("the test listens");
        });
        while door.waiters().is_empty() {
            thread::yield_now();
        }
        let inner = door.inner.lock();
        scope.spawn(move || drop(reading));
        let freed_ns = hold_inner(inner);
        let since_ns = receiver.recv().expect("the writer gets in");
        assert!(freed_ns <= since_ns, "held since {since_ns}, free at {freed_ns}");
    });
}
