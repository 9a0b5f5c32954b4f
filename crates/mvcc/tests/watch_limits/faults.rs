//! Nothing is lost when reading fails, no thread sleeps over it, and no request does harm.

use std::sync::Arc;

use clearlane_backend::{Config, Era, PreCommit};
use clearlane_contention::Registry;
use clearlane_mvcc::watch::{
    INVALID_WATCH_ID, ResponseKind, WatchConfig, WatchError, WatchRequest, WatchStream,
};
use clearlane_mvcc::{StoreConfig, WatchableKv, open};

use crate::engine::CountingEngine;
use crate::{World, drain, events, everything, one};

#[test]
fn who_could_not_read_tries_again() {
    for (keys, good) in [("a", 0), ("a", 5), ("b", 50)] {
        let world = World::new();
        for number in 0..200 {
            world.put(&[if number % 10 == 0 { "a" } else { "b" }], 10);
        }
        world.commit();
        let hub = world.watchable_store(WatchConfig::default());
        let stream = hub.stream();
        stream.watch(WatchRequest { start_revision: 1, ..WatchRequest::new(one(keys)) });
        world.reads.fail_after(good);
        assert!(hub.store.sync_watchers().is_err());
        assert!(hub.store.sync_watchers().is_err(), "it is still there");
        world.reads.recover();
        let expected = if keys == "a" { 20 } else { 180 };
        assert_eq!(events(&drain(&hub, &stream, usize::MAX)).len(), expected);
        assert_eq!(hub.store.metrics().unsynced, 0);
    }
}

#[test]
fn a_transaction_that_could_not_be_handed_on_is_read_later() {
    let world = World::new();
    world.put(&["a"], 10);
    world.commit();
    let hub = world.watchable_store(WatchConfig::default());
    let stream = hub.stream();
    stream.watch(WatchRequest { prev_kv: true, ..everything() });
    stream.watch(everything());
    hub.publish(world.put(&["a"], 10));
    let published = hub.wake_ups();
    world.reads.fail_after(0);
    assert!(hub.store.deliver().is_err());
    assert!(hub.wake_ups() > published, "somebody has to catch up");
    world.reads.recover();
    let responses = drain(&hub, &stream, usize::MAX);
    let told = events(&responses);
    assert_eq!(told.len(), 2);
    assert_eq!(told.iter().filter(|event| event.prev_kv.is_some()).count(), 1);
}

#[test]
fn what_the_queue_throws_away_wakes_whoever_catches_up() {
    let world = World::new();
    let hub = world.watchable_store(WatchConfig { queue_bytes_max: 1, ..WatchConfig::default() });
    let stream = hub.stream();
    stream.watch(everything());
    hub.publish(world.put(&["a"], 10));
    hub.publish(world.put(&["a"], 10));
    let published = hub.wake_ups();
    assert!(!hub.store.deliver().unwrap());
    assert_eq!(hub.store.metrics().unsynced, 1);
    assert!(hub.wake_ups() > published);
}

#[test]
fn an_answer_on_progress_is_for_those_who_had_watchers() {
    let world = World::new();
    let hub = world.watchable_store(WatchConfig::default());
    let stream = hub.stream();
    world.put(&["a"], 10);
    stream.request_progress();
    stream.watch(everything());
    hub.publish(world.put(&["b"], 10));
    let told = drain(&hub, &stream, usize::MAX);
    assert!(told.iter().all(|response| response.kind != ResponseKind::Progress), "{told:?}");
}

/// Each question is answered, though the next one is asked before that.
#[test]
fn who_asks_again_and_again_is_answered() {
    let world = World::new();
    let hub = world.watchable_store(WatchConfig::default());
    let stream = hub.stream();
    stream.watch(WatchRequest::new(one("a")));
    let mut late = world.put(&["b"], 10);
    let mut answers = 0;
    for _ in 0..10 {
        stream.request_progress();
        let next = world.put(&["b"], 10);
        stream.request_progress();
        hub.publish(std::mem::replace(&mut late, next));
        hub.settle();
        let taken = stream.poll_responses(usize::MAX).unwrap();
        answers += taken.iter().filter(|response| response.kind == ResponseKind::Progress).count();
    }
    assert!(answers >= 10, "{answers} answers");
}

/// All watchers go and a new one comes while an old transaction is on its way. What was in between
/// is not in the queue, and progress must not wait for it.
#[test]
fn an_old_transaction_on_its_way_does_not_set_back_the_present() {
    let world = World::new();
    world.put(&["a"], 10);
    world.commit();
    let hub = Arc::new(world.watchable_store(WatchConfig::default()));
    let old = hub.stream();
    old.watch(WatchRequest { prev_kv: true, ..everything() });
    hub.publish(world.put(&["a"], 10));
    let unwatched = world.put(&["a"], 10);

    let (sent, made) = std::sync::mpsc::channel();
    let others = Arc::clone(&hub);
    world.reads.before_next(move || {
        drop(old);
        others.publish(unwatched);
        let new = others.stream();
        new.watch(WatchRequest { progress_notify: true, ..everything() });
        sent.send(new).unwrap();
    });
    hub.settle();
    let new = made.recv().unwrap();
    new.request_progress();
    let told: Vec<_> =
        new.poll_responses(usize::MAX).unwrap().into_iter().map(|told| told.revision).collect();
    assert_eq!(told, [4, 4], "created, and in step");
}

#[test]
fn no_number_does_harm() {
    let world = World::new();
    world.put(&["a"], 10);
    let hub = world.watchable_store(WatchConfig::default());
    let stream = hub.stream();
    let ids = [i64::MIN, -1, 0, 1, i64::MAX];
    for (start, id) in ids.into_iter().flat_map(|start| ids.map(|id| (start, id))) {
        stream.watch(WatchRequest { start_revision: start, id, ..everything() });
    }
    hub.publish(world.put(&["a"], 10));
    let told = drain(&hub, &stream, usize::MAX);
    let refused = |refusal| {
        let says = ResponseKind::Rejected(refusal);
        told.iter().filter(|told| told.id == INVALID_WATCH_ID && told.kind == says).count()
    };
    // Ten start below 0. Of the other fifteen, four ids are made once, and 0 is a choice: the
    // first one is 0, and 1 is taken for the next.
    assert_eq!(
        (refused(WatchError::NegativeStartRevision), refused(WatchError::DuplicateId)),
        (10, 8)
    );
    assert_eq!(hub.store.metrics().watchers, 7);
    ids.into_iter().for_each(|id| stream.cancel(id));
    assert_eq!(hub.store.metrics().watchers, 2);
    stream.request_progress();
}

/// In the old eras the record before is looked up when a response is taken. That the store cannot be
/// read is not the same as that there is none.
#[test]
fn a_record_before_that_cannot_be_read_is_an_error() {
    let engine = CountingEngine::new();
    let reads = Arc::clone(&engine.reads);
    let ground = StoreConfig::new(Arc::new(engine), Config::default(), PreCommit::none(), ());
    let store: Arc<dyn WatchableKv<()>> = Arc::from(open(Era::V3_5.into(), ground).unwrap().0);
    let put = || {
        let mut txn = store.begin_write().unwrap();
        txn.put(b"a", b"", 0).unwrap();
        txn.end(()).unwrap();
        store.commit().unwrap();
    };
    let hub = Arc::clone(&store).open_watchable_store(
        WatchConfig::default(),
        &Registry::new(),
        Box::new(|_| {}),
    );
    let stream = WatchStream::open(hub, Arc::new(|| {}), 0);
    stream.watch(WatchRequest { prev_kv: true, ..everything() });
    put();
    put();
    reads.fail_after(0);
    let told = stream.poll_responses(usize::MAX).unwrap_err().to_string();
    assert!(told.contains("on purpose"), "{told}");
    reads.recover();
    put();
    let responses = stream.poll_responses(usize::MAX).unwrap();
    assert!(events(&responses).iter().all(|event| event.prev_kv.is_some()));
}
