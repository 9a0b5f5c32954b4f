//! A stream that moves from one watchable store to another, because the store is replaced.
//!
//! A detached watcher only needs the next revision to deliver; `docs/watch.md` lists this revision
//! for each sync state. In the new store the watcher is unsynced, or synced if there are no newer
//! events. If its next revision is compacted there, it ends like any other watcher whose next
//! events were compacted. The channel moves with the stream. A progress request without a response
//! is dropped; clients repeat it.

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
