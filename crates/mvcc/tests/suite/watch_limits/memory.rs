//! Tests of the memory that is kept for clients that do not read.

use clearlane_mvcc::watch::{Event, ResponseKind, WatchConfig, WatchRequest};
use clearlane_mvcc::{Change, ReadTxn as _, Store as _};

use crate::watch_limits::{World, bytes, drain, events, everything, one};

pub(crate) fn revision(event: &Event) -> i64 {
    let (Change::Put(record) | Change::Delete(record)) = &event.change;
    record.mod_revision
}

fn small() -> WatchConfig {
    WatchConfig { stream_bytes_max: 50_000, sync_step_bytes: 20_000, ..WatchConfig::default() }
}

#[test]
fn a_channel_stays_below_its_bound_and_a_step() {
    let world = World::new();
    let watchable = world.watchable_store(small());
    let stream = watchable.stream();
    stream.watch(everything());
    for _ in 0..3000 {
        watchable.publish(world.put(&["a"], 1000));
        watchable.settle();
    }
    let kept = stream.take_responses(usize::MAX).unwrap();
    assert!((40_000..80_000).contains(&bytes(&kept)), "{} bytes kept", bytes(&kept));
    assert_eq!(events(&kept).len() + events(&drain(&watchable, &stream, 1)).len(), 3000);
}

#[test]
fn watchers_of_a_stream_count_what_they_do_not_share() {
    let world = World::new();
    let watchable = world.watchable_store(small());
    let stream = watchable.stream();
    stream.watch(WatchRequest::new(one("a")));
    stream.watch(WatchRequest::new(one("b")));
    stream.watch(WatchRequest { prev_kv: true, ..WatchRequest::new(one("c")) });
    for _ in 0..200 {
        let keys = ["a", "b", "c"];
        let mut txn = world.store.begin_write().unwrap();
        for (key, bytes) in keys.into_iter().zip([1, 5000, 5000]) {
            txn.put(key.as_bytes(), &vec![1; bytes], 0).unwrap();
        }
        let ended = txn.end(()).unwrap();
        watchable.publish((ended.revision, ended.changes));
        while watchable.store.deliver().unwrap() {}
    }
    let kept = bytes(&stream.take_responses(usize::MAX).unwrap());
    assert!((40_000..70_000).contains(&kept), "{kept} bytes kept");
}

#[test]
fn many_watchers_of_one_key_share_its_events() {
    let world = World::new();
    let watchable = world.watchable_store(small());
    let stream = watchable.stream();
    (0..50).for_each(|_| stream.watch(WatchRequest::new(one("a"))));
    stream.take_responses(usize::MAX).unwrap();
    watchable.publish(world.put(&["a"], 10_000));
    watchable.settle();
    assert_eq!(watchable.store.metrics().unsynced, 0, "50 times the same 10,000 bytes");
    assert_eq!(events(&stream.take_responses(usize::MAX).unwrap()).len(), 50);
}

/// The limit also includes previous records. In this test the deletes are small, but their previous
/// records are large.
#[test]
fn a_step_counts_the_records_before() {
    let world = World::new();
    let key = |number: usize| format!("key-{number}");
    (0..200).for_each(|number| drop(world.put(&[key(number)], 10_000)));
    let first = world.store.begin_read().revision() + 1;
    (0..200).for_each(|number| drop(world.delete(key(number).as_bytes())));
    let watchable = world.watchable_store(small());
    let stream = watchable.stream();
    stream.watch(WatchRequest { start_revision: first, prev_kv: true, ..everything() });
    watchable.settle();
    let kept = stream.take_responses(usize::MAX).unwrap();
    assert!(bytes(&kept) < 50_000 + 20_000 + 11_000, "{} bytes kept", bytes(&kept));
    let rest = drain(&watchable, &stream, usize::MAX);
    assert_eq!(events(&kept).len() + events(&rest).len(), 200);
    assert!(events(&rest).iter().all(|event| event.prev_kv.is_some()));
}

#[test]
fn notices_of_progress_do_not_pile_up() {
    let world = World::new();
    let watchable = world.watchable_store(small());
    let stream = watchable.stream();
    stream.watch(WatchRequest { progress_notify: true, ..everything() });
    (0..5000).for_each(|_| stream.notify_progress());
    let kept = stream.take_responses(usize::MAX).unwrap();
    assert!((10..1000).contains(&kept.len()), "{} notices kept", kept.len());
    assert_eq!(kept[1].kind, ResponseKind::Progress);
    stream.notify_progress();
    assert_eq!(stream.take_responses(usize::MAX).unwrap().len(), 1, "there is room again");
}

/// The transaction has 1,000 changes, and 1,101 watchers watch all keys. These are too many pairs
/// of a change and a watcher, so the transaction is not delivered from the queue. Instead the
/// watchers become unsynced, and read the changes from the store.
#[test]
fn a_transaction_that_too_many_want_is_not_handed_on() {
    let world = World::new();
    let watchable = world.watchable_store(WatchConfig::default());
    let (stream, other) = (watchable.stream(), watchable.stream());
    (0..1100).for_each(|_| stream.watch(WatchRequest { no_put: true, ..everything() }));
    other.watch(everything());
    let keys: Vec<String> = (0..1000).map(|number| format!("key-{number}")).collect();
    let woken = watchable.wake_ups();
    watchable.publish(world.put(&keys, 1));
    let published = watchable.wake_ups();
    assert!(!watchable.store.deliver().unwrap());
    assert_eq!(watchable.store.metrics().unsynced, 1101);
    assert!(published > woken && watchable.wake_ups() > published, "the sync thread is woken");
    watchable.settle();
    assert_eq!(watchable.store.metrics().unsynced, 0);
    assert_eq!(events(&stream.take_responses(usize::MAX).unwrap()).len(), 0);
    let delivered = other.take_responses(usize::MAX).unwrap();
    assert_eq!((delivered.len(), events(&delivered).len()), (2, 1000), "in one response");
}
