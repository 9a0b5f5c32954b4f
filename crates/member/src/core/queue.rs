//! What is on its way to the write-ahead log, and what is true when it has arrived.
//!
//! Three kinds of things go into the log: what raft appends, what says that a copy of another
//! member's store counts from here on, and what says that this member's own store has come so far.
//! Each has something that must not happen before it is on disk:
//!
//! ```text
//!   append            raft speaks of it
//!   copy installed    the copy takes the store's place; raft goes on behind it
//!   own snapshot      entries and segments below it may go
//! ```

use std::collections::VecDeque;

use clearlane_raft_log::Position;
use clearlane_raft_log::wal::Append;
use clearlane_raft_log::wal::group::{Batch, GroupSync, Ticket, Written};
use clearlane_raft_log::{Result, Snapshot, driver};

/// Appends on their way, with what comes behind them.
#[derive(Debug, Default)]
pub(super) struct Queue {
    group: GroupSync,
    behind: VecDeque<(Ticket, Behind)>,
}

/// What may happen once an append is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Behind {
    /// Raft is told its number.
    Appended(u64),
    /// The copy of this position takes the store's place; then raft is told the number.
    Installed { number: u64, position: Position },
    /// The log is not needed below this position.
    Recorded(Position),
}

impl Queue {
    /// What raft wants to have written down.
    pub(super) fn append(&mut self, append: driver::Append) -> Result<()> {
        let driver::Append { number, install, entries, hard_state, must_sync } = append;
        let snapshot = install.as_ref().map(snapshot_of);
        let ticket = self.group.submit(Append { snapshot, entries, state: hard_state })?;
        let behind = match install {
            Some(position) => Behind::Installed { number, position },
            None => Behind::Appended(number),
        };
        // Nobody waits for what may be lost.
        if must_sync {
            self.behind.push_back((ticket, behind));
        }
        Ok(())
    }

    /// This member's store is on disk as of a position.
    pub(super) fn record(&mut self, position: Position) -> Result<()> {
        let snapshot = Some(snapshot_of(&position));
        let ticket = self.group.submit(Append { snapshot, ..Append::default() })?;
        self.behind.push_back((ticket, Behind::Recorded(position)));
        Ok(())
    }

    /// What is to be written now, if there is something and nothing else is being written.
    pub(super) fn begin(&mut self) -> Option<Batch> {
        self.group.begin()
    }

    /// A batch was written: what may happen now.
    pub(super) fn finish(&mut self, written: Written) -> Result<Vec<Behind>> {
        let durable = self.group.finish(written)?;
        let mut now = Vec::new();
        while let Some((_, behind)) = self.behind.pop_front_if(|(ticket, _)| *ticket <= durable) {
            now.push(behind);
        }
        Ok(now)
    }

    /// The indexes of copies that are on their way to become the store.
    pub(super) fn installs(&self) -> impl Iterator<Item = u64> {
        self.behind.iter().filter_map(|(_, behind)| match behind {
            Behind::Installed { position, .. } => Some(position.index),
            _ => None,
        })
    }
}

fn snapshot_of(position: &Position) -> Snapshot {
    let conf_state = Some(position.members.clone());
    Snapshot { index: position.index, term: position.term, conf_state }
}
