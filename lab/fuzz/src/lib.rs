//! Can bytes from outside make the program panic? Each [target](targets::ALL) passes arbitrary
//! bytes to one place that reads data from a client, another member, a disk or an operator.
//!
//! * A target panics if the program would panic. It also panics if a value that was read changes
//!   when it is written and read again.
//! * `corpus/TARGET` contains inputs that together reach all code that the fuzzer had reached when
//!   they were selected. An ordinary test passes each of these inputs to its target.
//! * `tests/suite/from_oracle.rs` creates the first inputs, called seeds, from the recordings of
//!   etcd's responses.
//! * The script `run` builds the targets with libFuzzer and instrumentation, and fuzzes them. Its
//!   comments explain how this works with a stable compiler.

pub mod input;
pub mod targets;
