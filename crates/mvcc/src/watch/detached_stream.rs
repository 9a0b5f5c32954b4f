//! A stream on its way from one watchable store to another: a store is replaced, its watchers stay.
//!
//! All that must be known of a watcher is which revision is to be delivered next (for each sync
//! state: `docs/watch.md`). In the new store it is an unsynced watcher, or a synced one if nothing
//! is newer; if the next revision is compacted there, it ends as one that a compaction overtakes.
//! The channel moves with the stream. A request for progress that has no answer yet is forgotten:
//! clients ask again.

use std::sync::Arc;

use crate::watch::channel::WatchChannel;
use crate::watch::response::{WatchId, WatchIdAllocator, WatchRequest};

#[derive(Debug)]
pub struct DetachedStream {
    pub(crate) channel: Arc<WatchChannel>,
    pub(crate) watch_ids: WatchIdAllocator,
    pub(crate) watchers: Vec<DetachedWatcher>,
}

#[derive(Debug)]
pub(crate) struct DetachedWatcher {
    pub(crate) id: WatchId,
    pub(crate) request: WatchRequest,
    pub(crate) next_revision: i64,
    pub(crate) quiet: bool,
}
