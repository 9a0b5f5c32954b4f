//! Tests of the client with servers in the same process, and with proxies that break connections.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod auth;
mod failover;
mod kv;
mod lease;
mod locks;
mod members;
mod proxy;
mod stub;
mod tls;
mod watch;

use std::time::Duration;

/// Waits for `work`. Panics after a time limit that is much longer than any test takes.
pub(crate) async fn with_timeout<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), work).await.expect("in time")
}

pub(crate) async fn wait_until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !is_so().await {
        assert!(begin.elapsed() < Duration::from_secs(60), "waited too long until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
