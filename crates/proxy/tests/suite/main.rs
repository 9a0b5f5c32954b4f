//! Tests of the proxy and the gateway through the public interface.

#![allow(clippy::print_stdout, reason = "a test fails by panicking, and reports")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod gateway;
mod login;
mod member;
mod model;
mod running;
