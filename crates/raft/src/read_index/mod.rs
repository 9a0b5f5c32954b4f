//! How fresh is fresh enough? Which reads may use this member's store, and after which entry of the log.
//!
//! # The problem
//!
//! Every member has a copy of the store, and every copy lags behind the log by some entries. A client
//! that has written, and then reads through another member, or was informed by another client that there is
//! something new, must not be shown the past: a read must see every write that was acknowledged before
//! the read began. That is called linearizable.
//!
//! Even the leader cannot just look. It may have been deposed without knowing it:
//!
//! ```text
//!   member 1   leader of term 2 ─── cut off ──────────────────────── "I lead, x is 1"
//!   member 2   ──────────────────── elected in term 3 ── x=2 acknowledged
//!   client                                                   read x: must not be answered by 1
//! ```
//!
//! # The idea
//!
//! A *barrier* stands in front of the store. It turns reads into questions to raft, few for many
//! reads, and says of each read when it may go on: once this member has applied the log up to an index
//! that covers everything acknowledged before the read came. What the read then sees is as fresh or
//! fresher.
//!
//! | mode | a read costs | and waits for | is wrong if |
//! |---|---|---|---|
//! | `log` | an entry, a share in a sync | a commit | never |
//! | `read-index` | a share in a round of heartbeats | 1.5 round trips | never |
//! | `lease` | next to nothing, at the leader | nothing, mostly | clocks drift |
//! | `serializable` | nothing | nothing | it was asked to be fresh |
//!
//! # The parts, in reading order
//!
//! * [`ids`]: numbers that are never used twice. All of what follows leans on them.
//! * [`interface`]: what a barrier is told and what it answers. No thread, no clock, no network: the
//!   caller brings all three, so that a simulated cluster runs the same code as a server.
//! * `round`: a question to raft that is asked until it is answered.
//! * `read_index`, `log_read`, `lease_read`, `serializable`: the modes, each with its story on top.
//! * `room`, `readers`, `clock`: waiting, giving up, and time, as all modes need them.
//!
//! # What is left out
//!
//! * How many lag behind (etcd refuses writes when commit and apply are too far apart): the member's.
//! * Learners, which may only read serializable, and clients that insist on a leader (`hasleader`):
//!   the server's, for both are decided before a read gets here.
//! * raft. A ReadIndex queue uses contexts and indexes, and does not know what carries them.
//!
//! # Where a read goes next
//!
//! Up, to the member, which checks whether this user may see what was asked for, and then down to the
//! store. It comes from the member, too.

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
    /// A barrier of this mode.
    pub fn new_queue<T: Reader>(self, config: ReadIndexConfig) -> Box<dyn ReadIndexQueue<T>> {
        match self {
            ReadMode::Log => Box::new(LogRead::new(config)),
            ReadMode::ReadIndex => Box::new(QuorumRead::new(config)),
            ReadMode::Lease => Box::new(LeaseRead::new(config)),
            ReadMode::Serializable => Box::new(SerializableRead::new(config)),
        }
    }
}
