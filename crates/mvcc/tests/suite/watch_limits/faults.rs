//! Tests that no event is lost when a read fails, that sleeping threads are woken, and that no
//! number in a request does harm.

use std::sync::Arc;

use clearlane_backend::{Config, Era, PreCommit};
use clearlane_contention::Registry;
use clearlane_mvcc::watch::{
    CurrentWatchableStore, INVALID_WATCH_ID, ResponseKind, WakeSet, WatchConfig, WatchError,
    WatchRequest, WatchStream,
};
use clearlane_mvcc::{StoreConfig, WatchableKv, open};

use crate::watch_limits::engine::CountingEngine;
use crate::watch_limits::{World, drain, events, everything, one};

#[test]
fn a_failed_read_is_tried_again() {
    for (keys, good) in [("a", 0), ("a", 5), ("b", 50)] {
        let world = World::new();
        for number in 0..200 {
            world.put(&[if number % 10 == 0 { "a" } else { "b" }], 10);
        }
        world.commit();
        let watchable = world.watchable_store(WatchConfig::default());
        let stream = watchable.stream();
        stream.watch(WatchRequest { start_revision: 1, ..WatchRequest::new(one(keys)) });
        world.reads.fail_after(good);
        assert!(watchable.store.sync_watchers().is_err());
        assert!(watchable.store.sync_watchers().is_err(), "it is still there");
        world.reads.recover();
        let expected = if keys == "a" { 20 } else { 180 };
        assert_eq!(events(&drain(&watchable, &stream, usize::MAX)).len(), expected);
        assert_eq!(watchable.store.metrics().unsynced, 0);
    }
}

#[test]
fn a_transaction_that_could_not_be_handed_on_is_read_later() {
    let world = World::new();
    world.put(&["a"], 10);
    world.commit();
    let watchable = world.watchable_store(WatchConfig::default());
    let stream = watchable.stream();
    stream.watch(WatchRequest { prev_kv: true, ..everything() });
    stream.watch(everything());
    watchable.publish(world.put(&["a"], 10));
    let published = watchable.wake_ups();
    world.reads.fail_after(0);
    assert!(watchable.store.deliver().is_err());
    assert!(watchable.wake_ups() > published, "the sync thread is woken");
    world.reads.recover();
    let responses = drain(&watchable, &stream, usize::MAX);
    let delivered = events(&responses);
    assert_eq!(delivered.len(), 2);
    assert_eq!(delivered.iter().filter(|event| event.prev_kv.is_some()).count(), 1);
}

#[test]
fn an_overflow_of_the_queue_wakes_the_sync_thread() {
    let world = World::new();
    let watchable =
        world.watchable_store(WatchConfig { queue_bytes_max: 1, ..WatchConfig::default() });
    let stream = watchable.stream();
    stream.watch(everything());
    watchable.publish(world.put(&["a"], 10));
    watchable.publish(world.put(&["a"], 10));
    let published = watchable.wake_ups();
    assert!(!watchable.store.deliver().unwrap());
    assert_eq!(watchable.store.metrics().unsynced, 1);
    assert!(watchable.wake_ups() > published);
}

#[test]
fn progress_is_answered_only_to_streams_with_watchers() {
    let world = World::new();
    let watchable = world.watchable_store(WatchConfig::default());
    let stream = watchable.stream();
    world.put(&["a"], 10);
    stream.request_progress();
    stream.watch(everything());
    watchable.publish(world.put(&["b"], 10));
    let delivered = drain(&watchable, &stream, usize::MAX);
    assert!(
        delivered.iter().all(|response| response.kind != ResponseKind::Progress),
        "{delivered:?}"
    );
}

/// Progress requests get responses even if the client sends the next request before the response
/// arrives. Requests at the same revision may share a response.
#[test]
fn repeated_requests_for_progress_are_answered() {
    let world = World::new();
    let watchable = world.watchable_store(WatchConfig::default());
    let stream = watchable.stream();
    stream.watch(WatchRequest::new(one("a")));
    let mut late = world.put(&["b"], 10);
    let mut answers = 0;
    for _ in 0..10 {
        stream.request_progress();
        let next = world.put(&["b"], 10);
        stream.request_progress();
        watchable.publish(std::mem::replace(&mut late, next));
        watchable.settle();
        let taken = stream.take_responses(usize::MAX).unwrap();
        answers += taken.iter().filter(|response| response.kind == ResponseKind::Progress).count();
    }
    assert!(answers >= 10, "{answers} answers");
}

/// All watchers end and a new one is created while an old transaction is being delivered. The queue
/// does not have the transactions in between, and progress must not wait for them.
#[test]
fn an_old_transaction_on_its_way_does_not_set_back_the_present() {
    let world = World::new();
    world.put(&["a"], 10);
    world.commit();
    let watchable = Arc::new(world.watchable_store(WatchConfig::default()));
    let old = watchable.stream();
    old.watch(WatchRequest { prev_kv: true, ..everything() });
    watchable.publish(world.put(&["a"], 10));
    let unwatched = world.put(&["a"], 10);

    let (sent, made) = std::sync::mpsc::channel();
    let others = Arc::clone(&watchable);
    world.reads.before_next(move || {
        drop(old);
        others.publish(unwatched);
        let new = others.stream();
        new.watch(WatchRequest { progress_notify: true, ..everything() });
        sent.send(new).unwrap();
    });
    watchable.settle();
    let new = made.recv().unwrap();
    new.request_progress();
    let delivered: Vec<_> = new
        .take_responses(usize::MAX)
        .unwrap()
        .into_iter()
        .map(|delivered| delivered.revision)
        .collect();
    assert_eq!(delivered, [4, 4], "created, and synced");
}

#[test]
fn no_number_does_harm() {
    let world = World::new();
    world.put(&["a"], 10);
    let watchable = world.watchable_store(WatchConfig::default());
    let stream = watchable.stream();
    let ids = [i64::MIN, -1, 0, 1, i64::MAX];
    for (start, id) in ids.into_iter().flat_map(|start| ids.map(|id| (start, id))) {
        stream.watch(WatchRequest { start_revision: start, id, ..everything() });
    }
    watchable.publish(world.put(&["a"], 10));
    let delivered = drain(&watchable, &stream, usize::MAX);
    let refused = |refusal| {
        let says = ResponseKind::Rejected(refusal);
        delivered
            .iter()
            .filter(|delivered| delivered.id == INVALID_WATCH_ID && delivered.kind == says)
            .count()
    };
    // Ten of the 25 watchers are rejected because they start below 0. The other 15 watchers have
    // five IDs, three times each. Each ID except 0 is created once, and rejected twice. With ID 0
    // the stream chooses an ID, so all three are created. It chooses 0 for the first, and skips 1
    // for the next because 1 is in use. So seven watchers are created.
    assert_eq!(
        (refused(WatchError::NegativeStartRevision), refused(WatchError::DuplicateId)),
        (10, 8)
    );
    assert_eq!(watchable.store.metrics().watchers, 7);
    // The watchers with the IDs 2 and 3, which the stream has chosen, are not canceled.
    ids.into_iter().for_each(|id| stream.cancel(id));
    assert_eq!(watchable.store.metrics().watchers, 2);
    stream.request_progress();
}

/// In the old eras the previous record is looked up when a response is taken. A failed read is an
/// error; it must not look like a missing record.
#[test]
fn a_record_before_that_cannot_be_read_is_an_error() {
    let engine = CountingEngine::new();
    let reads = Arc::clone(&engine.reads);
    let store_config = StoreConfig::new(Arc::new(engine), Config::default(), PreCommit::none(), ());
    let store: Arc<dyn WatchableKv<()>> = Arc::from(open(Era::V3_5, store_config).unwrap().0);
    let put = || {
        let mut txn = store.begin_write().unwrap();
        txn.put(b"a", b"", 0).unwrap();
        txn.end(()).unwrap();
        store.commit().unwrap();
    };
    let watchable = Arc::clone(&store).open_watchable_store(
        WatchConfig::default(),
        &Registry::new(),
        Box::new(|_| {}),
    );
    let stream = WatchStream::open(CurrentWatchableStore::of(watchable), WakeSet::new(|| {}));
    stream.watch(WatchRequest { prev_kv: true, ..everything() });
    put();
    put();
    reads.fail_after(0);
    let delivered = stream.take_responses(usize::MAX).unwrap_err().to_string();
    assert!(delivered.contains("on purpose"), "{delivered}");
    reads.recover();
    put();
    let responses = stream.take_responses(usize::MAX).unwrap();
    assert!(events(&responses).iter().all(|event| event.prev_kv.is_some()));
}
