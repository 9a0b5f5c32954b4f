//! Configuration and recovered state of a member.

use raft::ReadOnlyOption;

use super::check::{self, NUMBER_MAX};
use super::error::{Error, Result};
use crate::convert::RaftForm as _;
use crate::log::{LogPosition, LogStorage};
use clearlane_wal::{Entry, HardState};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaftNodeConfig {
    /// Not 0.
    pub id: u64,
    /// A follower's time-out before it campaigns is drawn from one to two times this number of
    /// ticks.
    pub election_ticks: usize,
    pub heartbeat_ticks: usize,
    /// Per follower.
    pub inflight_max: usize,
    /// For entries of one message; a single entry may be larger.
    pub message_bytes_max: u64,
    /// Bytes that are proposed and not committed; forwarded and not sent; taken from the
    /// leader and not on disk.
    pub uncommitted_bytes_max: u64,
    /// Entries that are proposed and not committed: small ones cost more than their bytes.
    pub uncommitted_entries_max: u64,
    /// Bytes of entries in one [`Ready`](super::Ready) to be applied.
    pub committed_bytes_max: u64,
    /// Read index requests that wait for an answer.
    pub reads_max: usize,
    /// A follower's read index request counts as its acknowledgement of the leader: see
    /// `read_index_answer.rs`. etcd asks again.
    pub read_index_counts_as_ack: bool,
    /// For election time-outs, together with the id.
    pub seed: u64,
}

impl RaftNodeConfig {
    /// etcd's defaults, in ticks of 100 ms.
    pub fn new(id: u64, seed: u64) -> RaftNodeConfig {
        RaftNodeConfig {
            id,
            election_ticks: 10,
            heartbeat_ticks: 1,
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
            pre_vote: true,
            // Entries that are proposed in one turn leave in one message, not in one each.
            batch_append: true,
            max_uncommitted_size: self.uncommitted_bytes_max,
            max_committed_size_per_ready: self.committed_bytes_max,
            read_only_option: ReadOnlyOption::Safe,
            ..raft::Config::default()
        }
    }
}

/// What a member has found on its disk.
#[derive(Clone, Debug, Default)]
pub struct RecoveredState {
    pub store_position: LogPosition,
    pub hard_state: HardState,
    /// Without a gap. Those that the store has may be among them, for followers that are a little
    /// behind.
    pub entries: Vec<Entry>,
}

impl RecoveredState {
    /// An error if the parts do not fit together.
    pub(super) fn into_log(self) -> Result<LogStorage> {
        let RecoveredState { store_position: store, mut hard_state, mut entries } = self;
        let damaged = |words: String| Err(Error::Fatal(words));
        if let Err(words) = check::check_conf_state(&store.conf_state) {
            return damaged(format!("the store's members: {words}"));
        }
        if let Some(same) = entries.iter().find(|entry| entry.index == store.index)
            && same.term != store.term
        {
            let (index, term, own) = (store.index, store.term, same.term);
            return damaged(format!("entry {index} is of term {own}, the store's of {term}"));
        }
        // A log that ends before the store has no connection to what will come.
        if entries.last().is_none_or(|last| last.index < store.index) {
            entries.clear();
        }
        let begin = match entries.first() {
            Some(first) if first.index == 1 => (0, 0),
            // The entry before it is not known, so it is itself the one before the rest.
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
        // A commit index alone is not synced: the store may know of more.
        hard_state.commit = hard_state.commit.max(store.index);
        if hard_state.commit > before.0 {
            let commit = hard_state.commit;
            return damaged(format!("{commit} is committed, and the log ends at {}", before.0));
        }
        // Entries are written before the state that names their term, and a power cut may come
        // between. In that term this member has sent nothing yet, for messages wait until both
        // are on disk.
        if hard_state.term < before.1 {
            (hard_state.term, hard_state.vote) = (before.1, 0);
        }
        if before.0 > NUMBER_MAX || hard_state.term > NUMBER_MAX {
            return damaged(format!("entry {}, term {}", before.0, hard_state.term));
        }
        let mut log = LogStorage::new(begin, store);
        log.append(&entries.iter().map(Entry::to_raft).collect::<Vec<_>>());
        log.hard_state = hard_state.to_raft();
        Ok(log)
    }
}
