//! What is on its way to the write-ahead log, and what is true when it has arrived.
//!
//! Three kinds of things go into the log: what raft appends, what says that a copy of another
//! member's store counts from here on, and what says that this member's own store has come so far.
//! Each has something that must not happen before it is on disk:
//!
//! ```text
//!   append            raft speaks of it
//!   copy installed    the copy takes the store's place; raft takes it for applied when it has
//!   own snapshot      entries and segments below it may go
//! ```

use std::collections::VecDeque;

use clearlane_raft as raft;
use clearlane_raft::LogPosition;
use clearlane_wal::Append;
use clearlane_wal::group_commit::{AppendNumber, Batch, BatchResult, GroupCommit};
use clearlane_wal::{Result, WalSnapshot};

/// Appends on their way, with what comes behind them.
#[derive(Debug, Default)]
pub(super) struct WalPipeline {
    group: GroupCommit,
    durable: AppendNumber,
    after_sync: VecDeque<(AppendNumber, AfterSync)>,
    /// Indexes of the snapshots that the apply loop installs.
    installing: VecDeque<u64>,
}

/// What may happen once an append is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AfterSync {
    /// Raft is told its number.
    Appended(u64),
    /// Raft is told its number, and the apply loop installs the snapshot of this position.
    Install { number: u64, position: LogPosition },
    /// The log is not needed below this position.
    Recorded(LogPosition),
}

impl WalPipeline {
    /// What raft wants to have written down.
    pub(super) fn append(&mut self, append: raft::ReadyAppend) -> Result<()> {
        let raft::ReadyAppend { number, install_snapshot: install, entries, hard_state, must_sync } =
            append;
        let snapshot = install.as_ref().map(snapshot_record);
        let ticket = self.group.submit(Append { snapshot, entries, hard_state })?;
        let behind = match install {
            Some(position) => AfterSync::Install { number, position },
            None => AfterSync::Appended(number),
        };
        // No request waits for what may be lost.
        if must_sync {
            self.after_sync.push_back((ticket, behind));
        }
        Ok(())
    }

    /// This member's store is on disk as of a position.
    pub(super) fn record_snapshot(&mut self, position: LogPosition) -> Result<()> {
        let snapshot = Some(snapshot_record(&position));
        let ticket = self.group.submit(Append { snapshot, ..Append::default() })?;
        self.after_sync.push_back((ticket, AfterSync::Recorded(position)));
        Ok(())
    }

    /// What is to be written now, if there is something and nothing else is being written.
    pub(super) fn next_batch(&mut self) -> Option<Batch> {
        self.group.take_batch()
    }

    /// A batch was written.
    pub(super) fn finish_batch(&mut self, written: BatchResult) -> Result<()> {
        self.durable = self.group.finish_batch(written)?;
        Ok(())
    }

    /// What may happen now, one thing after the other.
    pub(super) fn next_synced(&mut self) -> Option<AfterSync> {
        let (_, behind) = self.after_sync.pop_front_if(|(ticket, _)| *ticket <= self.durable)?;
        if let AfterSync::Install { position, .. } = &behind {
            self.installing.push_back(position.index);
        }
        Some(behind)
    }

    /// The snapshot of this index is the store now.
    pub(super) fn finish_install(&mut self, index: u64) {
        self.installing.retain(|installing| *installing > index);
    }

    /// The indexes of copies that are on their way to become the store.
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
