//! Watching: a watcher receives each change of its keys from a start revision on, once and in
//! order.
//!
//! A *synced* watcher receives each change when the change is delivered: an interval tree finds the
//! watchers of the changed key. An *unsynced* watcher reads the store, for example because it
//! started in the past, or because its channel or the delivery queue was full.
//!
//! * [`response`], [`stream`], [`channel`]: requests, responses, and the limited channel of a
//!   client.
//! * [`watcher_group`], `interval_tree.rs`: the watchers of a key.
//! * [`interface`]: [`WatchableStore`]; [`clearlane::watch`](crate::clearlane::watch) and
//!   [`etcd::watch`](crate::etcd::watch) implement it.
//! * [`current_store`], [`detached_stream`]: a store is replaced, and its streams move.
//!
//! Invariants:
//! * The responses of a watcher start with `Created`, and their revisions never fall. The one
//!   exception is the response to a watcher that a compaction has ended, which has revision 0.
//! * All events of one revision for a watcher are in one response.
//! * `Progress` at R follows every event up to R.
//!
//! See `docs/watch.md`.

pub mod channel;
pub mod current_store;
pub mod detached_stream;
pub mod interface;
pub mod response;
pub mod stream;
pub mod watcher_group;
mod interval_tree;

pub use channel::{WakeSet, WatchChannel};
pub use current_store::CurrentWatchableStore;
pub use detached_stream::DetachedStream;
pub use interface::{
    WatchConfig, WatchMetrics, WatchWork, WatchableKv, WatchableStore, WorkSignal,
};
pub use response::{
    Event, INVALID_WATCH_ID, Response, ResponseKind, WatchError, WatchId, WatchIdAllocator,
    WatchRequest, fragments,
};
pub use stream::WatchStream;
pub use watcher_group::{WatchedKeys, WatcherGroup};
