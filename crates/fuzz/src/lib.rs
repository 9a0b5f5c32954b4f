//! Can bytes from outside make the program panic? Each [target](targets::ALL) gives arbitrary bytes
//! to one place that reads what came from a client, another member, a disk or an operator.
//!
//! * A target panics if the program would, or if what was read and written again is not the same.
//! * `corpus/TARGET` holds inputs that reach all that was found reachable; an ordinary test gives
//!   each to its target. Its `seeds` are made from the oracle's recordings by
//!   `tests/from_oracle.rs`.
//! * `run` builds the targets with libFuzzer and instrumented, and fuzzes them. How that works with
//!   a stable compiler is written there.

pub mod input;
pub mod targets;
