//! Tests that every store notifies the lessor before a reader can see the new state.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use bytes::Bytes;
use clearlane_backend::{Config, Era, PreCommit};
use clearlane_engine::{KeyRange, MemoryEngine};
use clearlane_mvcc::{KeyLeases, RangeOptions, Store, StoreConfig, WatchableKv, open};

/// Records each notification, and the revision that a reader sees at that time.
#[derive(Debug, Default)]
struct RecordingLeases {
    store: OnceLock<Weak<dyn Store<()>>>,
    attachments: Mutex<Vec<(Bytes, i64, i64)>>,
}

impl KeyLeases for RecordingLeases {
    fn attach(&self, key: &Bytes, lease: i64) {
        // In 3.1 a read waits for the writer, even on the writer's own thread. So no read is opened
        // here.
        let readable = |store: &Arc<dyn Store<()>>| store.era() != Era::V3_1;
        let store = self.store.get().and_then(Weak::upgrade).filter(readable);
        let revision = store.map(|store| store.begin_read().revision());
        self.attachments.lock().unwrap().push((key.clone(), lease, revision.unwrap_or(0)));
    }
}

fn attachments_of(era: Era) -> Vec<(Bytes, i64, i64)> {
    let (engine, noting) = (Arc::new(MemoryEngine::new()), Arc::new(RecordingLeases::default()));
    let leases: Arc<dyn KeyLeases> = Arc::<RecordingLeases>::clone(&noting);
    let store_config = StoreConfig::new(engine, Config::default(), PreCommit::none(), ());
    let opened = open(era, StoreConfig { leases, ..store_config }).unwrap();
    let store: Arc<dyn Store<()>> = Arc::<dyn WatchableKv<()>>::from(opened.0);
    noting.store.set(Arc::downgrade(&store)).unwrap();
    let mut txn = store.begin_write().unwrap();
    txn.put(b"b", b"", 7).unwrap();
    txn.put(b"a", b"", 0).unwrap();
    txn.range(KeyRange::ALL, RangeOptions::default()).unwrap();
    txn.put(b"c", b"", 9).unwrap();
    txn.delete_range(KeyRange::new(b"a", b"c")).unwrap();
    assert!(noting.attachments.lock().unwrap().is_empty(), "not before the end");
    let ended = txn.end(()).unwrap();
    assert_eq!((ended.revision, ended.changes.len()), (2, 5));
    drop(store.compact(2, ()).unwrap());
    noting.attachments.lock().unwrap().clone()
}

#[test]
fn each_change_in_its_order_before_it_can_be_read() {
    for era in Era::DISTINCT_STORES {
        let revision = if era == Era::V3_1 { 0 } else { 1 };
        let expected = [("b", 7), ("a", 0), ("c", 9), ("a", 0), ("b", 0)];
        let expected = expected.map(|(key, lease)| (Bytes::from(key), lease, revision));
        assert_eq!(attachments_of(era), expected, "{era:?}");
    }
}
