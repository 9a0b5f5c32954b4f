//! The watchable store that answers now: the one place where a stream finds it, also after a raft
//! snapshot has replaced the store.
//!
//! A call of a stream holds the lock `watchHub` shared for as long as it takes; the replacement
//! holds it exclusively, so that no stream makes a watcher in a watchable store that was left. A
//! step of delivery or synchronising does not hold it: one that is under way in the old watchable
//! store finds no watcher there any more.

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

    /// From here on it is that of another store. Nothing that the other store's writers do may be
    /// published before.
    pub fn replace(&self, with: Arc<dyn WatchableStore>) {
        let mut current = self.store.write();
        with.attach_streams(current.detach_streams());
        *current = with;
    }

    /// For one call of a stream. No other store takes over before this is dropped.
    pub fn read(&self) -> RwLockReadGuard<'_, Arc<dyn WatchableStore>> {
        self.store.read()
    }

    /// For a step that does not keep another store from taking over.
    pub fn get(&self) -> Arc<dyn WatchableStore> {
        Arc::clone(&self.store.read())
    }
}
