//! The contract between a ReadIndex queue, in any mode, and the thread that owns it.
//!
//! The owner should be the thread that drives raft. It polls after each batch of inputs, and also
//! at [`next_poll`](super::ReadIndexQueue::next_poll) if nothing happens before then. A poll
//! returns the actions to carry out.
//!
//! * The owner carries out the actions in their order, after the poll that returned them.
//! * If raft reports several events at once, the owner passes on a change of leader before
//!   responses to reads.
//! * The owner calls `on_committed` before it sends messages that carry the new commit index: a
//!   lease read must know of every write that any member could have acknowledged.
//! * The owner calls `on_applied` when readers can see the applied entries.
//! * The owner passes the time `now` to each poll. It reads `now` after the last reader was added
//!   and before the poll, from a clock that goes forward; `clock.rs` handles a step back. Under a
//!   lease a reader is released because no other member could lead at `now`. So `now` must be a
//!   time at which the reader was already waiting.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;

use super::error::ReadIndexError;

/// The caller's name for a waiting reader.
pub trait Reader: Copy + Eq + Hash + Debug + Send + 'static {}

impl<T: Copy + Eq + Hash + Debug + Send + 'static> Reader for T {}

/// The condition that a reader waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadNeed {
    /// This member has applied everything that was acknowledged before the reader arrived.
    Applied,
    /// The read index is known. In mode [`ReadIndex`](ReadMode::ReadIndex), a quorum has confirmed
    /// it after the reader arrived. In mode [`Lease`](ReadMode::Lease), a valid lease may replace
    /// the quorum. If this member leads, both prove that it led at some time after the reader
    /// arrived. The member may not have applied all entries up to the read index.
    Confirmed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadIndexAction<T> {
    /// Send a ReadIndex request to raft. raft may drop it without a response.
    RequestReadIndex {
        /// The id of the attempt; raft gets it as eight bytes in big endian.
        context: u64,
        /// 1 for the first attempt of a ReadIndex request, more for a retry.
        attempt: u32,
    },
    /// Propose an entry for this read. When the entry is applied, call
    /// [`on_answer`](super::ReadIndexQueue::on_answer).
    Propose {
        /// The entry's id.
        context: u64,
        reader: T,
    },
    /// These readers may read. A store that has applied the log up to `index` is fresh enough for
    /// each of them. This member has applied the log up to `index`, unless the readers need only a
    /// [confirmation](ReadNeed::Confirmed).
    Release {
        index: u64,
        /// The readers, in the order of their arrival.
        readers: Vec<T>,
    },
    Fail {
        error: ReadIndexError,
        /// The readers, in the order of their arrival.
        readers: Vec<T>,
    },
}

/// How a member decides when a read may use its store. Reads are linearizable in all modes except
/// [`Serializable`](ReadMode::Serializable).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadMode {
    /// Each read is an entry of the log, as in etcd 3.0.
    Log,
    /// One ReadIndex request serves all waiting readers, as in etcd since 3.1.
    ReadIndex,
    /// The leader answers by itself while it knows that no other member can lead.
    Lease,
    /// No other member is contacted, so reads are not linearizable.
    Serializable,
}

impl ReadMode {
    /// All modes, oldest first.
    pub const ALL: [ReadMode; 4] =
        [ReadMode::Log, ReadMode::ReadIndex, ReadMode::Lease, ReadMode::Serializable];

    /// Returns the name of the mode on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ReadMode::Log => "log",
            ReadMode::ReadIndex => "read-index",
            ReadMode::Lease => "lease",
            ReadMode::Serializable => "serializable",
        }
    }
}

/// Settings that do not change while a member runs.
#[derive(Debug, Clone, Copy)]
pub struct ReadIndexConfig {
    pub member_id: u64,
    /// Minimum time that a follower waits without messages from its leader before it campaigns or
    /// votes for another member.
    pub election_timeout: Duration,
    /// The length of raft's tick. A follower counts ticks, and the first tick may happen
    /// immediately. So a follower may wait up to a tick less than the election time-out.
    pub tick_interval: Duration,
    /// Maximum time by which the clocks of two members may drift apart during an election time-out.
    /// A lease is shorter by this time.
    pub drift_margin: Duration,
    pub readers_max: usize,
}

impl ReadIndexConfig {
    /// Returns etcd's defaults: an election time-out of a second, and ticks of 100 ms. The margin
    /// is a tenth of the time-out, and 65,536 readers may wait.
    pub fn new(member: u64) -> ReadIndexConfig {
        ReadIndexConfig {
            member_id: member,
            election_timeout: Duration::from_secs(1),
            tick_interval: Duration::from_millis(100),
            drift_margin: Duration::from_millis(100),
            readers_max: 1 << 16,
        }
    }

    /// Returns the time-out of a ReadIndex request or an entry: etcd's five seconds plus two
    /// election time-outs.
    pub fn request_timeout(&self) -> Duration {
        Duration::from_secs(5).saturating_add(self.election_timeout.saturating_mul(2))
    }

    /// Returns the length of a lease. A lease starts when its ReadIndex request is sent.
    pub fn lease_length(&self) -> Duration {
        self.election_timeout.saturating_sub(self.tick_interval).saturating_sub(self.drift_margin)
    }
}

/// Counts of a ReadIndex queue.
///
/// etcd's `etcd_server_slow_read_indexes_total` is the sum of `late_answers` and `timed_out`.
/// etcd's `etcd_server_read_indexes_failed_total` equals `leader_changed`. Clearlane's metric with
/// that name counts failed readers instead, whatever the error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadIndexMetrics {
    pub waiting: usize,
    /// Number of list entries for waiting readers, and for readers that gave up and have not been
    /// swept yet. It is at most twice [`readers_max`](ReadIndexConfig::readers_max) plus 64. Right
    /// after a reader gave up, it is at most twice the number of waiting readers plus 64.
    pub queue_entries: usize,
    /// Number of ReadIndex requests.
    pub requests: u64,
    /// Number of attempts of these requests, including retries.
    pub attempts: u64,
    pub proposed_entries: u64,
    /// Number of responses that belong to no open attempt.
    pub late_answers: u64,
    /// Number of ReadIndex requests, or entries, that got no response in time.
    pub timed_out: u64,
    /// Number of ReadIndex requests that ended with a change of leader.
    pub leader_changed: u64,
    /// Number of times that a lease served the queue without a ReadIndex request.
    pub lease_reads: u64,
    pub released: u64,
    pub failed: u64,
}
