//! One sync for all waiting appends: appends that are submitted during a sync form the next batch.
//!
//! [`GroupCommit`] does no I/O. The caller [submits](GroupCommit::submit) appends,
//! [takes a batch](GroupCommit::take_batch), [writes](Batch::write) it to the log and
//! [finishes](GroupCommit::finish_batch) it. A simulation makes these calls in one thread, and lets
//! simulated time pass between write and finish. A server writes in a separate thread.
//!
//! ```text
//!   submit 1            submit 2, 3, 4
//!      └▶ batch [1] ── write, sync ──▶ finish: durable up to 1
//!                                        └▶ batch [2, 3, 4] ── write, sync ──▶ durable up to 4
//! ```
//!
//! * Appends are numbered from 1 in the order of submission. They become durable in that order.
//! * One batch is in flight at a time. After a write or a sync has failed, the log rejects all
//!   further batches.
//! * An append is never split between two batches.
//! * The submitter bounds the queue: the crate `raft` limits uncommitted proposals and, on a
//!   follower, the bytes of appends that are not durable yet.
//!
//! `docs/log.md` explains group commit.

use super::{Append, Wal};
use crate::error::Result;

/// The number of an append. The first append has number 1. "Durable up to 0" means that nothing is
/// durable.
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

    /// Takes all pending appends. Returns `None` if there are none, or if a batch is in flight.
    pub fn take_batch(&mut self) -> Option<Batch> {
        if self.is_running || self.pending.is_empty() {
            return None;
        }
        self.is_running = true;
        // The next batch will probably be about as large as this one.
        let next = Vec::with_capacity(self.pending.len());
        Some(Batch { appends: std::mem::replace(&mut self.pending, next), last: self.submitted })
    }

    /// Ends the batch in flight. Returns the number of its last append. Appends up to this number
    /// are durable if they need a sync. An append that needs no sync may still be in memory only.
    /// Fails if the batch was not appended or synced.
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
    /// Returns the appends of the batch, at least one.
    pub fn appends(&self) -> &[Append] {
        &self.appends
    }

    /// Appends the batch to the log, with one sync, or without a sync if no append needs one.
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
