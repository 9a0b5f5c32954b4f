//! Which reads may use this member's store, and after which entry of the log.
//!
//! A linearizable read must see every write that was acknowledged before it began. A
//! [`ReadIndexQueue`] turns reads into questions to raft, few for many reads, and releases each
//! read when this member has applied the log up to an index that covers those writes.
//! [`interface`] is its contract, [`ReadMode`] the four ways to find that index.
//!
//! No thread, clock or network: the caller brings them, so a simulated cluster runs the same code.
//! The queue uses contexts and indexes, and does not know what carries them. All modes rest on
//! [`ids`], numbers that are not used twice, and share the waiting, the giving up and the time.
//!
//! etcd: the read loop of `v3_server.go`. Learners and `hasleader` are the server's.
//! `docs/read-index.md` has the modes and why they are correct.

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
pub use interface::{ReadIndexAction, ReadIndexConfig, ReadIndexMetrics, ReadMode, Reader};

use log_read::LogRead;
use mode::{Mode, SerializableRead};
use quorum_read::QuorumRead;
use waiters::Waiters;

/// Holds reads back until what they would see is fresh enough.
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

    /// The reader will be in one [`ReadIndexAction::Release`] or [`ReadIndexAction::Fail`],
    /// unless it is cancelled.
    pub fn enqueue(&mut self, reader: T) -> Result<()> {
        self.waiters.enqueue(reader)
    }

    /// `true`: it was waiting, and no action will name it. `false`: an action that names it was
    /// polled, or will be by the next poll.
    pub fn cancel(&mut self, reader: T) -> bool {
        self.waiters.cancel(reader, |readers| self.mode.sweep(readers))
    }

    /// raft answers a [`ReadIndexAction::RequestReadIndex`] with a read index, or the entry of a
    /// [`ReadIndexAction::Propose`] was applied at this index.
    pub fn on_answer(&mut self, context: u64, index: u64) {
        self.mode.on_answer(&mut self.waiters, context, index);
    }

    /// The leader, as far as this member knows.
    pub fn on_leader(&mut self, leader: Option<u64>, term: u64) {
        self.mode.on_leader(&mut self.waiters, leader, term);
    }

    /// This member, as the leader, has begun to transfer leadership.
    pub fn on_transfer_started(&mut self) {
        self.mode.on_transfer_started();
    }

    /// An entry of the current term is committed for the first time.
    pub fn on_first_commit(&mut self) {
        self.mode.on_first_commit();
    }

    /// raft's commit index.
    pub fn on_committed(&mut self, index: u64) {
        self.mode.on_committed(index);
    }

    /// This member has applied the log up to there.
    pub fn on_applied(&mut self, index: u64) {
        self.waiters.set_applied_index(index);
    }

    /// Actions to be carried out now.
    pub fn poll(&mut self, now: Duration, ids: &mut RequestIdGenerator) -> Vec<ReadIndexAction<T>> {
        let reading = self.waiters.clock.read(now);
        self.mode.advance(&mut self.waiters, reading, ids);
        std::mem::take(&mut self.waiters.actions)
    }

    /// When to poll again if nothing happens before.
    pub fn next_poll(&self) -> Option<Duration> {
        let next = self.mode.next_advance(&self.waiters)?;
        Some(self.waiters.clock.to_caller_time(next))
    }

    /// The least index that a reader waits for this member to apply.
    /// [`on_applied`](ReadIndexQueue::on_applied) may be called late while its index is less.
    pub fn awaited_index(&self) -> Option<u64> {
        self.waiters.awaited_index()
    }

    pub fn metrics(&self) -> ReadIndexMetrics {
        self.waiters.metrics()
    }
}
