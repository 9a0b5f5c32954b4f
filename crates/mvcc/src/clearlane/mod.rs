//! The store of the default era: revisions, index and records behind one pointer.
//!
//! See [`store`] for what is published, [`watch`] for how watchers are notified, and
//! `docs/mvcc.md`.

pub mod store;
pub mod watch;
mod write_txn;
