//! Mode `lease`: the leader answers by itself while it knows that no other member can lead.
//!
//! A quorum that answered a round does not vote for another member until an election time-out after
//! the question. The lease counts from when the question was *asked*: election time-out − tick −
//! margin. Under it a reader gets the commit index of now, at once; without it, it gets a round,
//! which renews it.
//!
//! The lease is dropped when leader or term change or no leader is known, when the clock goes back,
//! and when a transfer of leadership begins. After a transfer has begun there is none for the rest
//! of the term: the member that is to take over does not wait for a time-out, and the message to it
//! may be on its way for long.
//!
//! **If one of five assumptions about clocks and votes is broken, reads are stale**:
//! `docs/read-index.md` lists them. Neither etcd nor this crate uses raft's own lease option, which
//! lasts too long.

use std::time::Duration;

/// Of a member in mode `lease`; in mode `read-index` its length is zero, and it holds at no time.
#[derive(Debug, Default)]
pub(super) struct Lease {
    length: Duration,
    until: Option<Duration>,
    /// A transfer has begun in this term.
    is_transferring: bool,
}

impl Lease {
    pub(super) fn new(length: Duration) -> Lease {
        Lease { length, ..Lease::default() }
    }

    pub(super) fn holds(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// A quorum followed this member, the leader, at some time after `asked_at`.
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
