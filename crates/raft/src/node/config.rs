//! The configuration and the recovered state of a member.

use raft::ReadOnlyOption;

use super::check::{self, NUMBER_MAX};
use super::error::{Error, Result};
use crate::convert::RaftForm as _;
use crate::log::{LogPosition, LogStorage};
use clearlane_wal::{Entry, HardState};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaftNodeConfig {
    /// The member's id, which is not 0.
    pub id: u64,
    /// The base of election time-outs, in ticks. The time-out after which a follower campaigns is a
    /// random number of ticks, from this number to less than twice this number.
    pub election_ticks: usize,
    pub heartbeat_ticks: usize,
    /// If true, a member first asks the other members whether they would vote for it. It campaigns
    /// only if a quorum would.
    pub pre_vote: bool,
    /// Maximum number of unacknowledged appends to one follower.
    pub inflight_max: usize,
    /// Maximum bytes of the entries in one message. A single entry may be larger.
    pub message_bytes_max: u64,
    /// Limit in bytes for each of three sums: entries that this leader has proposed and not
    /// committed; proposals that this follower has forwarded since the last
    /// [`Ready`](super::Ready); entries from the leader that are not on disk yet.
    pub uncommitted_bytes_max: u64,
    /// Maximum number of entries of a leader that are not committed, or not on its disk. A limit on
    /// bytes is not sufficient, because small entries cost more than their bytes.
    pub uncommitted_entries_max: u64,
    /// Maximum bytes of committed entries in one [`Ready`](super::Ready). A single entry may be
    /// larger.
    pub committed_bytes_max: u64,
    /// Maximum sum of three numbers: ReadIndex requests that wait for a response; results of
    /// ReadIndex requests that are not in a [`Ready`](super::Ready) yet; messages that are not in a
    /// `Ready` yet. At this limit a ReadIndex request fails.
    pub reads_max: usize,
    /// If true, the leader treats a follower's ReadIndex request as an acknowledgement by that
    /// follower: see `read_index_answer.rs`. etcd's leader sends heartbeats for every request.
    pub read_index_counts_as_ack: bool,
    /// The seed for election time-outs. It is combined with the member's id, so members with the
    /// same seed draw different time-outs.
    pub seed: u64,
}

impl RaftNodeConfig {
    /// Returns the defaults, for ticks of 100 ms. They are etcd's defaults, except the limits of
    /// the queues, which are Clearlane's own.
    pub fn new(id: u64, seed: u64) -> RaftNodeConfig {
        RaftNodeConfig {
            id,
            election_ticks: 10,
            heartbeat_ticks: 1,
            pre_vote: true,
            inflight_max: 512,
            message_bytes_max: 1 << 20,
            uncommitted_bytes_max: 64 << 20,
            uncommitted_entries_max: 1 << 16,
            committed_bytes_max: 8 << 20,
            reads_max: 4096,
            read_index_counts_as_ack: false,
            seed,
        }
    }

    pub(super) fn to_raft(self, applied: u64) -> raft::Config {
        raft::Config {
            id: self.id,
            election_tick: self.election_ticks,
            heartbeat_tick: self.heartbeat_ticks,
            applied,
            max_size_per_msg: self.message_bytes_max,
            max_inflight_msgs: self.inflight_max,
            check_quorum: true,
            pre_vote: self.pre_vote,
            // Entries that are proposed between two calls of `ready` are sent together, instead of
            // in one message each.
            batch_append: true,
            max_uncommitted_size: self.uncommitted_bytes_max,
            max_committed_size_per_ready: self.committed_bytes_max,
            read_only_option: ReadOnlyOption::Safe,
            ..raft::Config::default()
        }
    }
}

/// The state that a member finds on its disk at startup.
#[derive(Clone, Debug, Default)]
pub struct RecoveredState {
    pub store_position: LogPosition,
    pub hard_state: HardState,
    /// The entries of the log, without a gap. They may include older entries that the store already
    /// contains. The node keeps these older entries for followers that lag a little.
    pub entries: Vec<Entry>,
}

impl RecoveredState {
    /// Creates raft's log. Fails if the store, the hard state and the entries contradict each
    /// other.
    pub(super) fn into_log(self) -> Result<LogStorage> {
        let RecoveredState { store_position: store, mut hard_state, mut entries } = self;
        let damaged = |words: String| Err(Error::Fatal(words));
        if let Err(words) = check::check_conf_state(&store.conf_state) {
            return damaged(format!("invalid members in the store: {words}"));
        }
        if let Some(same) = entries.iter().find(|entry| entry.index == store.index)
            && same.term != store.term
        {
            let (index, term, own) = (store.index, store.term, same.term);
            return damaged(format!(
                "entry {index} has term {own} in the log, but term {term} in the store"
            ));
        }
        // If the log ends before the store's position, its entries are not used, because there
        // would be a gap before the next entry.
        if entries.last().is_none_or(|last| last.index < store.index) {
            entries.clear();
        }
        let begin = match entries.first() {
            Some(first) if first.index == 1 => (0, 0),
            // The term before the first entry is unknown. So the first entry is dropped, and its
            // index and term describe the position before the rest.
            Some(first) if (2..=store.index).contains(&first.index) && first.term > 0 => {
                let first = entries.remove(0);
                (first.index, first.term)
            }
            _ => (store.index, store.term),
        };
        let mut before = begin;
        for entry in &entries {
            if entry.index != before.0 + 1 || entry.term < before.1.max(1) {
                let (index, term) = (entry.index, entry.term);
                return damaged(format!("entry {index}@{term} follows {}@{}", before.0, before.1));
            }
            before = (entry.index, entry.term);
        }
        // A change of only the commit index is not synced, so the store may be ahead of the saved
        // commit index.
        hard_state.commit = hard_state.commit.max(store.index);
        if hard_state.commit > before.0 {
            let commit = hard_state.commit;
            return damaged(format!(
                "entry {commit} is committed, but the log ends at entry {}",
                before.0
            ));
        }
        // Entries are written before the hard state that has their term, and a power failure may
        // happen between the two. This member has not voted or acknowledged entries in that term
        // yet, because such messages wait until both are on disk.
        if hard_state.term < before.1 {
            (hard_state.term, hard_state.vote) = (before.1, 0);
        }
        if before.0 > NUMBER_MAX || hard_state.term > NUMBER_MAX {
            return damaged(format!(
                "entry {} or term {} is out of range",
                before.0, hard_state.term
            ));
        }
        let mut log = LogStorage::new(begin, store);
        log.append(&entries.iter().map(Entry::to_raft).collect::<Vec<_>>());
        log.hard_state = hard_state.to_raft();
        Ok(log)
    }
}
