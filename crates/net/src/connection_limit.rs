//! Limits how many connections may be open at once. A connection above the limit is closed as soon
//! as it is accepted.
//!
//! At its limit, etcd stops accepting connections instead. The system still connects a client, and
//! the client waits for a response until it gives up. A client whose connection is closed
//! immediately can try another member, and a health check fails immediately.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::log_limiter::LogLimiter;

#[derive(Clone, Debug)]
pub struct ConnectionLimit(Arc<OpenConnections>);

#[derive(Debug)]
struct OpenConnections {
    /// The name that log lines show for the limit: the flag that sets it, or the port that has it.
    flag: &'static str,
    max: usize,
    open: AtomicUsize,
    log: LogLimiter,
}

/// A permit for one open connection. It counts toward the limit until it is dropped.
#[derive(Debug)]
pub struct ConnectionPermit(Arc<OpenConnections>);

impl ConnectionLimit {
    /// Creates a limit. `flag` is the name that log lines show for the limit: the flag that sets
    /// it, or the port that has it.
    pub fn new(flag: &'static str, max: usize) -> ConnectionLimit {
        let (open, log) = (AtomicUsize::new(0), LogLimiter::default());
        ConnectionLimit(Arc::new(OpenConnections { flag, max, open, log }))
    }

    /// Returns a permit. If the limit is reached, returns `None` and writes a log line, unless too
    /// many such lines have already been written in this second.
    pub fn admit(&self) -> Option<ConnectionPermit> {
        // A permit above the limit is dropped, which undoes its increment.
        let permit = ConnectionPermit(Arc::clone(&self.0));
        if self.0.open.fetch_add(1, Ordering::Relaxed) < self.0.max {
            return Some(permit);
        }
        if let Some(left_out) = self.0.log.admit() {
            let OpenConnections { flag, max, .. } = *self.0;
            tracing::warn!(
                max,
                "lines-left-out" = left_out,
                "closed a new connection: the limit of {flag} is reached"
            );
        }
        None
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_when_its_connection_has_ended() {
        let limit = ConnectionLimit::new("--max-connections", 2);
        let (one, two) = (limit.admit().unwrap(), limit.admit().unwrap());
        assert!(limit.admit().is_none() && limit.admit().is_none());
        drop(one);
        let three = limit.admit().unwrap();
        assert!(limit.admit().is_none());
        drop((two, three));
        assert_eq!(limit.0.open.load(Ordering::Relaxed), 0);
    }
}
