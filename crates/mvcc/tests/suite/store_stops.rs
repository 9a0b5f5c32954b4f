//! Tests that a store stops after a failure: readers see no part of an incomplete change, and
//! nothing is written after the failure.

use std::sync::Arc;

use clearlane_backend::{Config, Era, PreCommit};
use clearlane_engine::{Bucket, Engine, KeyRange, MemoryEngine};
use clearlane_mvcc::{Error, RangeOptions, RecoveryInfo, StoreConfig, WatchableKv, open};

type Opening = Result<(Box<dyn WatchableKv<()>>, RecoveryInfo), Error>;

fn open_on(era: Era, engine: &Arc<dyn Engine>) -> Opening {
    open(era, StoreConfig::new(Arc::clone(engine), Config::default(), PreCommit::none(), ()))
}

#[test]
fn a_write_transaction_that_is_dropped_ends_all_writing() {
    for era in Era::DISTINCT_STORES {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let store = open_on(era, &engine).unwrap().0;
        for _ in 0..2 {
            let mut txn = store.begin_write().unwrap();
            txn.put(b"a", b"whole", 0).unwrap();
            drop(txn.end(()).unwrap());
        }
        let mut txn = store.begin_write().unwrap();
        txn.put(b"a", b"half", 0).unwrap();
        txn.put(b"b", b"half", 0).unwrap();
        drop(txn);

        let abandoned =
            |error: Error| matches!(error, Error::Backend(clearlane_backend::Error::Abandoned));
        assert!(store.begin_write().map(drop).is_err_and(abandoned), "{era:?}");
        assert!(store.compact(2, ()).map(drop).is_err_and(abandoned), "{era:?}");
        let read = store.begin_read();
        assert_eq!((read.revision(), read.compact_revision()), (3, -1), "{era:?}");
        let found = read.range(KeyRange::ALL, RangeOptions::default());
        if era == Era::V3_1 {
            // The read uses the engine's transaction, which is lost.
            assert!(found.is_err_and(abandoned));
        } else {
            let found = found.unwrap();
            assert_eq!((found.count, &*found.records[0].value), (1, &b"whole"[..]), "{era:?}");
        }
    }
}

#[test]
fn an_empty_key_is_refused_and_stops_nothing() {
    for era in Era::DISTINCT_STORES {
        let store = open_on(era, &(Arc::new(MemoryEngine::new()) as Arc<dyn Engine>)).unwrap().0;
        let mut txn = store.begin_write().unwrap();
        let refused = txn.put(b"", b"1", 0).unwrap_err();
        assert_eq!(refused.to_string(), "etcdserver: key is not provided");
        assert_eq!(txn.end(()).unwrap().revision, 1, "{era:?}: nothing has changed");
        let mut txn = store.begin_write().unwrap();
        txn.put(b"a", b"1", 0).unwrap();
        txn.put(b"", b"2", 0).unwrap_err();
        txn.put(b"b", b"2", 0).unwrap();
        let ended = txn.end(()).unwrap();
        assert_eq!((ended.revision, ended.changes.len()), (2, 2), "{era:?}");
        assert_eq!(
            store.begin_read().range(KeyRange::ALL, RangeOptions::default()).unwrap().count,
            2
        );
    }
}

#[test]
fn damage_is_named_when_the_store_is_opened() {
    for era in Era::DISTINCT_STORES {
        for (bucket, key, words) in [
            (Bucket::Meta, &b"scheduledCompactRev"[..], "scheduledCompactRev is too short"),
            (Bucket::Key, b"no revision", "not a revision key"),
        ] {
            let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
            let mut txn = engine.begin_write().unwrap();
            txn.put(bucket, key, b"short").unwrap();
            txn.commit().unwrap();
            let error = open_on(era, &engine).unwrap_err().to_string();
            assert!(error.contains(words), "{era:?}: {error}");
        }
    }
}
