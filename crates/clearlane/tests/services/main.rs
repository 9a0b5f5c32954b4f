//! Tests of the services of one member, with clients of gRPC and HTTP.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/bytes_codec.rs"]
mod bytes_codec;
#[path = "../support/frames.rs"]
mod frames;
#[path = "../http_support/mod.rs"]
mod http_support;
#[path = "../support/mod.rs"]
mod support;
mod kv;
mod nested_txns;
mod range_stream;
mod small_frames;
mod headers;
mod lease;
mod maintenance;
mod auth_off;
mod succession;
mod http;
mod metrics;
