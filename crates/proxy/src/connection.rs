//! What the proxy knows about one client connection.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cache::epoch::NewestRevision;

static NEXT_NUMBER: AtomicUsize = AtomicUsize::new(0);

#[derive(Debug)]
pub struct ConnectionState {
    /// Calls about one member go to the member that this number chooses.
    pub number: usize,
    /// The newest revision in any response on this connection.
    seen: NewestRevision,
}

impl Default for ConnectionState {
    fn default() -> ConnectionState {
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        ConnectionState { number, seen: NewestRevision::default() }
    }
}

impl ConnectionState {
    /// Notes the revision of a response of this epoch.
    pub fn note_seen(&self, epoch: u64, revision: i64) {
        self.seen.note(epoch, revision);
    }

    /// Returns the newest revision of this epoch that the connection has seen.
    pub fn seen(&self, epoch: u64) -> i64 {
        self.seen.of(epoch)
    }
}
