//! A store is replaced by a newer one, and its watchers move, in every era.
//!
//! Two stores get the same transactions, like the stores of two members, and one of the stores gets
//! further transactions. Whether a watcher is synced at the move must not matter. Each watcher
//! receives everything once and in order, or a response that its next revision is compacted.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_backend::{Config, Era, PreCommit};
use clearlane_contention::Registry;
use clearlane_engine::MemoryEngine;
use clearlane_mvcc::watch::{
    CurrentWatchableStore, Response, ResponseKind, WakeSet, WatchConfig, WatchId, WatchMetrics,
    WatchRequest, WatchStream, WatchedKeys,
};
use clearlane_mvcc::{Change, Changes, StoreConfig, WatchableKv, open};

/// The current store, and the watchable store through which streams reach it.
struct World {
    era: Era,
    config: WatchConfig,
    store: Arc<dyn WatchableKv<()>>,
    watchable_store: Arc<CurrentWatchableStore>,
}

fn empty(era: Era) -> Arc<dyn WatchableKv<()>> {
    let engine = Arc::new(MemoryEngine::new());
    let store_config = StoreConfig::new(engine, Config::default(), PreCommit::none(), ());
    Arc::from(open(era, store_config).unwrap().0)
}

fn put(store: &dyn WatchableKv<()>, revision: i64) -> Changes {
    let mut txn = store.begin_write().unwrap();
    txn.put(b"k", revision.to_string().as_bytes(), 0).unwrap();
    let ended = txn.end(()).unwrap();
    assert_eq!(ended.revision, revision);
    ended.changes
}

impl World {
    fn new(era: Era, config: WatchConfig) -> World {
        let (store, locks) = (empty(era), Registry::new());
        let watchable_store =
            Arc::clone(&store).open_watchable_store(config, &locks, Box::new(|_| {}));
        World {
            era,
            config,
            store,
            watchable_store: Arc::new(CurrentWatchableStore::new(watchable_store, &locks)),
        }
    }

    fn stream(&self) -> WatchStream {
        WatchStream::open(Arc::clone(&self.watchable_store), WakeSet::new(|| {}))
    }

    fn put(&self, revisions: RangeInclusive<i64>) {
        for revision in revisions {
            self.watchable_store.get().publish_all(vec![(revision, put(&*self.store, revision))]);
        }
    }

    fn settle(&self) {
        while self.watchable_store.get().deliver().unwrap() {}
        while self.watchable_store.get().sync_watchers().unwrap() {}
    }

    /// Replaces the store with a copy at revision `up_to`. If `compacted` is given, the copy is
    /// compacted at this revision.
    fn replace(&mut self, up_to: i64, compacted: Option<i64>) {
        self.store = empty(self.era);
        (2..=up_to).for_each(|revision| drop(put(&*self.store, revision)));
        if let Some(at) = compacted {
            let (mut job, _) = self.store.compact(at, ()).unwrap();
            while !self.store.compact_step(&mut job, 100).unwrap() {}
        }
        let (store, locks) = (Arc::clone(&self.store), Registry::new());
        self.watchable_store.replace(store.open_watchable_store(
            self.config,
            &locks,
            Box::new(|_| {}),
        ));
    }
}

fn watcher(id: WatchId, start: i64) -> WatchRequest {
    let keys = WatchedKeys::Single(Bytes::from_static(b"k"));
    WatchRequest { id, start_revision: start, ..WatchRequest::new(keys) }
}

/// Returns the revisions that a watcher received. If a compaction ended the watcher, the compact
/// revision follows as a negative number.
fn delivered_revisions(responses: &[Response], id: WatchId) -> Vec<i64> {
    let mut delivered = Vec::new();
    for response in responses.iter().filter(|response| response.id == id) {
        match &response.kind {
            ResponseKind::Events { events, .. } => {
                delivered.extend(events.iter().map(|event| match &event.change {
                    Change::Put(record) | Change::Delete(record) => record.mod_revision,
                }));
            }
            ResponseKind::Compacted(at) => delivered.push(-at),
            _ => {}
        }
    }
    delivered
}

#[test]
fn each_watcher_gets_everything_once_from_any_sync_state() {
    for era in Era::DISTINCT_STORES {
        let mut world = World::new(era, WatchConfig::default());
        let stream = world.stream();
        world.put(2..=10);
        // Watcher 1 is synced. Watcher 2 is unsynced and has not read. Watcher 3 starts at a
        // revision that only the copy has, and watcher 4 at an even later revision.
        stream.watch(watcher(1, 0));
        world.settle();
        world.put(11..=12);
        world.settle();
        stream.watch(watcher(2, 5));
        stream.watch(watcher(3, 15));
        stream.watch(watcher(4, 22));
        // This revision is published and not delivered. (In the old eras the writer has delivered
        // it.)
        world.put(13..=13);
        world.replace(20, None);
        let figures = world.watchable_store.get().metrics();
        assert_eq!((figures.streams, figures.watchers), (1, 4), "{era:?}");
        // Writers of the new store do not wait until a watcher is synced.
        world.put(21..=23);
        world.settle();
        world.put(24..=24);
        world.settle();
        let responses = stream.take_responses(usize::MAX).unwrap();
        for (id, from) in [(1, 11), (2, 5), (3, 15), (4, 22)] {
            let all: Vec<i64> = (from..=24).collect();
            assert_eq!(delivered_revisions(&responses, id), all, "{era:?}, watcher {id}");
        }
        stream.watch(watcher(0, 0));
        let created = stream.take_responses(usize::MAX).unwrap();
        assert_eq!((created[0].id, &created[0].kind), (0, &ResponseKind::Created), "{era:?}");
        drop(stream);
        assert_eq!(world.watchable_store.get().metrics(), WatchMetrics::default(), "{era:?}");
    }
}

/// The channel is full before and after the move. The new store supplies the events for which there
/// was no capacity.
#[test]
fn a_full_channel_moves_with_its_watcher() {
    for era in Era::DISTINCT_STORES {
        let config = WatchConfig { stream_bytes_max: 2000, ..WatchConfig::default() };
        let mut world = World::new(era, config);
        let stream = world.stream();
        stream.watch(watcher(1, 0));
        world.put(2..=1500);
        world.settle();
        assert_eq!(world.watchable_store.get().metrics().unsynced, 1, "{era:?}");
        world.replace(1600, None);
        world.settle();
        let mut responses = Vec::new();
        loop {
            let taken = stream.take_responses(usize::MAX).unwrap();
            if taken.is_empty() {
                break;
            }
            responses.extend(taken);
            world.settle();
        }
        assert_eq!(delivered_revisions(&responses, 1), (2..=1600).collect::<Vec<_>>(), "{era:?}");
        assert_eq!(world.watchable_store.get().metrics().unsynced, 0, "{era:?}");
    }
}

#[test]
fn a_watcher_whose_next_revision_the_copy_has_compacted_is_ended() {
    for era in Era::DISTINCT_STORES {
        let mut world = World::new(era, WatchConfig::default());
        let stream = world.stream();
        stream.watch(watcher(1, 0));
        world.put(2..=5);
        world.settle();
        stream.watch(watcher(2, 10));
        world.replace(20, Some(10));
        world.settle();
        let responses = stream.take_responses(usize::MAX).unwrap();
        assert_eq!(delivered_revisions(&responses, 1), [2, 3, 4, 5, -10], "{era:?}");
        assert_eq!(delivered_revisions(&responses, 2), (10..=20).collect::<Vec<_>>(), "{era:?}");
        assert_eq!(world.watchable_store.get().metrics().watchers, 1, "{era:?}");
    }
}
