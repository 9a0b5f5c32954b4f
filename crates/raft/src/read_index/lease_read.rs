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
//! **If one of four assumptions about clocks and votes is broken, reads are stale**:
//! `docs/read-index.md` lists them. Neither etcd nor this crate uses raft's own lease option, which
//! lasts too long.

use std::time::Duration;

use super::clock::ClockReading;
use super::ids::RequestIdGenerator;
use super::interface::{ReadIndexConfig, Reader};
use super::mode::Mode;
use super::quorum_read::QuorumRead;
use super::readers::ReaderTable;
use super::waiters::Waiters;

#[derive(Debug)]
pub(super) struct LeaseRead<T> {
    quorum_read: QuorumRead<T>,
    lease_length: Duration,
    lease_until: Option<Duration>,
    /// A transfer has begun in this term.
    is_transferring: bool,
    committed: u64,
}

impl<T: Reader> LeaseRead<T> {
    pub(super) fn new(config: ReadIndexConfig) -> LeaseRead<T> {
        LeaseRead {
            quorum_read: QuorumRead::new(config),
            lease_length: config.lease_length(),
            lease_until: None,
            is_transferring: false,
            committed: 0,
        }
    }

    fn serve_under_lease(&mut self, waiters: &mut Waiters<T>, now: Duration) {
        let is_valid = self.lease_until.is_some_and(|until| now < until);
        if is_valid && !waiters.is_queue_empty() {
            assert!(
                self.quorum_read.is_leader() && !self.is_transferring,
                "only a leader for sure has a lease"
            );
            waiters.metrics.lease_reads += 1;
            let group = waiters.take_queue();
            waiters.wait_for_index(self.committed, group);
        }
    }
}

impl<T: Reader> Mode<T> for LeaseRead<T> {
    fn on_answer(&mut self, waiters: &mut Waiters<T>, context: u64, index: u64) {
        // A quorum followed this member at some time after `asked_at`.
        if let Some(asked_at) = self.quorum_read.end_request(waiters, context, index)
            && self.quorum_read.is_leader()
            && !self.is_transferring
        {
            self.lease_until = self.lease_until.max(asked_at.checked_add(self.lease_length));
        }
        // What was committed when the quorum was asked is committed.
        self.on_committed(index);
    }

    fn on_leader(&mut self, waiters: &mut Waiters<T>, leader: Option<u64>, term: u64) {
        if self.quorum_read.set_leader(waiters, leader, term) {
            self.lease_until = None;
            self.is_transferring = false;
        }
    }

    fn on_transfer_started(&mut self) {
        self.lease_until = None;
        self.is_transferring = true;
    }

    fn on_first_commit(&mut self) {
        self.quorum_read.on_first_commit();
    }

    fn on_committed(&mut self, index: u64) {
        self.committed = self.committed.max(index);
    }

    fn advance(
        &mut self,
        waiters: &mut Waiters<T>,
        reading: ClockReading,
        ids: &mut RequestIdGenerator,
    ) {
        if reading.has_stepped_back {
            self.lease_until = None;
        }
        self.serve_under_lease(waiters, reading.now);
        self.quorum_read.advance(waiters, reading, ids);
    }

    fn next_advance(&self, waiters: &Waiters<T>) -> Option<Duration> {
        self.quorum_read.next_advance(waiters)
    }

    fn sweep(&mut self, readers: &mut ReaderTable<T>) {
        self.quorum_read.sweep(readers);
    }
}
