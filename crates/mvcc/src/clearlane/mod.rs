//! The store of the default era: revisions, index and records behind one pointer.
//!
//! [`store`] describes what a transaction publishes, [`watch`] how watchers are notified. See also
//! `docs/mvcc.md`.

pub mod store;
pub mod watch;
mod write_txn;
