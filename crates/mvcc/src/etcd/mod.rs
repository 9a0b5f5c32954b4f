//! The stores of etcd's eras: revisions and index under locks, taken in etcd's order.
//!
//! There are two lock protocols, one for etcd 3.0 and 3.1 and one since 3.2: see [`store_locks`].
//! Everything else is shared. [`store`] lists the lock order.

pub mod store_locks;
pub mod store;
pub mod watch;
mod watchers;
mod write_txn;
