//! One sync for all waiting appends: what is submitted while a batch is synced is the next batch.
//!
//! [`GroupCommit`] does no I/O: [`submit`](GroupCommit::submit) an append,
//! [`take_batch`](GroupCommit::take_batch), [`Batch::write`] to the log,
//! [`finish_batch`](GroupCommit::finish_batch). A simulation does this in one thread and lets some
//! of its time pass between write and finish; a server writes in a thread of its own.
//!
//! * Appends are numbered from 1, in the order of submission, and become durable in that order.
//! * One batch is in flight at a time. After one that fails to be written or synced, the log
//!   refuses all.
//! * An append is written as a whole.
//! * The queue is bounded by the submitter: raft limits the proposals that are not committed.
//!
//! `docs/log.md` draws it.

use super::{Append, Wal};
use crate::error::Result;

/// The first append has number 1. Durable up to 0 means that nothing is.
pub type AppendNumber = u64;

#[derive(Debug, Default)]
pub struct GroupCommit {
    pending: Vec<Append>,
    submitted: AppendNumber,
    is_running: bool,
}

impl GroupCommit {
    pub fn submit(&mut self, append: Append) -> AppendNumber {
        self.pending.push(append);
        self.submitted += 1;
        self.submitted
    }

    /// Takes all pending appends; `None` if there are none, or a batch is in flight.
    pub fn take_batch(&mut self) -> Option<Batch> {
        if self.is_running || self.pending.is_empty() {
            return None;
        }
        self.is_running = true;
        // The next batch will be about as large as this one.
        let next = Vec::with_capacity(self.pending.len());
        Some(Batch { appends: std::mem::replace(&mut self.pending, next), last: self.submitted })
    }

    /// Returns the number up to which all appends are durable.
    pub fn finish_batch(&mut self, written: BatchResult) -> Result<AppendNumber> {
        self.is_running = false;
        written.result.map(|()| written.last)
    }
}

#[derive(Debug)]
#[must_use = "the group waits for what becomes of it"]
pub struct Batch {
    appends: Vec<Append>,
    last: AppendNumber,
}

impl Batch {
    /// At least one.
    pub fn appends(&self) -> &[Append] {
        &self.appends
    }

    /// Writes the batch, with one sync, or none if no append needs one.
    pub fn write(self, wal: &mut Wal) -> BatchResult {
        BatchResult { last: self.last, result: write_all(&self.appends, wal) }
    }
}

fn write_all(appends: &[Append], wal: &mut Wal) -> Result<()> {
    let mut needs_sync = false;
    for append in appends {
        needs_sync |= wal.append_all(append)?;
    }
    if needs_sync { wal.sync() } else { Ok(()) }
}

#[derive(Debug)]
#[must_use = "the group waits for it"]
pub struct BatchResult {
    last: AppendNumber,
    result: Result<()>,
}
