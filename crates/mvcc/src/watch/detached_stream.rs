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

use std::sync::Arc;

use crate::watch::channel::WatchChannel;
use crate::watch::response::{WatchId, WatchIdAllocator, WatchRequest};

/// A stream on its way from one hub to another.
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
    /// What it is to be told next.
    pub(crate) next_revision: i64,
    pub(crate) quiet: bool,
}
