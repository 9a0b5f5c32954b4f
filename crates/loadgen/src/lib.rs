//! What does a client wait for? Requests at their own times, to any server of etcd's API.
//!
//! # A tool that hides what it is meant to find
//!
//! The obvious load tool has some clients, and each sends a request, waits for the answer, and sends
//! the next. Let such a server stand still for a second, under a load of 100 requests per second:
//!
//! ```text
//!   closed loop   r r r r [ one request waits 1 s                 ] r r r r
//!                         the others were never sent, and nobody counts them
//!
//!   open loop     r r r r r r r r r r r r r r r r r r r r r r r r r r r r r
//!                         ├──────────────── 1.00 s ────────────────┤
//!                           ├────────────── 0.99 s ────────────────┤
//!                             ... a hundred requests that waited
//! ```
//!
//! In the first picture 1 of 400 requests was slow: the 99th percentile does not see it. In the second
//! 100 of 500 were. Users do not agree among each other to wait while a server is busy, so the second
//! is what they meet. The first is called *coordinated omission*: the tool and the server coordinate
//! to omit the very requests that were to be measured.
//!
//! Here every request has a time at which it is *due*, which depends on a seed and on nothing else, and
//! its latency counts from then; also if the driver itself was late to send it.
//!
//! # The parts
//!
//! ```text
//!   workload     what is asked for: key space, classes, rates          a TOML file
//!   arrivals     when each request is due                              a thread that sleeps
//!      │ due
//!      ▼
//!   run ── requests ── connection ──▶ server                           a thread for each class
//!      ▲                   │
//!      └── tally ◀── answer┘  counted while it arrives, and dropped
//!   report       a table, or JSON
//! ```
//!
//! # The driver must be cheap
//!
//! It shares the machine with the server. It has a thread for the sockets of each class, and one that sleeps
//! until a request is due. (The runtime's own timers are exact to a millisecond, which is the size of what is
//! measured.) Answers are not decoded: [`response_scanner`] walks over the bytes as they arrive, counts what is in
//! them, and lets them go. Of an answer of 320 MB no more than a few frames are ever in memory, and other
//! answers are read in between. A driver that decoded it in one go would stand still for it, and would
//! measure itself.
//!
//! # What is left out
//!
//! * A closed loop. etcd's `benchmark` has one, and is the tool for "how many requests per second at most".
//! * TLS, users, watches and leases. One endpoint at a time.
//! * Correctness: [`run`] checks that a read found as many keys as it must, and nothing else.

pub mod response_scanner;
pub mod arguments;
pub mod arrivals;
pub mod connection;
pub mod fill;
pub mod keys;
pub mod process;
pub mod report;
pub mod requests;
pub mod run;
pub mod class_metrics;
pub mod workload;

mod error;

pub use error::{Error, Result};
