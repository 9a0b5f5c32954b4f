//! Watching: each change of some keys from a revision on, once and in order.
//!
//! A *synced* watcher is found by each change in an interval tree, and is handed it. An *unsynced*
//! one reads the store: it started in the past, or its channel was full.
//!
//! * [`response`], [`stream`], [`channel`]: requests and responses, and a client's bounded channel.
//! * [`watcher_group`], `interval_tree.rs`: which watchers watch a key.
//! * [`interface`]: [`WatchableStore`]; [`clearlane::watch`](crate::clearlane::watch) and
//!   [`etcd::watch`](crate::etcd::watch) implement it.
//! * [`current_store`], [`detached_stream`]: a store is replaced, and its streams move.
//!
//! Invariants: a watcher's responses begin with `Created` and rise in revisions, but for the end by
//! a compaction, at revision 0; all its events of one revision are in one response; `Progress` at R
//! comes after every event up to R. See `docs/watch.md`.

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
    Event, INVALID_WATCH_ID, Response, ResponseKind, WatchError, WatchId, WatchRequest, fragments,
};
pub use stream::WatchStream;
pub use watcher_group::WatchedKeys;
