//! The interface of a watchable store, and its configuration.
//!
//! In etcd: `WatchableKV` and `WatchStream` of `mvcc`. See `docs/watch.md`.

use std::fmt::Debug;
use std::sync::Arc;

use clearlane_contention::Registry;

use crate::changes::Changes;
use crate::error::Result;
use crate::interface::Store;
use crate::watch::channel::{WakeSet, WatchChannel};
use crate::watch::detached_stream::DetachedStream;
use crate::watch::response::{Response, WatchId, WatchRequest};

/// A function that wakes the thread that sleeps until there is work of this kind. It is called
/// without any lock of the watchable store, but possibly with `watchHub` held. It may be called
/// when there is nothing to do.
pub type WorkSignal = Box<dyn Fn(WatchWork) + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchWork {
    /// Call [`WatchableStore::deliver`].
    Delivery,
    /// Call [`WatchableStore::sync_watchers`].
    SyncWatchers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchConfig {
    /// Maximum number of bytes of responses that a stream keeps for a client that does not read
    /// them. The last response with events may exceed it, and responses to the client's requests
    /// are always added. The old eras limit the number of responses instead.
    pub stream_bytes_max: usize,
    /// Maximum number of bytes of changes in the delivery queue. If it is exceeded, the queue is
    /// dropped, and the synced watchers become unsynced. A single transaction may be larger.
    pub queue_bytes_max: usize,
    pub sync_step_records: usize,
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchMetrics {
    pub streams: usize,
    pub watchers: usize,
    /// Number of unsynced watchers, including the victims of the old eras.
    pub unsynced: usize,
    /// Number of published revisions in the delivery queue.
    pub queued: usize,
}

pub trait WatchableKv<A>: Store<A> {
    /// Opens the watchable store of this store. A store has only one. `signal` is called when there
    /// is something to deliver, and when there is an unsynced watcher. The old eras do not call it:
    /// their caller delivers and syncs at fixed intervals.
    fn open_watchable_store(
        self: Arc<Self>,
        config: WatchConfig,
        locks: &Registry,
        signal: WorkSignal,
    ) -> Arc<dyn WatchableStore>;
}

/// All watchers of a store.
///
/// The server calls the methods up to `close_stream` for the streams (see
/// [`WatchStream`](crate::watch::WatchStream)). A writer calls
/// [`publish_all`](WatchableStore::publish_all). `deliver` and `sync_watchers` are steps that the
/// caller runs at its own pace, on any thread.
pub trait WatchableStore: Send + Sync + Debug {
    fn open_stream(&self, wake_set: Arc<WakeSet>) -> Arc<WatchChannel>;

    fn watch(&self, stream: &WatchChannel, request: WatchRequest);

    /// Ends a watcher. An unknown ID is ignored.
    fn cancel(&self, stream: &WatchChannel, id: WatchId);

    /// Requests a progress response for the stream. The response is sent only if the stream has
    /// watchers, and all of them are synced and have reached their start revision. The old eras
    /// check this immediately. The default era checks it once all changes up to now have been
    /// delivered.
    fn request_progress(&self, stream: &WatchChannel);

    /// Sends a progress notice to each synced watcher that requested notices and had no event since
    /// the last call. Sends no notices while the stream's channel is full.
    fn notify_progress(&self, stream: &WatchChannel);

    /// Continues the watchers that found no capacity. Called when the client has taken responses
    /// and the channel is at most half full. The old eras retry these watchers at fixed intervals.
    fn resume_stream(&self, _stream: &WatchChannel) {}

    /// Adds previous records to responses that are about to be sent. Only the old eras do this: the
    /// responses of the default era already contain them.
    fn add_previous_records(
        &self,
        _stream: &WatchChannel,
        _responses: &mut [Response],
    ) -> Result<()> {
        Ok(())
    }

    fn close_stream(&self, stream: &WatchChannel);

    /// Publishes the changes of write transactions, in the order of revisions. Readers must already
    /// see them.
    fn publish_all(&self, transactions: Vec<(i64, Changes)>);

    /// Delivers some queued transactions. The old eras have no queue and retry their victims
    /// instead. Returns true if there may be more to do.
    fn deliver(&self) -> Result<bool>;

    /// Runs one read step for an unsynced watcher whose stream has capacity. The old eras run a
    /// sync round for up to 512 watchers instead. Returns true if there may be more to do.
    fn sync_watchers(&self) -> Result<bool>;

    /// Removes and returns all streams, for the watchable store that replaces this one. Drops
    /// everything that was published and not delivered.
    fn detach_streams(&self) -> Vec<DetachedStream>;

    /// Adds streams from another watchable store, before any other stream is opened. Both stores
    /// must have the same events for the revisions already delivered.
    fn attach_streams(&self, streams: Vec<DetachedStream>);

    fn metrics(&self) -> WatchMetrics;
}
