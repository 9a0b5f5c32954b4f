//! The contract between a ReadIndex queue, in any mode, and the thread that owns it.
//!
//! The owner is best the thread that drives raft. After each batch of inputs it polls, and again at
//! [`next_poll`](super::ReadIndexQueue::next_poll) if nothing happens before; a poll returns the
//! actions to carry out.
//!
//! * Actions are carried out in their order, and not before the poll that gave them has returned.
//! * Of what raft reports at once, a change of leader is passed on before answers to reads.
//! * `on_committed` is called before the messages with that commit index leave: a lease read must
//!   know what any member could have acknowledged.
//! * `on_applied` is called when readers can see what was applied.
//! * `now` is read after the last reader was added and before the poll, from a clock that goes
//!   forward; a step back is survived (`clock.rs`). Under a lease a reader is released because no
//!   other member could lead at `now`, which must be a time at which the reader was there.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;

use super::error::ReadIndexError;

/// The caller's name of a waiting reader.
pub trait Reader: Copy + Eq + Hash + Debug + Send + 'static {}

impl<T: Copy + Eq + Hash + Debug + Send + 'static> Reader for T {}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadIndexAction<T> {
    /// Ask raft for a read index. raft may drop the question without an answer.
    RequestReadIndex {
        /// Eight bytes in big endian for raft.
        context: u64,
        /// 1 for the first question of a round, more for a retry.
        attempt: u32,
    },
    /// Propose an entry for this read, and report when it is applied.
    Propose {
        /// The entry's id.
        context: u64,
        reader: T,
    },
    /// These may read: this member has applied `index`, which is fresh enough for each of them.
    Release {
        index: u64,
        /// In the order in which they came.
        readers: Vec<T>,
    },
    Fail {
        error: ReadIndexError,
        /// In the order in which they came.
        readers: Vec<T>,
    },
}

/// How a read is made linearizable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadMode {
    /// Each read is an entry of the log, as in etcd 3.0.
    Log,
    /// A round of ReadIndex serves all waiting readers, as in etcd from 3.1 on.
    ReadIndex,
    /// The leader answers by itself while it knows that no other member can lead.
    Lease,
    /// No member is asked: reads are not linearizable.
    Serializable,
}

impl ReadMode {
    /// Oldest first.
    pub const ALL: [ReadMode; 4] =
        [ReadMode::Log, ReadMode::ReadIndex, ReadMode::Lease, ReadMode::Serializable];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ReadMode::Log => "log",
            ReadMode::ReadIndex => "read-index",
            ReadMode::Lease => "lease",
            ReadMode::Serializable => "serializable",
        }
    }
}

/// Fixed while a member runs.
#[derive(Debug, Clone, Copy)]
pub struct ReadIndexConfig {
    pub member_id: u64,
    /// The least time that a follower without messages from its leader waits.
    pub election_timeout: Duration,
    /// The length of raft's tick. A follower counts ticks, and the first may come
    /// at once; so it waits up to a tick less than the election time-out.
    pub tick_interval: Duration,
    /// The clocks of two members may differ by this over an election time-out; a lease is
    /// shorter by it.
    pub drift_margin: Duration,
    pub readers_max: usize,
}

impl ReadIndexConfig {
    /// etcd's defaults: an election time-out of a second, ticks of 100 ms. The margin is a tenth of
    /// the time-out, and 65,536 readers may wait.
    pub fn new(member: u64) -> ReadIndexConfig {
        ReadIndexConfig {
            member_id: member,
            election_timeout: Duration::from_secs(1),
            tick_interval: Duration::from_millis(100),
            drift_margin: Duration::from_millis(100),
            readers_max: 1 << 16,
        }
    }

    /// For a round or an entry: etcd's five seconds, and two elections.
    pub fn request_timeout(&self) -> Duration {
        Duration::from_secs(5).saturating_add(self.election_timeout.saturating_mul(2))
    }

    /// From when the round was sent that gave the lease.
    pub fn lease_length(&self) -> Duration {
        self.election_timeout.saturating_sub(self.tick_interval).saturating_sub(self.drift_margin)
    }
}

/// Counts of a ReadIndex queue.
///
/// etcd's `etcd_server_slow_read_indexes_total` is `late_answers` and `timed_out`, its
/// `etcd_server_read_indexes_failed_total` is `leader_changed`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadIndexMetrics {
    pub waiting: usize,
    /// Entries of waiting and of departed readers. At most twice as many as may
    /// wait, and a few; right after a reader gave up, twice as many as do wait.
    pub queue_entries: usize,
    /// Rounds that were begun.
    pub requests: u64,
    /// Questions in these rounds, retries included.
    pub attempts: u64,
    pub proposed_entries: u64,
    /// Answers to no question that is open.
    pub late_answers: u64,
    /// Rounds, or entries, that were not answered in time.
    pub timed_out: u64,
    /// Rounds that ended with a change of leader.
    pub leader_changed: u64,
    /// Times that the queue was served by a lease, without a round.
    pub lease_reads: u64,
    pub released: u64,
    pub failed: u64,
}
