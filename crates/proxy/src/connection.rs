//! What the proxy knows about one client connection.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

static NEXT_NUMBER: AtomicUsize = AtomicUsize::new(0);

#[derive(Debug)]
pub struct ConnectionState {
    /// Calls about one member go to the member that this number chooses.
    pub number: usize,
    /// The newest revision in any response on this connection.
    seen: AtomicI64,
}

impl Default for ConnectionState {
    fn default() -> ConnectionState {
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        ConnectionState { number, seen: AtomicI64::new(0) }
    }
}

impl ConnectionState {
    pub fn note_seen(&self, revision: i64) {
        self.seen.fetch_max(revision, Ordering::AcqRel);
    }

    pub fn seen(&self) -> i64 {
        self.seen.load(Ordering::Acquire)
    }
}
