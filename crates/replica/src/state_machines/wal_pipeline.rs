//! Appends in flight to the write-ahead log, and the actions that must wait until each is on disk:
//!
//! ```text
//!   append                    report it to raft, which then sends the messages that depend on it
//!   raft snapshot installed   let the apply loop install its store, and report the append to raft
//!   own snapshot record       remove entries and segments that are no longer needed
//! ```

use std::collections::VecDeque;

use clearlane_raft::{LogPosition, ReadyAppend};
use clearlane_wal::Append;
use clearlane_wal::group_commit::{AppendNumber, Batch, BatchResult, GroupCommit};
use clearlane_wal::{Result, WalSnapshot};

#[derive(Debug, Default)]
pub(super) struct WalPipeline {
    group: GroupCommit,
    after_sync: VecDeque<(AppendNumber, AfterSync)>,
    /// Indexes of the raft snapshots that the apply loop is installing.
    installing: VecDeque<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AfterSync {
    /// Report append `number` to raft as durable. If `install` is not `None`, let the apply loop
    /// install the raft snapshot at this position.
    Appended { number: u64, install: Option<LogPosition> },
    /// Release the entries up to the position from raft's memory, except the newest ones, which
    /// slow followers may need. Purge segments that a start from the position does not need.
    Recorded(LogPosition),
}

impl WalPipeline {
    pub(super) fn append(&mut self, append: ReadyAppend) {
        let ReadyAppend { number, install_snapshot: install, entries, hard_state, must_sync } =
            append;
        let snapshot = install.as_ref().map(snapshot_record);
        let ticket = self.group.submit(Append { snapshot, entries, hard_state });
        // Raft need not know when an append without `must_sync` is durable.
        if must_sync {
            self.after_sync.push_back((ticket, AfterSync::Appended { number, install }));
        }
    }

    /// Appends a snapshot record: this member's store is durable at the position.
    pub(super) fn record_snapshot(&mut self, position: LogPosition) {
        let snapshot = Some(snapshot_record(&position));
        let ticket = self.group.submit(Append { snapshot, ..Append::default() });
        self.after_sync.push_back((ticket, AfterSync::Recorded(position)));
    }

    /// Returns the next batch, or `None` if a batch is being written or there is nothing to write.
    pub(super) fn next_batch(&mut self) -> Option<Batch> {
        self.group.take_batch()
    }

    /// Returns whether raft waits for an append to be durable.
    pub(super) fn is_awaited(&self) -> bool {
        let mut waiting = self.after_sync.iter();
        waiting.any(|(_, after)| matches!(after, AfterSync::Appended { .. }))
    }

    /// Processes the result of a batch. Returns the actions whose appends are durable.
    pub(super) fn finish_batch(&mut self, written: BatchResult) -> Result<Vec<AfterSync>> {
        let durable = self.group.finish_batch(written)?;
        let count = self.after_sync.partition_point(|(ticket, _)| *ticket <= durable);
        let done: Vec<_> = self.after_sync.drain(..count).map(|(_, behind)| behind).collect();
        self.installing.extend(done.iter().filter_map(install_index));
        Ok(done)
    }

    pub(super) fn finish_install(&mut self, index: u64) {
        self.installing.retain(|installing| *installing > index);
    }

    pub(super) fn pending_installs(&self) -> impl Iterator<Item = u64> {
        let written = self.after_sync.iter().filter_map(|(_, behind)| install_index(behind));
        self.installing.iter().copied().chain(written)
    }
}

fn install_index(behind: &AfterSync) -> Option<u64> {
    match behind {
        AfterSync::Appended { install, .. } => install.as_ref().map(|position| position.index),
        AfterSync::Recorded(_) => None,
    }
}

pub(super) fn snapshot_record(position: &LogPosition) -> WalSnapshot {
    let conf_state = Some(position.conf_state.clone());
    WalSnapshot { index: position.index, term: position.term, conf_state }
}
