//! One suite for all engines. Each guarantee of the crate is a test with the name of the guarantee.

use std::ops::ControlFlow;

use clearlane_engine::{Bucket, Error, KeyRange, Read};

use crate::support::{Store, records, shown};

/// Runs every listed function once per engine.
macro_rules! for_every_engine {
    ($($test:ident),+ $(,)?) => {
        for_every_engine!(@engine bolt, Bolt, $($test),+);
        for_every_engine!(@engine sled, Sled, $($test),+);
        for_every_engine!(@engine memory, Memory, $($test),+);
    };
    (@engine $module:ident, $kind:ident, $($test:ident),+) => {
        mod $module {
            use crate::support::Store;
            use clearlane_engine::EngineKind;

            $(#[test]
            fn $test() {
                super::$test(Store::new(EngineKind::$kind));
            })+
        }
    };
}

for_every_engine!(
    a_snapshot_stays_as_it_was_through_later_commits,
    a_snapshot_stays_as_it_was_through_deletes,
    a_snapshot_stays_as_it_was_through_a_defragmentation,
    a_snapshot_of_any_age_shows_its_own_commit,
    a_snapshot_outlives_its_engine,
    a_commit_is_all_or_nothing,
    a_commit_survives_if_the_engine_is_durable,
    one_write_transaction_at_a_time,
    size_in_use_counts_live_bytes,
    size_on_disk_falls_by_a_defragmentation,
    the_writer_reads_its_own_changes,
    snapshots_do_not_see_an_open_transaction,
    ranges_include_their_start_and_exclude_their_end,
    a_scan_ends_where_its_visitor_breaks,
    a_scan_is_longer_than_any_chunk,
    buckets_do_not_mix,
    any_bytes_are_keys_and_values,
    the_last_key_is_found,
    put_all_puts_all,
    one_defragmentation_at_a_time,
    a_defragmentation_carries_over_what_commits_meanwhile,
    a_defragmentation_may_begin_beside_an_open_transaction,
    a_defragmentation_does_not_finish_beside_an_open_transaction,
    a_defragmentation_that_is_dropped_leaves_the_store_as_it_was,
);

const KEY: Bucket = Bucket::Key;
const META: Bucket = Bucket::Meta;

fn a_snapshot_stays_as_it_was_through_later_commits(store: Store) {
    store.put(KEY, "a", "1");
    let snapshot = store.engine.snapshot().unwrap();
    store.put(KEY, "a", "2");
    store.put(KEY, "b", "3");
    assert_eq!(shown(&*snapshot, KEY), "a=1");
    assert_eq!(snapshot.get(KEY, b"a").unwrap().unwrap(), "1");
    assert_eq!(snapshot.get(KEY, b"b").unwrap(), None);
    assert_eq!(snapshot.last_key(KEY).unwrap().unwrap(), "a");
    assert_eq!(shown(&*store.engine.snapshot().unwrap(), KEY), "a=2 b=3");
}

fn a_snapshot_stays_as_it_was_through_deletes(store: Store) {
    store.put(META, "a", "1");
    store.put(META, "b", "2");
    let snapshot = store.engine.snapshot().unwrap();
    store.delete(META, "b");
    store.delete(META, "a");
    store.put(META, "b", "again");
    assert_eq!(shown(&*snapshot, META), "a=1 b=2");
    assert_eq!(snapshot.last_key(META).unwrap().unwrap(), "b");
    assert_eq!(shown(&*store.engine.snapshot().unwrap(), META), "b=again");
}

fn a_snapshot_stays_as_it_was_through_a_defragmentation(store: Store) {
    store.put(KEY, "a", "1");
    store.put(KEY, "b", "2");
    let snapshot = store.engine.snapshot().unwrap();
    store.delete(KEY, "a");
    store.defragment();
    store.put(KEY, "c", "3");
    store.defragment();
    assert_eq!(shown(&*snapshot, KEY), "a=1 b=2");
    assert_eq!(shown(&*store.engine.snapshot().unwrap(), KEY), "b=2 c=3");
}

fn a_snapshot_of_any_age_shows_its_own_commit(store: Store) {
    let mut snapshots = Vec::new();
    for number in 0..20 {
        store.put(META, "n", &number.to_string());
        store.put(META, &format!("k{:02}", number % 7), &number.to_string());
        let snapshot = store.engine.snapshot().unwrap();
        let expected = shown(&*snapshot, META);
        assert!(expected.contains(&format!("n={number}")));
        snapshots.push((snapshot, expected));
    }
    // Some snapshots are dropped, which must not change the others.
    snapshots.drain(5..12);
    store.delete(META, "n");
    for (snapshot, expected) in snapshots {
        assert_eq!(shown(&*snapshot, META), expected);
    }
}

fn a_snapshot_outlives_its_engine(store: Store) {
    store.put(KEY, "a", "1");
    let snapshot = store.engine.snapshot().unwrap();
    let Store { engine, .. } = store;
    drop(engine);
    assert_eq!(shown(&*snapshot, KEY), "a=1");
}

fn a_commit_is_all_or_nothing(store: Store) {
    store.put(KEY, "a", "1");
    let mut txn = store.engine.begin_write().unwrap();
    txn.put(KEY, b"a", b"2").unwrap();
    txn.put(META, b"b", b"2").unwrap();
    txn.delete(KEY, b"a").unwrap();
    drop(txn);
    let snapshot = store.engine.snapshot().unwrap();
    assert_eq!(shown(&*snapshot, KEY), "a=1");
    assert_eq!(shown(&*snapshot, META), "");
    assert_eq!(store.engine.size_in_use(), 2);
}

fn a_commit_survives_if_the_engine_is_durable(store: Store) {
    let durable = store.kind.is_durable();
    store.put(KEY, "a", "1");
    store.put(META, "b", "22");
    store.defragment();
    store.put(KEY, "c", "3");
    let store = store.reopened();
    let snapshot = store.engine.snapshot().unwrap();
    assert_eq!(shown(&*snapshot, KEY), if durable { "a=1 c=3" } else { "" });
    assert_eq!(shown(&*snapshot, META), if durable { "b=22" } else { "" });
    assert_eq!(store.engine.size_in_use(), if durable { 7 } else { 0 });
}

fn one_write_transaction_at_a_time(store: Store) {
    let first = store.engine.begin_write().unwrap();
    assert!(matches!(store.engine.begin_write(), Err(Error::WriterBusy)));
    drop(first);
    let second = store.engine.begin_write().unwrap();
    second.commit().unwrap();
    drop(store.engine.begin_write().unwrap());
}

fn size_in_use_counts_live_bytes(store: Store) {
    assert_eq!(store.engine.size_in_use(), 0);
    store.put(KEY, "key", "value");
    assert_eq!(store.engine.size_in_use(), 8);
    store.put(KEY, "key", "v");
    assert_eq!(store.engine.size_in_use(), 4);
    store.commit(|txn| {
        txn.put(META, b"m", b"12").unwrap();
        txn.put(META, b"m", b"1234").unwrap();
        txn.delete(META, b"absent").unwrap();
        assert_eq!(store.engine.size_in_use(), 4, "as of the last commit");
    });
    assert_eq!(store.engine.size_in_use(), 9);
    store.delete(KEY, "key");
    assert_eq!(store.engine.size_in_use(), 5);
    store.defragment();
    assert_eq!(store.engine.size_in_use(), 5);
}

fn size_on_disk_falls_by_a_defragmentation(store: Store) {
    let fill = |txn: &mut dyn clearlane_engine::WriteTxn, number: u64| {
        txn.put(KEY, &number.to_be_bytes(), &[7; 4096]).unwrap();
    };
    store.commit(|txn| (0..2_000).for_each(|number| fill(txn, number)));
    store.commit(|txn| (0..1_990u64).for_each(|n| txn.delete(KEY, &n.to_be_bytes()).unwrap()));
    let before = store.engine.size_on_disk().unwrap();
    store.defragment();
    let after = store.engine.size_on_disk().unwrap();
    assert_eq!(records(&*store.engine.snapshot().unwrap(), KEY, KeyRange::ALL).len(), 10);
    if store.kind.is_durable() {
        assert!(after * 2 < before, "{before} bytes became {after}");
    } else {
        assert_eq!((before, after), (0, 0));
    }
}

fn the_writer_reads_its_own_changes(store: Store) {
    store.put(KEY, "a", "1");
    store.put(KEY, "b", "2");
    store.put(KEY, "d", "4");
    store.commit(|txn| {
        txn.put(KEY, b"a", b"one").unwrap();
        txn.delete(KEY, b"b").unwrap();
        txn.put(KEY, b"c", b"3").unwrap();
        txn.delete(KEY, b"d").unwrap();
        assert_eq!(shown(txn, KEY), "a=one c=3");
        assert_eq!(txn.get(KEY, b"b").unwrap(), None);
        assert_eq!(txn.get(KEY, b"c").unwrap().unwrap(), "3");
        assert_eq!(txn.last_key(KEY).unwrap().unwrap(), "c");
        txn.put(KEY, b"b", b"back").unwrap();
        assert_eq!(shown(txn, KEY), "a=one b=back c=3");
    });
    assert_eq!(shown(&*store.engine.snapshot().unwrap(), KEY), "a=one b=back c=3");
}

fn snapshots_do_not_see_an_open_transaction(store: Store) {
    store.put(KEY, "a", "1");
    let mut txn = store.engine.begin_write().unwrap();
    txn.put(KEY, b"b", b"2").unwrap();
    let during = store.engine.snapshot().unwrap();
    txn.put(KEY, b"a", b"3").unwrap();
    txn.commit().unwrap();
    assert_eq!(shown(&*during, KEY), "a=1");
}

fn ranges_include_their_start_and_exclude_their_end(store: Store) {
    for key in ["a", "b", "ba", "c", "d"] {
        store.put(KEY, key, "");
    }
    let snapshot = store.engine.snapshot().unwrap();
    let writer = store.engine.begin_write().unwrap();
    let readers: [&dyn Read; 2] = [&*snapshot, &*writer];
    for reader in readers {
        let keys = |range| {
            let found = records(reader, KEY, range);
            found.into_iter().map(|(key, _)| String::from_utf8(key).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(keys(KeyRange::new(b"b", b"c")), ["b", "ba"]);
        assert_eq!(keys(KeyRange::new(b"aa", b"bz")), ["b", "ba"]);
        assert_eq!(keys(KeyRange::starting_at(b"ba")), ["ba", "c", "d"]);
        assert_eq!(keys(KeyRange::new(b"", b"b")), ["a"]);
        assert_eq!(keys(KeyRange::ALL).len(), 5);
        assert!(keys(KeyRange::new(b"b", b"b")).is_empty());
        assert!(keys(KeyRange::new(b"c", b"b")).is_empty());
        assert!(keys(KeyRange::new(b"a", b"")).is_empty());
        assert!(keys(KeyRange::starting_at(b"e")).is_empty());
    }
}

fn a_scan_ends_where_its_visitor_breaks(store: Store) {
    for key in ["a", "b", "c"] {
        store.put(KEY, key, "");
    }
    let mut seen = 0;
    let mut stop_at_second = |_: &[u8], _: &[u8]| {
        seen += 1;
        if seen == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    store.engine.snapshot().unwrap().scan(KEY, KeyRange::ALL, &mut stop_at_second).unwrap();
    assert_eq!(seen, 2);
}

fn a_scan_is_longer_than_any_chunk(store: Store) {
    let count = 1_500u32;
    store.commit(|txn| {
        for number in 0..count {
            txn.put(KEY, &number.to_be_bytes(), b"old").unwrap();
        }
    });
    let snapshot = store.engine.snapshot().unwrap();
    store.commit(|txn| {
        for number in 0..count {
            match number % 3 {
                0 => txn.delete(KEY, &number.to_be_bytes()).unwrap(),
                1 => txn.put(KEY, &number.to_be_bytes(), b"new").unwrap(),
                _ => txn.put(KEY, &[&number.to_be_bytes()[..], b"+"].concat(), b"").unwrap(),
            }
        }
    });
    let old = records(&*snapshot, KEY, KeyRange::ALL);
    assert_eq!(old.len(), count as usize);
    assert!(old.iter().all(|(_, value)| value == b"old"));
    let new = records(&*store.engine.snapshot().unwrap(), KEY, KeyRange::ALL);
    assert_eq!(new.len(), 1_500);
    assert!(new.is_sorted());
}

fn buckets_do_not_mix(store: Store) {
    store.commit(|txn| {
        for bucket in Bucket::ALL {
            txn.put(bucket, b"same", bucket.name().as_bytes()).unwrap();
            txn.put(bucket, &[0], b"low key").unwrap();
            txn.put(bucket, &[0xff; 9], b"high key").unwrap();
        }
    });
    let snapshot = store.engine.snapshot().unwrap();
    for bucket in Bucket::ALL {
        assert_eq!(snapshot.get(bucket, b"same").unwrap().unwrap(), bucket.name());
        assert_eq!(records(&*snapshot, bucket, KeyRange::ALL).len(), 3);
        assert_eq!(snapshot.last_key(bucket).unwrap().unwrap()[..], [0xff; 9]);
    }
}

fn any_bytes_are_keys_and_values(store: Store) {
    let long_key = vec![0xee; 3_000];
    let long_value = vec![0xaa; 3 << 20];
    store.commit(|txn| {
        txn.put(KEY, &[0], &[0, 255, 0]).unwrap();
        txn.put(KEY, &[0, 0], b"").unwrap();
        txn.put(KEY, &long_key, &long_value).unwrap();
    });
    let store = if store.kind.is_durable() { store.reopened() } else { store };
    let snapshot = store.engine.snapshot().unwrap();
    assert_eq!(snapshot.get(KEY, &[0, 0]).unwrap().unwrap(), "");
    assert_eq!(snapshot.get(KEY, b"").unwrap(), None);
    assert_eq!(snapshot.get(KEY, &[0]).unwrap().unwrap()[..], [0, 255, 0]);
    assert_eq!(snapshot.get(KEY, &long_key).unwrap().unwrap(), long_value);
    assert_eq!(snapshot.get(KEY, &[0, 0, 0]).unwrap(), None);
}

fn the_last_key_is_found(store: Store) {
    let last = |store: &Store| store.engine.snapshot().unwrap().last_key(KEY).unwrap();
    assert_eq!(last(&store), None);
    store.put(Bucket::Lease, "z", "the bucket behind");
    store.put(Bucket::Cluster, "z", "the bucket before");
    assert_eq!(last(&store), None);
    store.put(KEY, "a", "");
    store.put(KEY, "b", "");
    assert_eq!(last(&store).unwrap(), "b");
    store.delete(KEY, "b");
    assert_eq!(last(&store).unwrap(), "a");
    let mut txn = store.engine.begin_write().unwrap();
    txn.delete(KEY, b"a").unwrap();
    assert_eq!(txn.last_key(KEY).unwrap(), None);
}

fn put_all_puts_all(store: Store) {
    let pairs = [("a", "1"), ("c", "3"), ("b", "2"), ("a", "4")];
    store.commit(|txn| {
        let mut bytes = pairs.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes()));
        txn.put_all(KEY, &mut bytes).unwrap();
    });
    assert_eq!(shown(&*store.engine.snapshot().unwrap(), KEY), "a=4 b=2 c=3");
    assert_eq!(store.engine.size_in_use(), 6);
    // `d` and `e` are after all existing keys. The second `e` and `a` exist already. `f` is again
    // after all existing keys.
    let pairs = [("d", "5"), ("e", "6"), ("e", "77"), ("a", ""), ("f", "8")];
    store.commit(|txn| {
        let mut bytes = pairs.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes()));
        txn.put_all(KEY, &mut bytes).unwrap();
        txn.put_all(KEY, &mut std::iter::empty()).unwrap();
        assert_eq!(shown(txn, KEY), "a= b=2 c=3 d=5 e=77 f=8");
    });
    assert_eq!(shown(&*store.engine.snapshot().unwrap(), KEY), "a= b=2 c=3 d=5 e=77 f=8");
    assert_eq!(store.engine.size_in_use(), 12);
}

fn one_defragmentation_at_a_time(store: Store) {
    let first = store.engine.begin_defragment().unwrap();
    assert!(matches!(store.engine.begin_defragment(), Err(Error::DefragmentBusy)));
    drop(first);
    let second = store.engine.begin_defragment().unwrap();
    second.finish().unwrap();
    drop(store.engine.begin_defragment().unwrap());
}

fn a_defragmentation_carries_over_what_commits_meanwhile(store: Store) {
    for number in 0..30 {
        store.put(KEY, &format!("k{number:02}"), "old");
    }
    let mut defragment = store.engine.begin_defragment().unwrap();
    let mut done = false;
    for number in 0..30 {
        store.put(KEY, &format!("k{number:02}"), "new");
        store.put(META, "n", &number.to_string());
        store.delete(KEY, &format!("k{:02}", 29 - number));
        done = defragment.step(2).unwrap();
    }
    while !done {
        done = defragment.step(2).unwrap();
    }
    store.put(KEY, "last", "minute");
    defragment.finish().unwrap();
    let store = if store.kind.is_durable() { store.reopened() } else { store };
    let snapshot = store.engine.snapshot().unwrap();
    // Each iteration has put one key and deleted another: the put keys rise, and the deleted keys
    // fall. So the last change of a key in the lower half was a delete, and in the upper half a
    // put.
    let upper: Vec<_> = (15..30).map(|number| format!("k{number:02}=new")).collect();
    assert_eq!(shown(&*snapshot, KEY), format!("{} last=minute", upper.join(" ")));
    assert_eq!(shown(&*snapshot, META), "n=29");
    assert_eq!(store.engine.size_in_use(), live_bytes(&*snapshot));
}

fn live_bytes(reader: &dyn Read) -> u64 {
    let all = Bucket::ALL.into_iter().flat_map(|bucket| records(reader, bucket, KeyRange::ALL));
    all.map(|(key, value)| (key.len() + value.len()) as u64).sum()
}

fn a_defragmentation_may_begin_beside_an_open_transaction(store: Store) {
    store.put(KEY, "a", "1");
    let mut txn = store.engine.begin_write().unwrap();
    txn.put(KEY, b"b", b"2").unwrap();
    let mut defragment = store.engine.begin_defragment().unwrap();
    let before = defragment.step(100).unwrap();
    assert!(!before || !store.kind.is_durable(), "it cannot know yet what the writer changes");
    txn.put(KEY, b"a", b"3").unwrap();
    txn.commit().unwrap();
    while !defragment.step(100).unwrap() {}
    defragment.finish().unwrap();
    assert_eq!(shown(&*store.engine.snapshot().unwrap(), KEY), "a=3 b=2");
}

fn a_defragmentation_does_not_finish_beside_an_open_transaction(store: Store) {
    store.put(KEY, "a", "1");
    let defragment = store.engine.begin_defragment().unwrap();
    let txn = store.engine.begin_write().unwrap();
    assert!(matches!(defragment.finish(), Err(Error::WriterBusy)));
    drop(txn);
    store.put(KEY, "b", "2");
    assert_eq!(shown(&*store.engine.snapshot().unwrap(), KEY), "a=1 b=2");
}

fn a_defragmentation_that_is_dropped_leaves_the_store_as_it_was(store: Store) {
    store.put(KEY, "a", "1");
    let names = |store: &Store| {
        let entries = std::fs::read_dir(store.dir.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names(&store);
    let mut defragment = store.engine.begin_defragment().unwrap();
    defragment.step(100).unwrap();
    drop(defragment);
    assert_eq!(names(&store), before);
    store.put(KEY, "b", "2");
    assert_eq!(shown(&*store.engine.snapshot().unwrap(), KEY), "a=1 b=2");
}
