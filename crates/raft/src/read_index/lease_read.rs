//! Mode `lease`: the leader answers by itself while it knows that no other member can lead.
//!
//! A quorum that acknowledged a ReadIndex request does not vote for another member until an
//! election time-out after the request was sent. The lease starts when the request is *sent*, and
//! its length is election time-out − tick − margin. While the lease holds, a reader gets the
//! current commit index immediately. Without a lease a reader waits for a ReadIndex request, which
//! renews the lease.
//!
//! The lease is dropped when the leader or the term changes, when no leader is known, when the
//! clock goes back, and when a transfer of leadership starts. After a transfer has started there is
//! no lease for the rest of the term. The member that is to take over does not wait for a time-out,
//! and the message that asks it to campaign may be in flight for a long time.
//!
//! **If one of five assumptions about clocks and votes is broken, reads may be stale**:
//! `docs/read-index.md` lists them. Neither etcd nor this crate uses raft's own lease option,
//! because its leases last too long.

use std::time::Duration;

/// The lease of a member in mode `lease`. In mode `read-index` its length is zero, and it never
/// holds.
#[derive(Debug, Default)]
pub(super) struct Lease {
    length: Duration,
    until: Option<Duration>,
    /// If true, a transfer has started in this term.
    is_transferring: bool,
}

impl Lease {
    pub(super) fn new(length: Duration) -> Lease {
        Lease { length, ..Lease::default() }
    }

    pub(super) fn holds(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Extends the lease after a quorum has confirmed a ReadIndex request, which this leader sent
    /// at `asked_at`. Does nothing if a transfer has started in this term.
    pub(super) fn renew(&mut self, asked_at: Duration) {
        if !self.is_transferring {
            self.until = self.until.max(asked_at.checked_add(self.length));
        }
    }

    pub(super) fn drop_until_renewed(&mut self) {
        self.until = None;
    }

    pub(super) fn on_new_term(&mut self) {
        *self = Lease::new(self.length);
    }

    pub(super) fn on_transfer_started(&mut self) {
        (self.until, self.is_transferring) = (None, true);
    }
}
