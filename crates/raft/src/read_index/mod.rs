//! Decides which reads may use this member's store, and after which entry of the log.
//!
//! A linearizable read must see every write that was acknowledged before the read started. A
//! [`ReadIndexQueue`] finds an index that covers these writes, usually with one ReadIndex request
//! to raft for many reads. It releases each read when this member has applied the log up to the
//! index, or immediately if the read [needs only a confirmation](ReadNeed::Confirmed).
//! [`interface`] is its contract, and [`ReadMode`] lists the four ways to find the index.
//!
//! The queue has no thread, clock or network. The caller supplies them, so a simulated cluster runs
//! the same code. The queue uses contexts and indexes, and does not know how they are transported.
//! Requests and entries are named by [`ids`], which are not used twice. All modes share the code
//! for waiting, for giving up and for the clock.
//!
//! In etcd: the read loop of `v3_server.go`. Before a read gets here, the crate `rpc` rejects it if
//! this member is a learner, or if no leader is known and the request has the header `hasleader`.
//! `docs/read-index.md` describes the modes and why they are correct.

pub mod ids;
pub mod interface;
mod error;
mod clock;
mod readers;
mod waiters;
mod mode;
mod request;
mod quorum_read;
mod log_read;
mod lease_read;

use std::time::Duration;

pub use error::{ReadIndexError, Result};
pub use ids::RequestIdGenerator;
pub use interface::{
    ReadIndexAction, ReadIndexConfig, ReadIndexMetrics, ReadMode, ReadNeed, Reader,
};

use log_read::LogRead;
use mode::{Mode, SerializableRead};
use quorum_read::QuorumRead;
use waiters::Waiters;

/// Holds reads back until the data that they would see is fresh enough.
#[derive(Debug)]
pub struct ReadIndexQueue<T> {
    waiters: Waiters<T>,
    mode: Box<dyn Mode<T>>,
}

impl<T: Reader> ReadIndexQueue<T> {
    pub fn new(mode: ReadMode, config: ReadIndexConfig) -> ReadIndexQueue<T> {
        let mode: Box<dyn Mode<T>> = match mode {
            ReadMode::Log => Box::new(LogRead::new(config)),
            ReadMode::ReadIndex => Box::new(QuorumRead::new(config, Duration::ZERO)),
            ReadMode::Lease => Box::new(QuorumRead::new(config, config.lease_length())),
            ReadMode::Serializable => Box::new(SerializableRead),
        };
        ReadIndexQueue { waiters: Waiters::new(config.readers_max), mode }
    }

    /// Adds a reader. One [`ReadIndexAction::Release`] or [`ReadIndexAction::Fail`] will name it,
    /// unless the reader is cancelled. Fails if too many readers wait, or if this reader already
    /// waits.
    pub fn enqueue(&mut self, reader: T, need: ReadNeed) -> Result<()> {
        self.waiters.enqueue(reader, need)
    }

    /// Removes a reader. Returns `true` if the reader was waiting; then no action will name it.
    /// Returns `false` if a poll has released or failed the reader, if the next poll will do so, or
    /// if the reader was never added.
    pub fn cancel(&mut self, reader: T) -> bool {
        self.waiters.cancel(reader, |readers| self.mode.sweep(readers))
    }

    /// Reports that raft has answered a [`ReadIndexAction::RequestReadIndex`] with a read index, or
    /// that the entry of a [`ReadIndexAction::Propose`] was applied at this index.
    pub fn on_answer(&mut self, context: u64, index: u64) {
        self.mode.on_answer(&mut self.waiters, context, index);
    }

    /// Reports the leader, as far as this member knows it, and the term.
    pub fn on_leader(&mut self, leader: Option<u64>, term: u64) {
        self.mode.on_leader(&mut self.waiters, leader, term);
    }

    /// Reports that this member, as the leader, has started to transfer leadership.
    pub fn on_transfer_started(&mut self) {
        self.mode.on_transfer_started();
    }

    /// Reports that an entry of the current term is committed for the first time.
    pub fn on_first_commit(&mut self) {
        self.mode.on_first_commit();
    }

    /// Reports raft's commit index.
    pub fn on_committed(&mut self, index: u64) {
        self.mode.on_committed(index);
    }

    /// Reports that this member has applied the log up to this index.
    pub fn on_applied(&mut self, index: u64) {
        self.waiters.set_applied_index(index);
    }

    /// Returns the actions to carry out now.
    pub fn poll(&mut self, now: Duration, ids: &mut RequestIdGenerator) -> Vec<ReadIndexAction<T>> {
        let reading = self.waiters.clock.read(now);
        self.mode.advance(&mut self.waiters, reading, ids);
        std::mem::take(&mut self.waiters.actions)
    }

    /// Returns the time of the next poll if nothing happens before it, or `None` if no poll is
    /// needed.
    pub fn next_poll(&self) -> Option<Duration> {
        let next = self.mode.next_advance(&self.waiters)?;
        Some(self.waiters.clock.to_caller_time(next))
    }

    /// Returns the lowest index that must be applied before a waiting reader is released, or `None`
    /// if no reader waits for an index. Until this index is applied, the calls of
    /// [`on_applied`](ReadIndexQueue::on_applied) may be delayed.
    pub fn awaited_index(&self) -> Option<u64> {
        self.waiters.awaited_index()
    }

    pub fn metrics(&self) -> ReadIndexMetrics {
        self.waiters.metrics()
    }
}
