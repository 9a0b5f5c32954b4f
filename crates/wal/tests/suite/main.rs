//! Tests of the write-ahead log, from the bytes of a message to the contents after a power cut.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod damage;
mod disk;
mod durable_end;
mod etcd;
mod golden;
mod group;
mod model;
mod power_cut;
mod refusals;
mod short;
mod support;
mod wire;
