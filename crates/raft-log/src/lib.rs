//! What was agreed? The log that all members write, and raft, which decides what is in it.

pub mod driver;
pub mod wire;
mod log;

pub use log::Position;
