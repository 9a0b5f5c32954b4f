//! The watchable store that answers now: the one place where a stream finds it, also after a raft
//! snapshot has replaced the store.
//!
//! A call of a stream holds the lock `watchHub` shared for as long as it takes; the replacement
//! holds it exclusively, so that no stream makes a watcher in a watchable store that was left. A
//! step of delivery or synchronising does not hold it: one that is under way in the old watchable
//! store finds no watcher there any more.

use std::sync::Arc;

use clearlane_contention::{Registry, RwLock};

use crate::error::Result;
use crate::interface::Change;
use crate::watch::channel::{StreamConsumer, WatchChannel};
use crate::watch::detached_stream::DetachedStream;
use crate::watch::interface::{WatchMetrics, WatchableStore};
use crate::watch::response::{Response, WatchId, WatchRequest};

/// The watchable store that answers now.
#[derive(Debug)]
pub struct CurrentHub {
    store: RwLock<Arc<dyn WatchableStore>>,
}

impl CurrentHub {
    /// At first it is this one.
    pub fn new(current: Arc<dyn WatchableStore>, locks: &Registry) -> CurrentHub {
        CurrentHub { store: RwLock::new(locks, "watchHub", current) }
    }

    /// From here on it is that of another store. Nothing that the other store's writers do may be
    /// published before.
    pub fn replace(&self, with: Arc<dyn WatchableStore>) {
        let mut current = self.store.write();
        with.attach_streams(current.detach_streams());
        *current = with;
    }

    fn current(&self) -> Arc<dyn WatchableStore> {
        Arc::clone(&self.store.read())
    }
}

impl WatchableStore for CurrentHub {
    fn open_stream(&self, consumer: Arc<dyn StreamConsumer>, name: u64) -> Arc<WatchChannel> {
        self.store.read().open_stream(consumer, name)
    }

    fn watch(&self, stream: &WatchChannel, request: WatchRequest) {
        self.store.read().watch(stream, request);
    }

    fn cancel(&self, stream: &WatchChannel, id: WatchId) {
        self.store.read().cancel(stream, id);
    }

    fn request_progress(&self, stream: &WatchChannel) {
        self.store.read().request_progress(stream);
    }

    fn notify_progress(&self, stream: &WatchChannel) {
        self.store.read().notify_progress(stream);
    }

    fn resume_stream(&self, stream: &WatchChannel) {
        self.store.read().resume_stream(stream);
    }

    fn add_previous_records(
        &self,
        stream: &WatchChannel,
        responses: &mut [Response],
    ) -> Result<()> {
        self.current().add_previous_records(stream, responses)
    }

    fn close_stream(&self, stream: &WatchChannel) {
        self.store.read().close_stream(stream);
    }

    fn publish_all(&self, transactions: Vec<(i64, Vec<Change>)>) {
        self.store.read().publish_all(transactions);
    }

    fn deliver(&self) -> Result<bool> {
        self.current().deliver()
    }

    fn sync_watchers(&self) -> Result<bool> {
        self.current().sync_watchers()
    }

    fn detach_streams(&self) -> Vec<DetachedStream> {
        self.store.read().detach_streams()
    }

    fn attach_streams(&self, streams: Vec<DetachedStream>) {
        self.store.read().attach_streams(streams);
    }

    fn metrics(&self) -> WatchMetrics {
        self.store.read().metrics()
    }
}
