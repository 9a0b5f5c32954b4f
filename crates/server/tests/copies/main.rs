//! Copies of the store: sent, broken, received, kept, promoted, and found again after a crash.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod transfer;
mod broken;
mod store_dir;
mod crashes;
mod names;
mod former;
