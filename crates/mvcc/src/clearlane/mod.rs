//! The store of the default era: revisions, index and records behind one pointer.
//!
//! See [`store`] for what is published, [`watch`] for how watchers are notified, and
//! `docs/mvcc.md`.

pub mod read_txn;
pub mod store;
pub mod watch;
pub mod write_txn;
