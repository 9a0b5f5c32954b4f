//! Tests of the model of a read path, and of its program.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../../crates/contention/tests/suite/script/mod.rs"]
mod script;
mod background;
mod eras;
mod knobs;
mod locks;
mod measure;
mod members;
mod scenarios;
mod scripts;
mod side_by_side;
mod theory;
mod tool;
