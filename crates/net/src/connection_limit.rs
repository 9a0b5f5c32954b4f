//! How many connections may be open at once? One more is closed as soon as it is accepted.
//!
//! etcd stops to accept instead: then a client is connected by the system, and waits for an answer
//! until it gives up. One that is closed at once can try another member, and a health check fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::log_limiter::LogLimiter;

#[derive(Clone, Debug)]
pub struct ConnectionLimit(Arc<OpenConnections>);

#[derive(Debug)]
struct OpenConnections {
    /// For the log.
    flag: &'static str,
    max: usize,
    open: AtomicUsize,
    log: LogLimiter,
}

/// The connection is counted until this is dropped.
#[derive(Debug)]
pub struct ConnectionPermit(Arc<OpenConnections>);

impl ConnectionLimit {
    /// `flag` names what sets the limit, in the log.
    pub fn new(flag: &'static str, max: usize) -> ConnectionLimit {
        let (open, log) = (AtomicUsize::new(0), LogLimiter::default());
        ConnectionLimit(Arc::new(OpenConnections { flag, max, open, log }))
    }

    /// `None` if there are as many as may be, which is logged.
    pub fn admit(&self) -> Option<ConnectionPermit> {
        // Whichever thread passes the limit takes back what it has added.
        let permit = ConnectionPermit(Arc::clone(&self.0));
        if self.0.open.fetch_add(1, Ordering::Relaxed) < self.0.max {
            return Some(permit);
        }
        if let Some(left_out) = self.0.log.admit() {
            let OpenConnections { flag, max, .. } = *self.0;
            tracing::warn!(
                max,
                "lines-left-out" = left_out,
                "closed a new connection: there are as many as {flag} allows"
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
