//! The stores of etcd's eras: revisions and index under locks, in etcd's order.
//!
//! Two lock protocols, one file each: [`v3_1_mutex`] (3.0, 3.1) and [`v3_2_rev_mu`] (3.2 on). What
//! the eras share is in the other files; [`store`] has the lock order.

pub mod lock_protocol;
pub mod store;
pub mod v3_1_mutex;
pub mod v3_2_rev_mu;
pub mod watch;
mod read_txn;
mod watchers;
mod write_txn;
