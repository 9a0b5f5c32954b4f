//! Times of threads that are blocked at the inner lock. The test itself takes it, as
//! a thread that lost its processor inside would.

use std::sync::mpsc::channel;

use super::*;

const BLOCKED_NS: u64 = 1_000_000;

fn new_lock() -> BlockingLock {
    BlockingLock::new(Arc::new(LockMetrics::new("lock")), Arc::default())
}

/// Returns when it was released.
fn hold_inner(inner: MutexGuard<'_, Inner>) -> u64 {
    let until_ns = now_ns() + BLOCKED_NS;
    while now_ns() < until_ns {
        thread::yield_now();
    }
    let freed_ns = now_ns();
    drop(inner);
    freed_ns
}

/// Enters while the inner lock is taken; `true` if it came in time to be blocked.
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
    let (tell, told) = channel();
    thread::scope(|scope| {
        let reading = door.acquire(LockMode::Read);
        scope.spawn(|| {
            let _writing = door.acquire(LockMode::Write);
            tell.send(door.holders()[0].since_ns).expect("the test listens");
        });
        while door.waiters().is_empty() {
            thread::yield_now();
        }
        let inner = door.inner.lock();
        scope.spawn(move || drop(reading));
        let freed_ns = hold_inner(inner);
        let since_ns = told.recv().expect("the writer gets in");
        assert!(freed_ns <= since_ns, "held since {since_ns}, free at {freed_ns}");
    });
}
