//! Mode `lease`: the leader answers by itself while it knows that no other member can lead.
//!
//! # The story
//!
//! A round proves that this member led when it asked. It proves a little more: each of the quorum that
//! answered has heard from its leader after the question, and will not vote for another one until its
//! election time-out is over. As any new leader needs one of them, there is none until then. For that
//! long a read needs no round at all: the leader's commit index of *now* covers every write that was
//! acknowledged.
//!
//! ```text
//!   this leader   ask ───────▶ answer
//!                 ├── lease: election time-out − tick − margin ──┤      no reads without a round
//!                 │     reads go on at once                      │      ┄┄┄┄┄┄┄┄▶
//!   a follower      heard ├─────── will not vote: time-out − up to a tick ────┤ may elect another
//!                                                                └─ margin ─┘
//! ```
//!
//! The lease counts from when the question was *asked*, not from when the answer came: a follower's
//! promise may be as old as the question. When it has run out, the next reader makes a round, as in mode
//! `read-index`, and the round renews it. A member that does not lead makes rounds only.
//!
//! # What it costs, and what is assumed
//!
//! One round per lease, whatever the load: no round trip for a read, almost always. The price is an
//! assumption that rounds do not need, and **if it is broken, reads are stale**:
//!
//! 1. *Clocks run alike.* Over an election time-out those of two members differ by less than the
//!    margin. A machine that is suspended has a clock that stood still, if it is the wrong clock: `now` must
//!    come from one that counts on, such as Linux's `CLOCK_BOOTTIME`.
//! 2. *A follower refuses to vote while it hears its leader*: raft's check-quorum is on at all members.
//! 3. *Ticks that were missed are not made up for.* A follower that was stopped for a second and then is
//!    told of ten ticks at once forgets its promise in no time.
//! 4. *A member that starts does not vote for an election time-out.* Its promise was in memory.
//!
//! `tests/read_index_lease.rs` breaks each of 1 and 4, and shows the stale read.
//!
//! # When it is dropped
//!
//! Another leader, another term, no leader; the clock goes back; a transfer of leadership begins. The
//! last one is special: the member that is to take over is told not to wait for any time-out. That
//! message may be on its way for long, after the transfer was given up too. So after a transfer has
//! begun there is no lease for the rest of the term, and what was asked before gives none.
//!
//! # What raft does that is not used
//!
//! raft has an option of this kind, which trusts check-quorum: a leader steps down if it has not heard
//! from a quorum for an election time-out. But it looks once per time-out, so a leader that was cut off
//! just after looking serves for nearly two. etcd does not use that option, either.

use std::time::Duration;

use super::error::Result;
use super::ids::RequestIdGenerator;
use super::interface::{
    ReadIndexAction, ReadIndexConfig, ReadIndexEvent, ReadIndexMetrics, ReadIndexQueue, Reader,
};
use super::quorum_read::QuorumRead;

/// Rounds, and none while a lease is good.
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
        let room = &mut self.quorum_read.waiters;
        if good && !room.is_queue_empty() {
            assert!(
                self.quorum_read.is_leader() && !self.is_transferring,
                "only a leader for sure has a lease"
            );
            let room = &mut self.quorum_read.waiters;
            room.metrics.lease_reads += 1;
            let group = room.take_queue();
            room.wait_for_index(self.committed, group);
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
            ReadIndexEvent::FirstCommit
            | ReadIndexEvent::Applied { .. }
            | ReadIndexEvent::Stopped => self.quorum_read.handle_event(event),
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
