//! Tests the values that other crates store in their buckets. They must become visible and durable
//! together with the records of the same transaction.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_backend::Era;
use clearlane_backend::{Config, PreCommit};
use clearlane_engine::{Bucket, KeyRange, MemoryEngine};
use clearlane_mvcc::{RangeOptions, Store, StoreConfig, open};

fn open_on(era: Era, engine: &Arc<MemoryEngine>) -> Box<dyn Store<()>> {
    let engine = Arc::<MemoryEngine>::clone(engine);
    open(era, StoreConfig::new(engine, Config::default(), PreCommit::none(), ())).unwrap().0
}

fn names(store: &dyn Store<()>, bucket: Bucket) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let visit = &mut |key: &[u8], _: clearlane_backend::Value<'_>| {
        names.push(key.to_vec());
        ControlFlow::Continue(())
    };
    store.begin_read().scan(bucket, visit).unwrap();
    names
}

fn write(store: &dyn Store<()>) {
    let mut txn = store.begin_write().unwrap();
    txn.set(Bucket::Members, b"7", Bytes::from_static(b"seven")).unwrap();
    txn.set(Bucket::Members, b"8", Bytes::from_static(b"eight")).unwrap();
    txn.put(b"a", b"1", 0).unwrap();
    assert_eq!(txn.get(Bucket::Members, b"7").unwrap().unwrap(), &b"seven"[..]);
    txn.unset(Bucket::Members, b"8").unwrap();
    txn.unset(Bucket::Members, b"9").unwrap();
    assert_eq!(txn.get(Bucket::Members, b"8").unwrap(), None);
    let mut seen = 0;
    let count = &mut |_: &[u8], _: clearlane_backend::Value<'_>| {
        seen += 1;
        ControlFlow::Continue(())
    };
    txn.scan(Bucket::Members, count).unwrap();
    assert_eq!(seen, 1);
    assert_eq!(txn.end(()).unwrap().revision, 2);
}

#[test]
fn all_of_it_or_nothing() {
    for era in Era::DISTINCT_STORES {
        let engine = Arc::new(MemoryEngine::new());
        let store = open_on(era, &engine);
        assert_eq!(names(&*store, Bucket::Members), [&b""[..]; 0], "{era:?}");
        write(&*store);
        assert_eq!(names(&*store, Bucket::Members), [b"7"], "{era:?}");
        drop(store);
        let store = open_on(era, &engine);
        let committed = store.begin_read().get(Bucket::Members, b"7").unwrap().is_some();
        let found = store.begin_read().range(KeyRange::ALL, RangeOptions::default()).unwrap();
        assert_eq!(committed, found.count == 1, "{era:?}: parted by a crash");
        write_again(&*store);
        store.commit().unwrap();
        drop(store);
        let store = open_on(era, &engine);
        assert_eq!(names(&*store, Bucket::Alarm), [b"raised"], "{era:?}");
    }
}

/// Runs a transaction that changes only another bucket. Checks that the transaction does not use a
/// revision.
fn write_again(store: &dyn Store<()>) {
    let before = store.begin_read().revision();
    let mut txn = store.begin_write().unwrap();
    txn.set(Bucket::Alarm, b"raised", Bytes::new()).unwrap();
    let ended = txn.end(()).unwrap();
    assert_eq!((ended.revision, ended.changes.len()), (before, 0));
}

#[test]
#[should_panic(expected = "key belongs to the store")]
fn records_are_the_stores() {
    let store = open_on(clearlane_backend::Era::Clearlane, &Arc::default());
    store.begin_write().unwrap().set(Bucket::Key, b"a", Bytes::new()).unwrap();
}
