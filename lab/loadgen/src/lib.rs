//! Puts a server of etcd's API under load, from outside: requests at their own times.
//!
//! In a run, a request has a time at which it is *due*, which depends on the seed alone, and its
//! latency counts from then, also if the driver was late to send it: `docs/measuring.md`.
//!
//! ```text
//!   workload ──▶ arrivals ──▶ run ── requests ── connection ──▶ server
//!   report   ◀── class_metrics ◀──── response_scanner ◀───────────┘
//! ```
//!
//! The driver shares the machine with the server, so answers are not decoded: [`response_scanner`]
//! counts what is in their bytes. Each class has a thread. [`stall`] sends what is expensive beside
//! a run, [`storm`] what is hostile; [`day`] what a day has, to see whether a server grows;
//! [`stub`] is a server that does nothing; [`closed_loop`] has etcd's own benchmark; [`plot`] and
//! [`page`] draw.

pub mod response_scanner;
pub mod arguments;
pub mod arrivals;
pub mod bare_bcrypt;
pub mod connection;
pub mod closed_loop;
pub mod day;
pub mod disk;
pub mod experiment;
pub mod fill;
pub mod keys;
pub mod page;
pub mod plot;
pub mod process;
pub mod report;
pub mod requests;
pub mod run;
pub mod servers;
pub mod class_metrics;
pub mod stall;
pub mod server_info;
pub mod server_latency;
pub mod storm;
pub mod stop;
pub mod stub;
pub mod target;
pub mod time_series;
mod tls;
pub mod users;
pub mod workload;

/// One line, by the role that can act on it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// For the author of the workload, or for the user of a class that it does not have.
    #[error("{0}")]
    Workload(String),
    /// For the operator of the server.
    #[error("{0}")]
    Server(String),
    /// For the user of this tool: a file, or this machine.
    #[error("{0}")]
    Local(String),
}

pub type Result<T> = std::result::Result<T, Error>;
