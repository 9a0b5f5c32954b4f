//! From one hub to another: a store is replaced, its watchers stay.
//!
//! # The problem
//!
//! A member that was away for long gets a copy of another member's store in place of its own. Its
//! clients need not know: the copy is the same history, only longer, and perhaps compacted further.
//! A watcher of the old store must hear of what lies between the two, once and in order, though no
//! writer here has ever published it.
//!
//! # The idea
//!
//! It is a watcher that is behind. All that there is to know of it is which revision it is to be told
//! next:
//!
//! ```text
//!   in the old hub                               next             in the new one
//!   in step, handed on up to R                   R + 1            behind, unless nothing is newer
//!   in step, waits for a start S above R         S                the same
//!   behind, has read up to R                     R + 1            the same
//!   behind, somebody reads for it                where he began   the same; what he reads is dropped
//!   a victim (old eras)                          what it keeps    the same; what it keeps is dropped
//! ```
//!
//! What was told before stays in the outbox, which moves with it, as do the numbers of its watchers.
//! If what it is to be told next is compacted in the copy, it ends as any watcher that a compaction
//! overtakes.
//!
//! A question for progress that waits for its answer is forgotten: clients ask again.
//!
//! # Who holds what
//!
//! Streams call their hub through a [`CurrentHub`]. A call of theirs holds the lock `watchHub`, shared,
//! for as long as it takes; the move holds it alone, so that no stream makes a watcher in a watchable store that is
//! left. A step of delivering or of catching up does not hold it, for it may take long: one that is
//! under way in the old watchable store finds no watcher there any more.

use std::sync::Arc;

use clearlane_contention::{Registry, RwLock};

use super::response::{Response, WatchId, WatchIdAllocator, WatchRequest};
use super::stream::WatchChannel;
use super::{StreamConsumer, WatchMetrics, WatchableStore};
use crate::error::Result;
use crate::store::Change;

/// The hub of the store that answers now.
#[derive(Debug)]
pub struct CurrentHub {
    store: RwLock<Arc<dyn WatchableStore>>,
}

impl CurrentHub {
    /// At first it is this one.
    pub fn new(hub: Arc<dyn WatchableStore>, locks: &Registry) -> CurrentHub {
        CurrentHub { store: RwLock::new(locks, "watchHub", hub) }
    }

    /// From here on it is that of another store. Nothing that the other store's writers do may be
    /// published before.
    pub fn replace(&self, with: Arc<dyn WatchableStore>) {
        let mut hub = self.store.write();
        with.attach_streams(hub.detach_streams());
        *hub = with;
    }

    fn current(&self) -> Arc<dyn WatchableStore> {
        Arc::clone(&self.store.read())
    }
}

impl WatchableStore for CurrentHub {
    fn open_stream(&self, takers: Arc<dyn StreamConsumer>, name: u64) -> Arc<WatchChannel> {
        self.store.read().open_stream(takers, name)
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

/// A stream on its way from one hub to another.
#[derive(Debug)]
pub struct DetachedStream {
    pub(super) channel: Arc<WatchChannel>,
    pub(super) watch_ids: WatchIdAllocator,
    pub(super) watchers: Vec<DetachedWatcher>,
}

/// One of its watchers.
#[derive(Debug)]
pub(super) struct DetachedWatcher {
    pub(super) id: WatchId,
    pub(super) request: WatchRequest,
    /// What it is to be told next.
    pub(super) next_revision: i64,
    pub(super) quiet: bool,
}
