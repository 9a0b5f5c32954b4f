//! Tests of the store and its watchers through the public interface.

#![allow(clippy::print_stdout, reason = "a test fails by panicking, and reports")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;
#[path = "../watch_support/mod.rs"]
mod watch_support;
mod store;
mod store_model;
mod store_runs;
mod store_stops;
mod store_threads;
mod store_txn_reads;
mod store_lengths;
mod store_leases;
mod store_other_buckets;
mod store_changed_keys;
mod store_index_walk;
mod store_large_deletions;
mod restore;
mod compaction_jobs;
mod hashkv;
mod backend_hash;
mod watch;
mod watch_model;
mod watch_threads;
mod watch_beside_all;
mod watch_detached;
mod watch_limits;
mod index;
mod oracle;
