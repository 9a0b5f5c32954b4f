//! Tests of the proxy and the gateway through the public interface.

#![allow(clippy::print_stdout, reason = "a test fails by panicking, and reports")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod budget;
mod flood;
mod gateway;
mod keep_alives;
mod limits;
mod log;
mod login;
mod loops;
mod member;
mod model;
mod packed;
mod pings;
mod running;
mod unusable;
