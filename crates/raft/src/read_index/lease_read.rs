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

use super::error::Result;
use super::ids::RequestIdGenerator;
use super::interface::{
    ReadIndexAction, ReadIndexConfig, ReadIndexEvent, ReadIndexMetrics, ReadIndexQueue, Reader,
};
use super::quorum_read::QuorumRead;

#[derive(Debug)]
pub(crate) struct LeaseRead<T> {
    quorum_read: QuorumRead<T>,
    lease_length: Duration,
    lease_until: Option<Duration>,
    /// A transfer has begun in this term.
    is_transferring: bool,
    committed: u64,
}

impl<T: Reader> LeaseRead<T> {
    pub(crate) fn new(config: ReadIndexConfig) -> LeaseRead<T> {
        LeaseRead {
            quorum_read: QuorumRead::new(config),
            lease_length: config.lease_length(),
            lease_until: None,
            is_transferring: false,
            committed: 0,
        }
    }

    /// A quorum followed this member at some time after `asked_at`.
    fn renew(&mut self, asked_at: Duration) {
        if self.quorum_read.is_leader() && !self.is_transferring {
            self.lease_until = self.lease_until.max(asked_at.checked_add(self.lease_length));
        }
    }

    fn serve_under_lease(&mut self, now: Duration) {
        let good = self.lease_until.is_some_and(|until| now < until);
        let waiters = &mut self.quorum_read.waiters;
        if good && !waiters.is_queue_empty() {
            assert!(
                self.quorum_read.is_leader() && !self.is_transferring,
                "only a leader for sure has a lease"
            );
            let waiters = &mut self.quorum_read.waiters;
            waiters.metrics.lease_reads += 1;
            let group = waiters.take_queue();
            waiters.wait_for_index(self.committed, group);
        }
    }
}

impl<T: Reader> ReadIndexQueue<T> for LeaseRead<T> {
    fn enqueue(&mut self, reader: T) -> Result<()> {
        self.quorum_read.enqueue(reader)
    }

    fn cancel(&mut self, reader: T) -> bool {
        self.quorum_read.cancel(reader)
    }

    fn handle_event(&mut self, event: ReadIndexEvent) {
        match event {
            ReadIndexEvent::Answered { context, index } => {
                if let Some(asked_at) = self.quorum_read.on_answer(context, index) {
                    self.renew(asked_at);
                }
                // What was committed when the quorum was asked is committed.
                self.committed = self.committed.max(index);
            }
            ReadIndexEvent::Leader { leader, term } => {
                if self.quorum_read.set_leader(leader, term) {
                    (self.lease_until, self.is_transferring) = (None, false);
                }
            }
            ReadIndexEvent::TransferStarted => {
                (self.lease_until, self.is_transferring) = (None, true)
            }
            ReadIndexEvent::Committed { index } => self.committed = self.committed.max(index),
            ReadIndexEvent::FirstCommit | ReadIndexEvent::Applied { .. } => {
                self.quorum_read.handle_event(event)
            }
        }
    }

    fn poll(&mut self, now: Duration, ids: &mut RequestIdGenerator) -> Vec<ReadIndexAction<T>> {
        let moment = self.quorum_read.waiters.read_clock(now);
        if moment.has_stepped_back {
            self.lease_until = None;
        }
        self.serve_under_lease(moment.now);
        self.quorum_read.advance(moment, ids);
        self.quorum_read.waiters.take_actions()
    }

    fn next_poll(&self) -> Option<Duration> {
        self.quorum_read.next_poll()
    }

    fn awaited_index(&self) -> Option<u64> {
        self.quorum_read.waiters.awaited_index()
    }

    fn metrics(&self) -> ReadIndexMetrics {
        self.quorum_read.metrics()
    }
}
