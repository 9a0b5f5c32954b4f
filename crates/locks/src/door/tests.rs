//! What the clock says of those who are blocked at the inner lock. The test itself takes it, as a
//! thread that lost its processor inside would.

use std::sync::mpsc::channel;

use super::*;

const BLOCKED_NS: u64 = 1_000_000;

fn door() -> Door {
    Door::new(Arc::new(Figures::new("door")), Arc::default())
}

/// Holds the inner lock for a while; returns when it gave it back.
fn block(inner: MutexGuard<'_, Inner>) -> u64 {
    let until_ns = now_ns() + BLOCKED_NS;
    while now_ns() < until_ns {
        thread::yield_now();
    }
    let freed_ns = now_ns();
    drop(inner);
    freed_ns
}

/// Somebody goes in while the inner lock is taken. Says whether it came in time to be blocked.
fn enter_blocked() -> bool {
    let door = door();
    thread::scope(|scope| {
        let inner = door.inner.lock();
        let entering = scope.spawn(|| {
            let _stay = door.enter(Mode::Write);
            (waited_ns(), door.inside()[0].since_ns)
        });
        let freed_ns = block(inner);
        let (waited_ns, since_ns) = entering.join().expect("it does not panic");
        let blocked = waited_ns > BLOCKED_NS / 2;
        assert!(!blocked || freed_ns <= since_ns, "held since {since_ns}, free at {freed_ns}");
        blocked
    })
}

#[test]
fn being_blocked_on_the_way_in_is_a_wait_and_no_hold() {
    assert!((0..1_000).any(|_| enter_blocked()));
}

#[test]
fn being_blocked_on_the_way_out_is_no_hold_of_the_next() {
    let door = door();
    let (tell, told) = channel();
    thread::scope(|scope| {
        let reading = door.enter(Mode::Read);
        scope.spawn(|| {
            let _writing = door.enter(Mode::Write);
            tell.send(door.inside()[0].since_ns).expect("the test listens");
        });
        while door.waiting().is_empty() {
            thread::yield_now();
        }
        let inner = door.inner.lock();
        scope.spawn(move || drop(reading));
        let freed_ns = block(inner);
        let since_ns = told.recv().expect("the writer gets in");
        assert!(freed_ns <= since_ns, "held since {since_ns}, free at {freed_ns}");
    });
}

#[test]
fn a_thread_knows_its_longest_wait_and_for_whom() {
    let door = door();
    let (tell, told) = channel();
    thread::scope(|scope| {
        let holding = {
            let _as = Actor::named("holder").enter();
            door.enter(Mode::Write)
        };
        scope.spawn(|| {
            let _as = Actor::named("waiter").enter();
            drop(door.enter(Mode::Read));
            let wait = take_longest_wait();
            tell.send((wait, waited_ns(), take_longest_wait())).expect("the test listens");
        });
        while door.waiting().is_empty() {
            thread::yield_now();
        }
        drop(holding);
    });
    let (wait, all_ns, again) = told.recv().expect("it was told");
    let holder = Some(Actor::named("holder"));
    let front = holder.map(|holder| (holder, Stance::Holding));
    assert_eq!(wait, Some(Wait { lock: "door", waited_ns: all_ns, front, holder }));
    assert_eq!(again, None);
}
