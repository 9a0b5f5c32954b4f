//! The watchable store that is currently in use. Streams find it only here, even after a raft
//! snapshot has replaced the store.
//!
//! A stream call holds `watchHub` shared. The replacement holds it exclusively, so no stream adds a
//! watcher to the old store. A step of the delivery thread or the sync thread, and the read of
//! previous records in the old eras, take the lock only to get the store, and run without it. If
//! such a step still runs in the old watchable store, it finds no watchers there.

use std::sync::Arc;

use clearlane_contention::{Registry, RwLock, RwLockReadGuard};

use crate::watch::interface::WatchableStore;

#[derive(Debug)]
pub struct CurrentWatchableStore {
    store: RwLock<Arc<dyn WatchableStore>>,
}

impl CurrentWatchableStore {
    pub fn new(current: Arc<dyn WatchableStore>, locks: &Registry) -> CurrentWatchableStore {
        CurrentWatchableStore { store: RwLock::new(locks, "watchHub", current) }
    }

    pub fn of(store: Arc<dyn WatchableStore>) -> Arc<CurrentWatchableStore> {
        Arc::new(CurrentWatchableStore::new(store, &Registry::default()))
    }

    /// Replaces the watchable store and moves all streams. Before this call, no change of the new
    /// store's writers may be published.
    pub fn replace(&self, with: Arc<dyn WatchableStore>) {
        let mut current = self.store.write();
        with.attach_streams(current.detach_streams());
        *current = with;
    }

    /// Returns the current store for one stream call. It is not replaced until the guard is
    /// dropped.
    pub fn read(&self) -> RwLockReadGuard<'_, Arc<dyn WatchableStore>> {
        self.store.read()
    }

    /// Returns the current store for a step that does not prevent a replacement.
    pub fn get(&self) -> Arc<dyn WatchableStore> {
        Arc::clone(&self.store.read())
    }
}
