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
    durable: AppendNumber,
    after_sync: VecDeque<(AppendNumber, AfterSync)>,
    /// Indexes of the snapshots that the apply loop is installing.
    installing: VecDeque<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AfterSync {
    /// Raft is told that append `number` is durable.
    Appended(u64),
    /// The same, and the apply loop installs the snapshot at `position`.
    Install { number: u64, position: LogPosition },
    /// Entries below the position may be removed.
    Recorded(LogPosition),
}

impl WalPipeline {
    pub(super) fn append(&mut self, append: ReadyAppend) {
        let ReadyAppend { number, install_snapshot: install, entries, hard_state, must_sync } =
            append;
        let snapshot = install.as_ref().map(snapshot_record);
        let ticket = self.group.submit(Append { snapshot, entries, hard_state });
        let behind = match install {
            Some(position) => AfterSync::Install { number, position },
            None => AfterSync::Appended(number),
        };
        // An append without `must_sync` is one that no request waits for.
        if must_sync {
            self.after_sync.push_back((ticket, behind));
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

    pub(super) fn finish_batch(&mut self, written: BatchResult) -> Result<()> {
        self.durable = self.group.finish_batch(written)?;
        Ok(())
    }

    /// The next action that the durable batches allow.
    pub(super) fn next_synced(&mut self) -> Option<AfterSync> {
        let (_, behind) = self.after_sync.pop_front_if(|(ticket, _)| *ticket <= self.durable)?;
        if let AfterSync::Install { position, .. } = &behind {
            self.installing.push_back(position.index);
        }
        Some(behind)
    }

    pub(super) fn finish_install(&mut self, index: u64) {
        self.installing.retain(|installing| *installing > index);
    }

    pub(super) fn pending_installs(&self) -> impl Iterator<Item = u64> {
        let written = self.after_sync.iter().filter_map(|(_, behind)| match behind {
            AfterSync::Install { position, .. } => Some(position.index),
            _ => None,
        });
        self.installing.iter().copied().chain(written)
    }
}

fn snapshot_record(position: &LogPosition) -> WalSnapshot {
    let conf_state = Some(position.conf_state.clone());
    WalSnapshot { index: position.index, term: position.term, conf_state }
}
