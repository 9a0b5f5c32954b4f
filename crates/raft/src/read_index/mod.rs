//! Which reads may use this member's store, and after which entry of the log.
//!
//! A linearizable read must see every write that was acknowledged before it began. A *ReadIndex
//! queue* turns reads into questions to raft, few for many reads, and releases each read when this
//! member has applied the log up to an index that covers those writes. [`interface`] is its
//! contract, [`ReadMode`] the four ways to find that index.
//!
//! No thread, clock or network: the caller brings them, so a simulated cluster runs the same code.
//! The queue uses contexts and indexes, and does not know what carries them. All modes rest on
//! [`ids`], numbers that are not used twice, and share the waiting, the giving up and the time.
//!
//! etcd: the read loop of `v3_server.go`. Learners, `hasleader` and a member that lags too far are
//! the server's. `docs/read-index.md` has the modes and why they are correct.

pub mod ids;
pub mod interface;
mod error;
mod clock;
mod readers;
mod waiters;
mod request;
mod quorum_read;
mod log_read;
mod lease_read;
mod serializable;

pub use error::{ReadIndexError, Result};
pub use ids::RequestIdGenerator;
pub use interface::{
    ReadIndexAction, ReadIndexConfig, ReadIndexEvent, ReadIndexMetrics, ReadIndexQueue, ReadMode,
    Reader,
};

use lease_read::LeaseRead;
use log_read::LogRead;
use quorum_read::QuorumRead;
use serializable::SerializableRead;

impl ReadMode {
    pub fn new_queue<T: Reader>(self, config: ReadIndexConfig) -> Box<dyn ReadIndexQueue<T>> {
        match self {
            ReadMode::Log => Box::new(LogRead::new(config)),
            ReadMode::ReadIndex => Box::new(QuorumRead::new(config)),
            ReadMode::Lease => Box::new(LeaseRead::new(config)),
            ReadMode::Serializable => Box::new(SerializableRead::new(config)),
        }
    }
}
