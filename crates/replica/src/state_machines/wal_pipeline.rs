//! Appends on their way to the write-ahead log, and what must wait until each is on disk:
//!
//! ```text
//!   append            raft is told, and speaks of it
//!   copy installed    the copy takes the store's place; raft is told when it has
//!   own snapshot      entries and segments below it may go
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
    /// Indexes of the snapshots that the apply loop is installing.
    installing: VecDeque<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AfterSync {
    /// Raft is told that append `number` is durable, and the apply loop may install a snapshot.
    Appended { number: u64, install: Option<LogPosition> },
    /// Entries below the position may be removed.
    Recorded(LogPosition),
}

impl WalPipeline {
    pub(super) fn append(&mut self, append: ReadyAppend) {
        let ReadyAppend { number, install_snapshot: install, entries, hard_state, must_sync } =
            append;
        let snapshot = install.as_ref().map(snapshot_record);
        let ticket = self.group.submit(Append { snapshot, entries, hard_state });
        // An append without `must_sync` is one that no request waits for.
        if must_sync {
            self.after_sync.push_back((ticket, AfterSync::Appended { number, install }));
        }
    }

    /// Records that this member's store is durable up to a position.
    pub(super) fn record_snapshot(&mut self, position: LogPosition) {
        let snapshot = Some(snapshot_record(&position));
        let ticket = self.group.submit(Append { snapshot, ..Append::default() });
        self.after_sync.push_back((ticket, AfterSync::Recorded(position)));
    }

    /// `None` while a batch is being written.
    pub(super) fn next_batch(&mut self) -> Option<Batch> {
        self.group.take_batch()
    }

    /// Whether raft waits for an append to be durable.
    pub(super) fn is_awaited(&self) -> bool {
        let mut waiting = self.after_sync.iter();
        waiting.any(|(_, after)| matches!(after, AfterSync::Appended { .. }))
    }

    /// Returns what is to be done now.
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
