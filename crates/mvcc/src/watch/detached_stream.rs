//! A stream on its way from one watchable store to another: a store is replaced, its watchers stay.
//!
//! The member has received a raft snapshot in place of its store: the same history, only longer,
//! and perhaps compacted further. All that must be known of a watcher is which revision is to be
//! delivered next; in the new store it is an unsynced watcher, or a synced one if nothing is newer.
//! What was delivered stays in the channel, which moves with the stream, as do the ids of its
//! watchers. If the next revision is compacted in the new store, the watcher ends as one that a
//! compaction overtakes. A request for progress that waits for its answer is forgotten: clients ask
//! again.
//!
//! Which revision comes next for each sync state is tabled in `docs/watch.md`.

use std::sync::Arc;

use crate::watch::channel::WatchChannel;
use crate::watch::response::{WatchId, WatchIdAllocator, WatchRequest};

/// A stream on its way from one watchable store to another.
#[derive(Debug)]
pub struct DetachedStream {
    pub(crate) channel: Arc<WatchChannel>,
    pub(crate) watch_ids: WatchIdAllocator,
    pub(crate) watchers: Vec<DetachedWatcher>,
}

/// One of its watchers.
#[derive(Debug)]
pub(crate) struct DetachedWatcher {
    pub(crate) id: WatchId,
    pub(crate) request: WatchRequest,
    /// The next revision to deliver.
    pub(crate) next_revision: i64,
    pub(crate) quiet: bool,
}
