//! The contract between a ReadIndex queue, in any mode, and the thread that owns it.
//!
//! That is best the thread that drives raft. After each batch of inputs it polls, and again at
//! [`next_poll`](ReadIndexQueue::next_poll) if nothing happens before; a poll returns what is to be
//! done.
//!
//! * Actions are carried out in their order, and not before the poll that gave them has returned.
//! * Of what raft reports at once, a change of leader is passed on before answers to reads.
//! * [`ReadIndexEvent::Committed`] is passed on before the messages with that commit index leave: a
//!   lease read must know what any member could have acknowledged.
//! * [`ReadIndexEvent::Applied`] is passed on when readers can see what was applied.
//! * `now` is read after the last reader was added and before the poll, from a clock that goes
//!   forward; a step back is survived (`clock.rs`). Under a lease a reader is released because no
//!   other member could lead at `now`, which must be a time at which the reader was there.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;

use super::error::{ReadIndexError, Result};
use super::ids::RequestIdGenerator;

/// The name that the caller gives to a waiting reader.
pub trait Reader: Copy + Eq + Hash + Debug + Send + 'static {}

impl<T: Copy + Eq + Hash + Debug + Send + 'static> Reader for T {}

/// Holds reads back until what they would see is fresh enough.
pub trait ReadIndexQueue<T: Reader>: Debug + Send {
    /// A reader comes. It will be in one [`ReadIndexAction::Release`] or [`ReadIndexAction::Fail`],
    /// unless it is cancelled.
    fn enqueue(&mut self, reader: T) -> Result<()>;

    /// The reader gives up. If it was waiting, no action will name it. If not, the answer is under
    /// way: an action that names it was polled, or will be by the next poll.
    fn cancel(&mut self, reader: T) -> bool;

    /// Something happened.
    fn handle_event(&mut self, event: ReadIndexEvent);

    /// What is to be done now.
    fn poll(&mut self, now: Duration, ids: &mut RequestIdGenerator) -> Vec<ReadIndexAction<T>>;

    /// When to poll again if nothing happens before.
    fn next_poll(&self) -> Option<Duration>;

    /// The least index that a reader waits for this member to apply, if one does.
    /// [`ReadIndexEvent::Applied`] may be told late as long as it says less.
    fn awaited_index(&self) -> Option<u64>;

    /// What was done so far.
    fn metrics(&self) -> ReadIndexMetrics;
}

/// What the owner reports to the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadIndexEvent {
    /// raft answers a question of [`ReadIndexAction::RequestReadIndex`], or the entry of an
    /// [`ReadIndexAction::Propose`] was applied.
    Answered {
        /// Of the question or the entry.
        context: u64,
        /// How far a reader must see, or where the entry lies in the log.
        index: u64,
    },
    /// The leader, as far as this member knows.
    Leader {
        /// `None` if none is known.
        leader: Option<u64>,
        /// raft's term.
        term: u64,
    },
    /// This member, as the leader, has been told to make another one leader.
    TransferStarted,
    /// An entry of the current term is committed for the first time.
    FirstCommit,
    /// raft's commit index.
    Committed {
        /// Of the last entry that is committed.
        index: u64,
    },
    /// This member has applied the log up to there.
    Applied {
        /// Of the last entry that is applied.
        index: u64,
    },
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadIndexAction<T> {
    /// Ask raft for a read index. raft may drop the question without a word.
    RequestReadIndex {
        /// The question's id, eight bytes in big endian for raft.
        context: u64,
        /// 1 for the first question of a round, more for a retry.
        attempt: u32,
    },
    /// Propose an entry for this read, and tell when it is applied.
    Propose {
        /// The entry's id.
        context: u64,
        /// The reader.
        reader: T,
    },
    /// These may read: this member has applied `index`, which is fresh enough for each of them.
    Release {
        /// What they waited for.
        index: u64,
        /// In the order in which they came.
        readers: Vec<T>,
    },
    /// These may not.
    Fail {
        /// What to tell them.
        error: ReadIndexError,
        /// In the order in which they came.
        readers: Vec<T>,
    },
}

/// How a linearizable read is made one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadMode {
    /// Each read is an entry of the log, as in etcd 3.0.
    Log,
    /// A round of ReadIndex serves all waiting readers, as in etcd from 3.1 on.
    ReadIndex,
    /// The leader answers by itself while it knows that no other member can lead.
    Lease,
    /// No member is asked: what reads do that do not want to be linearizable.
    Serializable,
}

impl ReadMode {
    /// All of them, oldest first.
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

/// What does not change while a member runs.
#[derive(Debug, Clone, Copy)]
pub struct ReadIndexConfig {
    /// This member, as raft names leaders.
    pub member_id: u64,
    /// How long a follower that hears nothing from its leader waits, at least.
    pub election_timeout: Duration,
    /// How often raft is told that time has passed. A follower counts ticks, and the first may come
    /// at once; so it waits up to a tick less than the election time-out.
    pub tick_interval: Duration,
    /// What the clocks of two members may differ by over an election time-out, and a lease is
    /// shorter.
    pub drift_margin: Duration,
    /// How many readers may wait.
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

    /// How long a round, or an entry, may go unanswered: etcd's five seconds, and two elections.
    pub fn request_timeout(&self) -> Duration {
        Duration::from_secs(5).saturating_add(self.election_timeout.saturating_mul(2))
    }

    /// How long a lease lasts, from when the round was sent that gave it.
    pub fn lease_length(&self) -> Duration {
        self.election_timeout.saturating_sub(self.tick_interval).saturating_sub(self.drift_margin)
    }
}

/// What a ReadIndex queue has done, and how many readers wait.
///
/// etcd's `etcd_server_slow_read_indexes_total` is `late_answers` and `timed_out`, its
/// `etcd_server_read_indexes_failed_total` is `leader_changed`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadIndexMetrics {
    /// Readers that wait.
    pub waiting: usize,
    /// Places that they take, and that departed readers still take. At most twice as many as may
    /// wait, and a few; right after a reader gave up, twice as many as do wait.
    pub queue_entries: usize,
    /// Rounds that were begun.
    pub requests: u64,
    /// Questions that were asked in them, retries included.
    pub attempts: u64,
    /// Entries that were proposed.
    pub proposed_entries: u64,
    /// Answers to no question that is open.
    pub late_answers: u64,
    /// Rounds, or entries, that were not answered in time.
    pub timed_out: u64,
    /// Rounds that ended with a change of leader.
    pub leader_changed: u64,
    /// Times that the queue was served by a lease, without a round.
    pub lease_reads: u64,
    /// Readers that were let go.
    pub released: u64,
    /// Readers that were refused after they had waited.
    pub failed: u64,
}
