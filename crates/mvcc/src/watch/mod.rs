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
//! * `clearlane/watch/`: the hub of the default era, which writers hand their changes to.
//! * `etcd/watch.rs`: the hub of the old eras, which is etcd's: one lock over all of it.
//! * `moving.rs`: from one hub to another, when a store is replaced.
//!
//! # Invariants, for every hub
//!
//! * What a stream is told of a watcher begins with `Created` and rises in revisions.
//! * All events of one revision for a watcher are in one response.
//! * `Progress` at revision R comes behind every event up to R.

pub mod channel;
pub mod current_hub;
pub mod detached_stream;
pub mod interface;
pub mod response;
pub mod stream;
pub mod watcher_group;
mod interval_tree;

pub use channel::{StreamConsumer, WatchChannel};
pub use current_hub::CurrentHub;
pub use detached_stream::DetachedStream;
pub use interface::{
    WatchConfig, WatchMetrics, WatchWork, WatchableKv, WatchableStore, WorkSignal,
};
pub use response::{
    Event, INVALID_WATCH_ID, Response, ResponseKind, WatchError, WatchId, WatchRequest, fragments,
};
pub use stream::WatchStream;
pub use watcher_group::WatchedKeys;
