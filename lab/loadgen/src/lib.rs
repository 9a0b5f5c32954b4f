//! The program `clearlane-load`: sends load to a server that implements etcd's API, and measures
//! how long clients wait.
//!
//! In a run, each request is *due* at a fixed time, which depends only on the seed. Its latency is
//! measured from that time, even if the driver sends the request late (`docs/measuring.md`).
//!
//! ```text
//!   workload ──▶ arrivals ──▶ run ── requests ── connection ──▶ server
//!   report   ◀── class_metrics ◀──── response_scanner ◀───────────┘
//! ```
//!
//! Each class of requests has its own thread. The driver often shares the machine with the server,
//! so it does not decode responses: [`response_scanner`] counts the keys in their bytes.
//!
//! Other loads:
//!
//! * [`stall`] sends expensive requests while a run measures cheap ones; [`storm`] sends hostile
//!   traffic.
//! * [`day`] repeats the requests of a normal day, to find out whether a server grows.
//! * [`closed_loop`] has the loops of etcd's own `benchmark`, and [`experiment`] repeats published
//!   measurements.
//! * [`stub`] is a server that stores nothing, for comparison.
//!
//! [`plot`] and [`page`] draw the results.

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
#[cfg(test)]
mod golden;
pub mod keys;
mod load_thread;
pub mod named;
mod observation;
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
mod waiting;
mod within;
pub mod workload;

/// An error as one line of text. The variant shows who can fix the error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An error that the author of the workload can fix. Also the error if the user has named a
    /// class that the workload does not have.
    #[error("{0}")]
    Workload(String),
    /// An error that the operator of the server can fix.
    #[error("{0}")]
    Server(String),
    /// An error that the user of this program can fix: a file or an argument is wrong, or this
    /// machine lacks something.
    #[error("{0}")]
    Local(String),
}

pub type Result<T> = std::result::Result<T, Error>;

/// A result whose error is a short text, so that equal errors can be counted together.
pub(crate) type TextResult<T> = std::result::Result<T, String>;
