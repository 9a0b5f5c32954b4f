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
//! for as long as it takes; the move holds it alone, so that nobody makes a watcher in a hub that is
//! left. A step of delivering or of catching up does not hold it, for it may take long: one that is
//! under way in the old hub finds nobody there any more.

use std::sync::Arc;

use clearlane_locks::{Registry, RwLock};

use super::response::{Numbers, Response, WatchId, WatchRequest};
use super::stream::Outbox;
use super::{Takers, WatchFigures, WatchHub};
use crate::error::Result;
use crate::store::Change;

/// The hub of the store that answers now.
#[derive(Debug)]
pub struct CurrentHub {
    hub: RwLock<Arc<dyn WatchHub>>,
}

impl CurrentHub {
    /// At first it is this one.
    pub fn new(hub: Arc<dyn WatchHub>, locks: &Registry) -> CurrentHub {
        CurrentHub { hub: RwLock::new(locks, "watchHub", hub) }
    }

    /// From here on it is that of another store. Nothing that the other store's writers do may be
    /// published before.
    pub fn replace(&self, with: Arc<dyn WatchHub>) {
        let mut hub = self.hub.write();
        with.adopt(hub.leave());
        *hub = with;
    }

    fn now(&self) -> Arc<dyn WatchHub> {
        Arc::clone(&self.hub.read())
    }
}

impl WatchHub for CurrentHub {
    fn open(&self, takers: Arc<dyn Takers>, name: u64) -> Arc<Outbox> {
        self.hub.read().open(takers, name)
    }

    fn watch(&self, stream: &Outbox, request: WatchRequest) {
        self.hub.read().watch(stream, request);
    }

    fn cancel(&self, stream: &Outbox, id: WatchId) {
        self.hub.read().cancel(stream, id);
    }

    fn request_progress(&self, stream: &Outbox) {
        self.hub.read().request_progress(stream);
    }

    fn interval_passed(&self, stream: &Outbox) {
        self.hub.read().interval_passed(stream);
    }

    fn drained(&self, stream: &Outbox) {
        self.hub.read().drained(stream);
    }

    fn complete(&self, stream: &Outbox, responses: &mut [Response]) -> Result<()> {
        self.now().complete(stream, responses)
    }

    fn close(&self, stream: &Outbox) {
        self.hub.read().close(stream);
    }

    fn publish_all(&self, transactions: Vec<(i64, Vec<Change>)>) {
        self.hub.read().publish_all(transactions);
    }

    fn deliver(&self) -> Result<bool> {
        self.now().deliver()
    }

    fn catch_up(&self) -> Result<bool> {
        self.now().catch_up()
    }

    fn leave(&self) -> Vec<MovingStream> {
        self.hub.read().leave()
    }

    fn adopt(&self, streams: Vec<MovingStream>) {
        self.hub.read().adopt(streams);
    }

    fn figures(&self) -> WatchFigures {
        self.hub.read().figures()
    }
}

/// A stream on its way from one hub to another.
#[derive(Debug)]
pub struct MovingStream {
    pub(super) outbox: Arc<Outbox>,
    pub(super) numbers: Numbers,
    pub(super) watchers: Vec<MovingWatcher>,
}

/// One of its watchers.
#[derive(Debug)]
pub(super) struct MovingWatcher {
    pub(super) id: WatchId,
    pub(super) request: WatchRequest,
    /// What it is to be told next.
    pub(super) next: i64,
    pub(super) quiet: bool,
}
