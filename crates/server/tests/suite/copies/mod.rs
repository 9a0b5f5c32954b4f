//! Tests of raft snapshots: sent, interrupted, received, kept, promoted, and found again after a
//! crash.

mod support;
mod transfer;
mod broken;
mod store_dir;
mod crashes;
mod names;
