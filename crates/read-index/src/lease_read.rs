//! Mode `lease`: the leader answers by itself while it knows that nobody else can lead.
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
//! `tests/lease.rs` breaks each of 1 and 4, and shows the stale read.
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

use crate::error::Result;
use crate::ids::RequestIds;
use crate::interface::{Action, Config, Event, Figures, ReadBarrier, Reader};
use crate::read_index::ReadIndex;

/// Rounds, and none while a lease is good.
#[derive(Debug)]
pub(crate) struct LeaseRead<T> {
    rounds: ReadIndex<T>,
    length: Duration,
    good_until: Option<Duration>,
    /// A transfer has begun in this term.
    barred: bool,
    committed: u64,
}

impl<T: Reader> LeaseRead<T> {
    pub(crate) fn new(config: Config) -> LeaseRead<T> {
        LeaseRead {
            rounds: ReadIndex::new(config),
            length: config.lease_length(),
            good_until: None,
            barred: false,
            committed: 0,
        }
    }

    /// A quorum followed this member at some time after `asked_at`.
    fn renew(&mut self, asked_at: Duration) {
        if self.rounds.leads() && !self.barred {
            self.good_until = self.good_until.max(asked_at.checked_add(self.length));
        }
    }

    fn serve_under_lease(&mut self, now: Duration) {
        let good = self.good_until.is_some_and(|until| now < until);
        let room = &mut self.rounds.room;
        if good && !room.queue_is_empty() {
            assert!(self.rounds.leads() && !self.barred, "only a leader for sure has a lease");
            let room = &mut self.rounds.room;
            room.figures.under_lease += 1;
            let group = room.take_queue();
            room.wait_behind(self.committed, group);
        }
    }
}

impl<T: Reader> ReadBarrier<T> for LeaseRead<T> {
    fn read(&mut self, reader: T) -> Result<()> {
        self.rounds.read(reader)
    }

    fn cancel(&mut self, reader: T) -> bool {
        self.rounds.cancel(reader)
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Answered { context, index } => {
                if let Some(asked_at) = self.rounds.answered(context, index) {
                    self.renew(asked_at);
                }
                // What was committed when the quorum was asked is committed.
                self.committed = self.committed.max(index);
            }
            Event::Leader { leader, term } => {
                if self.rounds.leader_is(leader, term) {
                    (self.good_until, self.barred) = (None, false);
                }
            }
            Event::TransferBegan => (self.good_until, self.barred) = (None, true),
            Event::Committed { index } => self.committed = self.committed.max(index),
            Event::FirstCommit | Event::Applied { .. } | Event::Stopped => self.rounds.hear(event),
        }
    }

    fn poll(&mut self, now: Duration, ids: &mut RequestIds) -> Vec<Action<T>> {
        let moment = self.rounds.room.told(now);
        if moment.stepped_back {
            self.good_until = None;
        }
        self.serve_under_lease(moment.now);
        self.rounds.step(moment, ids);
        self.rounds.room.take_actions()
    }

    fn next_poll(&self) -> Option<Duration> {
        self.rounds.next_poll()
    }

    fn awaited(&self) -> Option<u64> {
        self.rounds.room.awaited()
    }

    fn figures(&self) -> Figures {
        self.rounds.figures()
    }
}
