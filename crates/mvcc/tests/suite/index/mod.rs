//! Compares key histories and the two tree indexes with simple models and golden scripts. Also
//! shows which threads wait during a walk.

mod plain;
mod subject;
#[allow(dead_code, reason = "shared with the tests of the backend, which use all of it")]
#[path = "../../../../backend/tests/support/blocked_threads.rs"]
mod blocked_threads;
mod key_index;
mod golden;
mod model;
mod blocked_walk;
