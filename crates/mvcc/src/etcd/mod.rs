//! The stores of etcd's eras: revisions and index under locks, in etcd's order.
//!
//! There are two lock protocols, that of 3.0 and 3.1 and that of 3.2 on: see [`store_locks`]. The
//! rest is the same for all; [`store`] has the lock order.

pub mod store_locks;
pub mod store;
pub mod watch;
mod watchers;
mod write_txn;
