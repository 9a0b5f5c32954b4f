//! Tell me when it changes: watchers, from any revision on, each event once and in order.
//!
//! # The problem
//!
//! A watcher names some keys and a revision, and is told every change of these keys from that
//! revision on: nothing twice, nothing left out, in order, and whatever one transaction has changed
//! in one message. Thousands may watch the same key. Some clients read slowly or not at all, and
//! some ask for what happened a long time ago. None of them may slow down the writers.
//!
//! # Two kinds of watchers
//!
//! ```text
//!                        in step (etcd: synced)                behind (etcd: unsynced, victim)
//!   wants               what happens from now on              what happened since its revision
//!   is told by          the writer's changes, handed on       reading the store
//!   finds its events    by an interval tree, event by event   in the index, or scanning records
//!
//!        start ≤ now ──▶ behind ──── has caught up ────▶ in step ◀── start > now, or none
//!                           ▲                               │
//!                           └──── its outbox was full ◀─────┘
//! ```
//!
//! A watcher that is in step costs nothing but its place in the tree. When its client does not take
//! what it is told, its outbox fills up; then it is no longer handed anything, and the only thing
//! kept for it is the revision where it stopped. Once there is room, it catches up from the store,
//! like one that has just come with an old revision. So a slow watcher's memory is bounded: by its
//! stream's outbox, and a list of 4,096 revisions while it catches up.
//!
//! # The parts, in reading order
//!
//! * `response.rs`: requests, events, responses.
//! * `stream.rs`: one client's stream, and the outbox from which it takes responses.
//! * `audience.rs`, `interval_tree.rs`: which watchers watch this key?
//! * `catch_up.rs`: what did a watcher miss?
//! * `snapshot/`: the hub of the default era, which writers hand their changes to.
//! * `locked/`: the hub of the old eras, which is etcd's: one lock over all of it.
//! * `moving.rs`: from one hub to another, when a store is replaced.
//!
//! # Invariants, for every hub
//!
//! * What a stream is told of a watcher begins with `Created` and rises in revisions.
//! * All events of one revision for a watcher are in one response.
//! * `Progress` at revision R comes behind every event up to R.

mod watcher_group;
mod unsynced_reader;
mod interval_tree;
mod detached_stream;
pub(crate) mod locked;
mod response;
mod snapshot;
mod stream;

use std::fmt::Debug;
use std::sync::Arc;

use crate::error::Result;
use crate::store::Change;

pub use detached_stream::{CurrentHub, DetachedStream};
pub use response::{
    Event, INVALID_WATCH_ID, Response, ResponseKind, WatchError, WatchId, WatchRequest, fragments,
};
pub use snapshot::SnapshotWatchableStore;
pub use stream::{StreamConsumer, WatchChannel, WatchStream};
pub use watcher_group::WatchedKeys;

/// Wakes the thread that sleeps until there is something of this kind to do. Called with no lock held, and
/// perhaps for nothing.
pub type WorkSignal = Box<dyn Fn(WatchWork) + Send + Sync>;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchWork {
    /// [`WatchableStore::deliver`].
    Delivery,
    /// [`WatchableStore::sync_watchers`].
    SyncWatchers,
}

/// The bounds of watching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchConfig {
    /// So many bytes of responses a stream keeps for a client that does not take them. (A single
    /// response may be greater.)
    pub stream_bytes_max: usize,
    /// So many bytes of changes wait to be handed on before all watchers are sent to the store for
    /// them instead.
    pub queue_bytes_max: usize,
    /// So many records a step of catching up looks at.
    pub sync_step_records: usize,
    /// So many bytes of events a step of catching up tells.
    pub sync_step_bytes: usize,
}

impl Default for WatchConfig {
    fn default() -> WatchConfig {
        WatchConfig {
            stream_bytes_max: 4 << 20,
            queue_bytes_max: 16 << 20,
            sync_step_records: 1000,
            sync_step_bytes: 512 << 10,
        }
    }
}

/// How many watchers there are, and how they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchMetrics {
    /// Streams that are open.
    pub streams: usize,
    /// All watchers.
    pub watchers: usize,
    /// Those of them that are behind.
    pub unsynced: usize,
    /// Revisions that were published and not handed on yet.
    pub queued: usize,
}

/// Where watchers and changes meet. The server calls the upper half on the streams' behalf (see
/// [`WatchStream`]), a writer calls [`publish`](WatchableStore::publish), and the rest are steps
/// that the caller paces, on any threads.
pub trait WatchableStore: Send + Sync + Debug {
    /// Opens a stream.
    fn open_stream(&self, takers: Arc<dyn StreamConsumer>, name: u64) -> Arc<WatchChannel>;

    /// Makes a watcher in a stream.
    fn watch(&self, stream: &WatchChannel, request: WatchRequest);

    /// Ends a watcher, if there is such a one.
    fn cancel(&self, stream: &WatchChannel, id: WatchId);

    /// Tells a stream how far it is, if all its watchers are in step.
    fn request_progress(&self, stream: &WatchChannel);

    /// Tells the watchers who want it, and had nothing to tell since the last call.
    fn notify_progress(&self, stream: &WatchChannel);

    /// The client has taken so much that there is capacity for the watchers that were refused.
    fn resume_stream(&self, stream: &WatchChannel);

    /// Adds what is only looked up when a response is sent: in the old eras, records before. The
    /// default era has nothing to add.
    fn add_previous_records(
        &self,
        _stream: &WatchChannel,
        _responses: &mut [Response],
    ) -> Result<()> {
        Ok(())
    }

    /// Ends a stream and all its watchers.
    fn close_stream(&self, stream: &WatchChannel);

    /// Hands over what write transactions have changed, in the order of revisions, once readers
    /// can see it.
    fn publish_all(&self, transactions: Vec<(i64, Vec<Change>)>);

    /// Hands over what one has changed.
    fn publish(&self, revision: i64, changes: Vec<Change>) {
        self.publish_all(vec![(revision, changes)]);
    }

    /// Hands on some of what was published. Says whether there is more.
    fn deliver(&self) -> Result<bool>;

    /// Does a step of catching up for a watcher that is behind and has room. Says whether there
    /// may be more to do.
    fn sync_watchers(&self) -> Result<bool>;

    /// Takes all streams out, for the hub of a store that replaces this one. What was published and
    /// not handed on is forgotten.
    fn detach_streams(&self) -> Vec<DetachedStream>;

    /// Takes streams in that have left the hub of another store, before any other stream is
    /// opened. What they were told there was the same as it would have been here.
    fn attach_streams(&self, streams: Vec<DetachedStream>);

    /// The figures.
    fn metrics(&self) -> WatchMetrics;
}
