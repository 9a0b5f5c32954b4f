//! Tests of the proxy and the gateway through the public interface.

#![allow(clippy::print_stdout, reason = "a test fails by panicking, and reports")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod budget;
mod fallbacks;
mod flood;
mod gateway;
mod keep_alives;
mod limits;
mod log;
mod login;
mod loops;
mod maintenance;
mod member;
mod model;
mod old_events;
mod old_member;
mod packed;
mod pings;
mod registration;
mod replaced;
mod reopened;
mod running;
mod shutdown;
mod unusable;
