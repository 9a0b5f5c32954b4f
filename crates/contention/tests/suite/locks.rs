//! Tests of real locks with real threads, for cases that the scripts about the order of entry do
//! not reach.
//!
//! No test sleeps for a fixed time. A test that needs "X waits for L behind Y" polls the registry
//! until the registry reports this wait.

use std::{
    hint::spin_loop,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc::{channel, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use clearlane_contention::{
    BlockerState, LockEvent, LockEventKind, LockMode, LockReport, Mutex, Registry, RwLock,
    TaskLabel, now_ns, waited_ns,
};

fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        thread::yield_now();
    }
}

fn until_waits(registry: &Registry, waiter: TaskLabel, holder: TaskLabel, stance: BlockerState) {
    until(&format!("{waiter} waits behind {holder}"), || {
        let waiting = registry.waiting();
        waiting.iter().any(|it| {
            (it.waiter.task, it.blocker.task, it.blocker.state) == (waiter, holder, stance)
        })
    });
}

fn report_of(registry: &Registry, name: &str) -> LockReport {
    registry.report().into_iter().find(|report| report.name == name).expect("a lock of this name")
}

/// Runs the convoy: an expensive read holds the lock, a put waits for the read, and a cheap read
/// waits for the put. Returns the registry, and how long the cheap read waited.
fn convoy() -> (Registry, u64) {
    let [expensive, put, cheap] = ["expensive_read", "put", "cheap_read"].map(TaskLabel::named);
    let registry = Registry::new();
    let lock = RwLock::new(&registry, "readTx", 0);
    let _as = expensive.enter();
    let waited = thread::scope(|scope| {
        let reading = lock.read();
        scope.spawn(|| {
            let _as = put.enter();
            *lock.write() += 1;
        });
        until_waits(&registry, put, expensive, BlockerState::Holding);
        let cheap_read = scope.spawn(|| {
            let _as = cheap.enter();
            let before_ns = waited_ns();
            assert_eq!(*lock.read(), 1, "it goes after the put");
            waited_ns() - before_ns
        });
        until_waits(&registry, cheap, put, BlockerState::Waiting);
        drop(reading);
        cheap_read.join().expect("the cheap read does not panic")
    });
    (registry, waited)
}

#[test]
fn blame_tells_the_whole_convoy() {
    let [expensive, put, cheap] = ["expensive_read", "put", "cheap_read"].map(TaskLabel::named);
    let (registry, _) = convoy();
    let report = report_of(&registry, "readTx");
    let found =
        report.blame.iter().map(|it| (it.waiter, it.mode, it.blocker, it.blocker_state, it.count));
    let mut found: Vec<_> = found.collect();
    found.sort();
    let mut expected = [
        (put, LockMode::Write, expensive, BlockerState::Holding, 1),
        (cheap, LockMode::Read, put, BlockerState::Waiting, 1),
        (cheap, LockMode::Read, put, BlockerState::Holding, 1),
    ];
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn a_wait_is_the_sum_of_its_blame_and_of_waking_up() {
    let cheap = TaskLabel::named("cheap_read");
    let (registry, waited) = convoy();
    let report = report_of(&registry, "readTx");
    let blamed: u64 =
        report.blame.iter().filter(|it| it.waiter == cheap).map(|it| it.total_ns).sum();
    assert!(0 < blamed && blamed <= waited, "blamed {blamed} of {waited}");
    assert_eq!(report.read.waits.max, waited);
    assert_eq!(report.read.waits.count, 2, "the expensive read counts as a wait of 0");
    assert_eq!(report.read.waits.buckets().next(), Some((0, 1)));
}

#[test]
fn the_longest_hold_knows_its_holder() {
    let registry = Registry::new();
    let lock = RwLock::new(&registry, "readTx", ());
    let hold = |actor: &str, at_least_ns: u64| {
        let _as = TaskLabel::named(actor).enter();
        let before_ns = now_ns();
        let guard = lock.read();
        let inside_ns = now_ns();
        until("the time has passed", || now_ns() >= inside_ns + at_least_ns);
        drop(guard);
        now_ns() - before_ns
    };
    let cheap_ns = hold("cheap_read", 0);
    hold("expensive_read", 2 * cheap_ns + 1_000_000);

    let report = report_of(&registry, "readTx");
    let longest = report.read.holders[0];
    assert_eq!(longest.task.name(), "expensive_read");
    assert_eq!(longest.longest_ns, report.read.holds.max);
    let holders: Vec<&str> = report.read.holders.iter().map(|it| it.task.name()).collect();
    assert_eq!(holders, ["expensive_read", "cheap_read"]);
    assert_eq!((report.read.acquisitions, report.write.acquisitions), (2, 0));
}

#[test]
fn a_hold_that_still_lasts_is_reported() {
    let registry = Registry::new();
    let lock = Mutex::new(&registry, "batchTx", ());
    let _as = TaskLabel::named("commit").enter();
    let guard = lock.lock();
    let inside_ns = now_ns();
    until("a millisecond has passed", || now_ns() > inside_ns + 1_000_000);

    let report = report_of(&registry, "batchTx");
    assert_eq!((report.write.acquisitions, report.write.holds.count), (1, 0));
    let holder = report.write.holders[0];
    assert_eq!((holder.task.name(), holder.count), ("commit", 1));
    assert!(holder.longest_ns > 900_000, "{holder:?}");
    assert_eq!(registry.holding()[0].1.task.name(), "commit");
    drop(guard);
    assert!(registry.holding().is_empty());
}

#[test]
fn writers_exclude_all_others() {
    let registry = Registry::new();
    // The two numbers are equal whenever no thread is in the middle of a write.
    let lock = RwLock::new(&registry, "pair", (0_u64, 0_u64));
    let mutex = Mutex::new(&registry, "sum", 0_u64);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..3_000 {
                    let mut pair = lock.write();
                    pair.0 += 1;
                    thread::yield_now();
                    pair.1 += 1;
                    drop(pair);
                    *mutex.lock() += 1;
                }
            });
            scope.spawn(|| {
                for _ in 0..3_000 {
                    let pair = lock.read();
                    assert_eq!(pair.0, pair.1);
                }
            });
        }
    });
    assert_eq!(*lock.read(), (9_000, 9_000));
    assert_eq!(*mutex.lock(), 9_000);
    let report = report_of(&registry, "pair");
    assert_eq!((report.read.acquisitions, report.write.acquisitions), (9_001, 9_000));
    assert!(registry.waiting().is_empty());
}

#[test]
fn a_panic_releases_the_lock_and_leaves_the_data() {
    let registry = Registry::new();
    let mutex = Mutex::new(&registry, "mutex", 0);
    let lock = RwLock::new(&registry, "lock", 0);
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let (mut one, mut other) = (mutex.lock(), lock.write());
        (*one, *other) = (1, 2);
        panic!("on purpose");
    }));
    assert!(caught.is_err());
    assert_eq!((*mutex.lock(), *lock.read()), (1, 2));
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _reading = lock.read();
        panic!("on purpose");
    }));
    assert!(caught.is_err());
    drop(lock.write());
}

#[test]
fn locks_of_one_name_are_reported_together_and_outlive_themselves() {
    let registry = Registry::new();
    for _ in 0..100 {
        drop(Mutex::new(&registry, "txMu", ()).lock());
    }
    let kept = Mutex::new(&registry, "txMu", ());
    let _guard = kept.lock();
    let reports = registry.report();
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].write.acquisitions, 101);
}

#[test]
fn registries_do_not_see_each_other() {
    let (one, other) = (Registry::new(), Registry::new());
    let lock = Mutex::new(&one, "same", ());
    let _other_lock = Mutex::new(&other, "same", ());
    drop(lock.lock());
    assert_eq!(report_of(&one, "same").write.acquisitions, 1);
    assert_eq!(report_of(&other, "same").write.acquisitions, 0);
}

#[test]
fn reset_starts_anew() {
    let (registry, _) = convoy();
    registry.reset();
    let report = report_of(&registry, "readTx");
    assert_eq!((report.read.acquisitions, report.write.acquisitions), (0, 0));
    assert_eq!((report.read.waits.count, report.read.holds.count), (0, 0));
    assert!(report.read.holders.is_empty() && report.blame.is_empty());
}

#[test]
fn the_guard_keeps_the_label_that_took_it() {
    let [outer, inner] = ["outer_work", "inner_work"].map(TaskLabel::named);
    let registry = Registry::new();
    let lock = Mutex::new(&registry, "lock", ());
    let _as = outer.enter();
    let guard = lock.lock();
    {
        let _as = inner.enter();
        drop(guard);
    }
    let holders = report_of(&registry, "lock").write.holders;
    assert_eq!(holders.len(), 1);
    assert_eq!(holders[0].task, outer);
}

/// Checks that a recording of the convoy has the exact times of all holds and waits. If a thread
/// finds the inner lock taken, it reads the clock twice, and its times do not match the times of
/// the other threads. The recording is then repeated, up to 20 times in all.
#[test]
fn a_recording_tells_the_convoy_with_times() {
    let found = (0..20).any(|_| std::panic::catch_unwind(record_the_convoy).is_ok());
    assert!(found, "not one of 20 recordings told it");
}

fn record_the_convoy() {
    let [expensive, put, cheap] = ["expensive_read", "put", "cheap_read"].map(TaskLabel::named);
    let registry = Registry::new();
    let lock = RwLock::new(&registry, "readTx", ());
    let recorder = registry.record(100);
    let _as = expensive.enter();
    thread::scope(|scope| {
        let reading = lock.read();
        scope.spawn(|| {
            let _as = put.enter();
            drop(lock.write());
        });
        until_waits(&registry, put, expensive, BlockerState::Holding);
        scope.spawn(|| {
            let _as = cheap.enter_numbered(7);
            drop(lock.read());
        });
        until_waits(&registry, cheap, put, BlockerState::Waiting);
        drop(reading);
    });
    assert_eq!(recorder.dropped(), 0);
    let events = recorder.stop();
    let held = |by| {
        let mut holds = events.iter().filter(|event| event.kind == LockEventKind::Hold);
        holds.find(|event| event.task == by).expect("it was recorded")
    };
    let waited = |by| {
        let wait = |event: &LockEvent| match event.kind {
            LockEventKind::Wait { blocker } if event.task == by => Some((*event, blocker)),
            _ => None,
        };
        events.iter().find_map(wait).expect("it was recorded")
    };

    // One holder's end is the next holder's start, to the nanosecond. A waiter records the end of
    // its wait after it has woken up.
    assert_eq!(held(put).start_ns, held(expensive).end_ns);
    assert_eq!(held(cheap).start_ns, held(put).end_ns);
    // The event has the blocker at the start of the wait.
    let (wait, blocker) = waited(cheap);
    assert_eq!((wait.number, blocker), (7, Some((put, BlockerState::Waiting))));
    let put_hold = held(put);
    assert!(wait.start_ns < put_hold.start_ns && wait.end_ns >= put_hold.end_ns);
    assert_eq!(waited(put).1, Some((expensive, BlockerState::Holding)));
    assert_eq!(held(cheap).number, 7);
    assert_eq!(events.len(), 5);
}

#[test]
fn a_full_recording_counts_what_it_drops() {
    let registry = Registry::new();
    let lock = Mutex::new(&registry, "lock", ());
    let recorder = registry.record(3);
    for _ in 0..10 {
        drop(lock.lock());
    }
    assert_eq!(recorder.dropped(), 7);
    assert_eq!(recorder.stop().len(), 3);
}

#[test]
fn a_recording_ends_when_it_is_stopped_dropped_or_replaced() {
    let registry = Registry::new();
    let lock = Mutex::new(&registry, "lock", ());
    let first = registry.record(10);
    drop(lock.lock());
    let second = registry.record(10);
    drop(lock.lock());
    drop(lock.lock());
    assert_eq!(first.stop().len(), 1, "replaced by the second");
    drop(lock.lock());
    assert_eq!(second.events().len(), 3, "stopping the first did not end the second");
    drop(second);
    drop(lock.lock());
    let third = registry.record(10);
    assert!(third.stop().is_empty());
}

/// One thread drops a recorder while another thread starts the next recording. Whichever comes
/// first, the new recorder must receive the events that follow.
///
/// With a faulty recorder, 4,000 rounds rarely fail, and only in a `--release` build. 40,000 rounds
/// failed every time.
#[test]
fn stopping_one_recording_does_not_silence_the_next() {
    const ROUNDS: usize = 4_000;
    let registry = Registry::new();
    let lock = Mutex::new(&registry, "lock", ());
    let [dropping, dropped] = [const { AtomicUsize::new(0) }; 2];
    let mut silent = 0;
    thread::scope(|scope| {
        let (to_drop, old) = sync_channel(0);
        let (dropping, dropped) = (&dropping, &dropped);
        scope.spawn(move || {
            for (round, recorder) in old.into_iter().enumerate() {
                dropping.store(round + 1, SeqCst);
                drop(recorder);
                dropped.store(round + 1, SeqCst);
            }
        });
        for round in 1..=ROUNDS {
            to_drop.send(registry.record(8)).unwrap();
            spin_until(round, dropping);
            let new = registry.record(8);
            spin_until(round, dropped);
            drop(lock.lock());
            silent += usize::from(new.stop().is_empty());
        }
    });
    assert_eq!(silent, 0, "recordings of {ROUNDS} that got no event");
}

/// Spins until the counter has reached `round`, because waking up would take longer than the two
/// operations that must collide. It yields after 1,000 iterations, in case the other thread has no
/// processor.
fn spin_until(round: usize, counter: &AtomicUsize) {
    for turn in 0.. {
        match counter.load(SeqCst) == round {
            true => return,
            false if turn < 1_000 => spin_loop(),
            false => thread::yield_now(),
        }
    }
}

#[test]
fn a_stray_unpark_admits_no_thread() {
    let registry = Registry::new();
    let lock = Mutex::new(&registry, "lock", 0);
    let waiter = TaskLabel::named("waiter");
    let (sender, receiver) = channel();
    thread::scope(|scope| {
        let mut guard = lock.lock();
        let waiting = scope.spawn(|| {
            let _as = waiter.enter();
            let value = *lock.lock();
            sender.send(value).unwrap();
        });
        until_waits(&registry, waiter, TaskLabel::UNNAMED, BlockerState::Holding);
        for _ in 0..100 {
            waiting.thread().unpark();
            thread::yield_now();
        }
        assert!(receiver.try_recv().is_err());
        *guard = 1;
        drop(guard);
        assert_eq!(receiver.recv().unwrap(), 1);
    });
}

#[test]
fn readers_are_inside_together() {
    let registry = Registry::new();
    let lock = RwLock::new(&registry, "lock", ());
    let all_inside = Barrier::new(4);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let _reading = lock.read();
                all_inside.wait();
            });
        }
    });
    // This is not a check that no thread waited: threads may meet at the inner lock, and such a
    // wait has no blame.
    assert!(report_of(&registry, "lock").blame.is_empty());
}
