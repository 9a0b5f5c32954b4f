//! Histories of keys and the two tree indexes, against plain models and golden scripts.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

mod plain;
mod subject;
mod key_history;
mod golden;
mod model;
