//! Tests how many records are read from the store to deliver a number of events.

use clearlane_mvcc::watch::{WatchConfig, WatchRequest, WatchedKeys};

use crate::watch_limits::{Bytes, World, drain, events, everything, one};

/// The lag of a watcher, in revisions.
const BACKLOG: usize = 100_000;
const RARE: usize = 2000;

fn slow() -> WatchConfig {
    WatchConfig { stream_bytes_max: 10_000, sync_step_records: 100, ..WatchConfig::default() }
}

/// Returns a store with a long backlog. Every 2,000th revision changes the key "rare". Every 10th
/// revision changes one of the keys "list-0" to "list-4". The last revision puts 5,000 keys.
fn far_behind() -> World {
    let world = World::new();
    for number in 0..BACKLOG {
        let key = match number {
            number if number % RARE == 1 => "rare".to_owned(),
            number if number % 10 == 0 => format!("list-{}", number / 10 % 5),
            number => format!("other-{}", number % 1000),
        };
        world.put(&[key], 10);
    }
    let many: Vec<String> = (0..5000).map(|number| format!("many-{number:04}")).collect();
    world.put(&many, 10);
    world.commit();
    world
}

/// Returns the number of events that a watcher of these keys receives from the start, and the
/// number of records read for them.
fn events_and_reads(
    world: &World,
    config: WatchConfig,
    keys: WatchedKeys,
    bytes: usize,
) -> (usize, usize) {
    let watchable = world.watchable_store(config);
    let stream = watchable.stream();
    world.reads.take_count();
    stream.watch(WatchRequest { start_revision: 1, ..WatchRequest::new(keys) });
    let responses = drain(&watchable, &stream, bytes);
    let delivered = events(&responses);
    let revisions: Vec<i64> =
        delivered.iter().map(|event| crate::watch_limits::memory::revision(event)).collect();
    assert!(revisions.is_sorted());
    (delivered.len(), world.reads.take_count())
}

fn prefix(prefix: &str) -> WatchedKeys {
    let end = format!("{prefix}~");
    WatchedKeys::Range(prefix.to_owned().into(), end.into())
}

#[test]
fn what_is_read_is_about_what_is_delivered() {
    let world = far_behind();
    for (config, bytes) in [(WatchConfig::default(), usize::MAX), (slow(), 1)] {
        let rare = BACKLOG / RARE;
        assert_eq!(events_and_reads(&world, config, one("rare"), bytes), (rare, rare), "one key");
        // These five keys have more changes than the list of an unsynced watcher can hold (4,096),
        // so the reader needs several lists.
        assert_eq!(
            events_and_reads(&world, config, prefix("list-"), bytes),
            (10_000, 10_000),
            "five keys"
        );
        // After 100,000 other revisions, one transaction has more changes than a list can hold. The
        // reader must still not read the records of the other revisions.
        assert_eq!(
            events_and_reads(&world, config, prefix("many-"), bytes),
            (5000, 5000),
            "many keys"
        );
        let all = BACKLOG + 5000;
        let (delivered, read) =
            events_and_reads(&world, config, WatchedKeys::From(Bytes::new()), bytes);
        assert_eq!(delivered, all, "everything");
        // Each step also reads the first record of the next step, and does not use it.
        let steps = all / config.sync_step_records + 1;
        assert!((all..=all + steps).contains(&read), "{read} of {all} records read");
    }
}

/// The watcher wants an event of every second revision, but only about one in 400 records.
#[test]
fn big_transactions_are_not_scanned_for_few_events() {
    let world = World::new();
    for number in 0..400 {
        let mut keys: Vec<String> = (0..200).map(|key| format!("other-{key}")).collect();
        if number % 2 == 0 {
            keys.push("wanted".to_owned());
        }
        world.put(&keys, 10);
    }
    world.commit();
    let config = WatchConfig::default();
    let (delivered, read) = events_and_reads(&world, config, one("wanted"), usize::MAX);
    assert_eq!(delivered, 200);
    // The first step scans, and finds that few of the records are wanted. So the later steps read
    // only wanted records.
    assert!(read < config.sync_step_records + 2 * delivered, "{read} of 80,000 records read");
}

#[test]
fn puts_are_not_read_for_a_watcher_that_wants_none() {
    let world = World::new();
    for number in 0..2000 {
        world.put(&["a"], 10);
        if number % 100 == 0 {
            world.delete(b"a");
        }
    }
    world.commit();
    let watchable = world.watchable_store(WatchConfig::default());
    let stream = watchable.stream();
    stream.watch(WatchRequest { start_revision: 1, no_put: true, ..everything() });
    let responses = drain(&watchable, &stream, usize::MAX);
    assert_eq!((events(&responses).len(), world.reads.take_count()), (20, 20));
}

#[test]
fn bounds_of_nothing_still_allow_steps() {
    let world = World::new();
    for _ in 0..20 {
        world.put(&["a", "b"], 10);
    }
    let nothing = WatchConfig {
        stream_bytes_max: 0,
        queue_bytes_max: 0,
        sync_step_records: 0,
        sync_step_bytes: 0,
    };
    assert_eq!(events_and_reads(&world, nothing, one("a"), 1).0, 20, "by a list or by a scan");
    assert_eq!(events_and_reads(&world, nothing, WatchedKeys::From(Bytes::new()), 1).0, 40);
}

/// Streams get their events in turn, and so do the watchers of a stream.
#[test]
fn a_watcher_far_behind_does_not_keep_others_waiting() {
    let world = World::new();
    world.put(&["rare"], 10);
    (0..3000).for_each(|_| drop(world.put(&["often"], 10)));
    let watchable =
        world.watchable_store(WatchConfig { sync_step_records: 10, ..WatchConfig::default() });
    let (busy, other) = (watchable.stream(), watchable.stream());
    (0..50).for_each(|_| busy.watch(WatchRequest { start_revision: 1, ..everything() }));
    other.watch(WatchRequest { start_revision: 1, ..WatchRequest::new(one("rare")) });
    (0..2).for_each(|_| assert!(watchable.store.sync_watchers().unwrap()));
    assert_eq!(events(&other.take_responses(usize::MAX).unwrap()).len(), 1, "the other stream");
    (0..49).for_each(|_| assert!(watchable.store.sync_watchers().unwrap()));
    let delivered = busy.take_responses(usize::MAX).unwrap();
    let of = |id| delivered.iter().filter(|response| response.id == id).count();
    assert!((0..50).all(|id| of(id) == 2), "all 50 were created and got one response");
}
