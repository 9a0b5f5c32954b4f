//! The interface of a watchable store, and what it is opened with.
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

/// Wakes the thread that sleeps until there is something of this kind to do. Called with no lock of
/// the watchable store held, but perhaps with `watchHub`; and perhaps for nothing.
pub type WorkSignal = Box<dyn Fn(WatchWork) + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchWork {
    /// [`WatchableStore::deliver`].
    Delivery,
    /// [`WatchableStore::sync_watchers`].
    SyncWatchers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchConfig {
    /// Number of bytes of responses that a stream keeps for a client that does not take them. (A
    /// single response may be greater.)
    pub stream_bytes_max: usize,
    /// Number of bytes of changes that wait to be delivered before all watchers become unsynced
    /// instead.
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
    /// Those of them that are unsynced (victims included).
    pub unsynced: usize,
    /// Revisions that were published and not handed on yet.
    pub queued: usize,
}

pub trait WatchableKv<A>: Store<A> {
    /// Opens the watchable store above this one; there is one for each store. `signal` is called
    /// when there is something to deliver or an unsynced watcher; the old eras do both by the clock
    /// alone.
    fn open_watchable_store(
        self: Arc<Self>,
        config: WatchConfig,
        locks: &Registry,
        signal: WorkSignal,
    ) -> Arc<dyn WatchableStore>;
}

/// All watchers of a store. The server calls the upper half on the streams' behalf (see
/// [`WatchStream`](crate::watch::WatchStream)), a writer calls
/// [`publish_all`](WatchableStore::publish_all), and the rest are steps that the caller paces, on
/// any threads.
pub trait WatchableStore: Send + Sync + Debug {
    fn open_stream(&self, wake_set: Arc<WakeSet>) -> Arc<WatchChannel>;

    fn watch(&self, stream: &WatchChannel, request: WatchRequest);

    /// Ends a watcher, if there is one of this id.
    fn cancel(&self, stream: &WatchChannel, id: WatchId);

    /// Reports the progress of a stream, if all its watchers are synced.
    fn request_progress(&self, stream: &WatchChannel);

    /// Reports progress to the watchers that want it and had no event since the last call.
    fn notify_progress(&self, stream: &WatchChannel);

    /// The client has taken enough that there is capacity for the watchers that were refused. The
    /// old eras retry them by the clock.
    fn resume_stream(&self, _stream: &WatchChannel) {}

    /// Adds what is only looked up when a response is sent: in the old eras, records before. The
    /// default era has nothing to add.
    fn add_previous_records(
        &self,
        _stream: &WatchChannel,
        _responses: &mut [Response],
    ) -> Result<()> {
        Ok(())
    }

    fn close_stream(&self, stream: &WatchChannel);

    /// Hands over what write transactions have changed, in the order of revisions, once readers
    /// can see it.
    fn publish_all(&self, transactions: Vec<(i64, Changes)>);

    /// Returns whether more is queued.
    fn deliver(&self) -> Result<bool>;

    /// Reads and delivers a step for an unsynced watcher whose stream has capacity. Says whether
    /// there may be more to do.
    fn sync_watchers(&self) -> Result<bool>;

    /// Takes all streams out, for the watchable store of a store that replaces this one. What was
    /// published and not delivered is forgotten.
    fn detach_streams(&self) -> Vec<DetachedStream>;

    /// Takes streams in that have left another watchable store, before any other stream is opened.
    /// What was delivered there is the same as it would have been here.
    fn attach_streams(&self, streams: Vec<DetachedStream>);

    fn metrics(&self) -> WatchMetrics;
}
