//! A cluster in one thread, under a seed.

pub mod chance;
pub mod world;
pub mod trace;
pub mod network;
pub mod history;
pub mod proposals;
pub mod replies;
pub mod clients;
pub mod faults;
pub mod checkers;
pub mod judge;
pub mod terms;
pub mod machine;
pub mod cluster;
mod run;

pub use run::{Report, run};
