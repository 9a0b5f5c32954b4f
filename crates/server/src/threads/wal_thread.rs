//! The write-ahead log of a running member. The WAL thread writes a batch with one sync, and
//! reports the result.
//!
//! If `--unsafe-no-fsync` is set, the raft loop writes the log itself, and this thread does not
//! start. A write is then a copy into memory, which takes less time than waking another thread and
//! being woken by it.

use std::sync::mpsc::{Receiver, Sender};

use clearlane_replica::{ReplicaInput, Result};
use clearlane_wal::Wal;
use clearlane_wal::group_commit::{Batch, BatchResult};

use super::ServerState;
use crate::observe::task_labels::LOG;
use crate::observe::trace::StepKind;

#[derive(Debug)]
pub(super) enum WalCommand {
    Write(Batch),
    /// Segments that a start from this durable index does not need may be removed.
    Purge(u64),
}

/// The raft loop's access to the log.
pub(super) enum LogWriter {
    /// The channel to the WAL thread. A closed channel is ignored, because that thread has reported
    /// its error.
    Thread(Sender<WalCommand>),
    /// A log that is not synced.
    Inline(Box<Wal>),
}

impl LogWriter {
    /// Writes a batch. Returns the result if the batch is already written. Returns `None` if the
    /// WAL thread writes the batch and reports the result later.
    pub(super) fn write(&mut self, batch: Batch) -> Option<BatchResult> {
        match self {
            LogWriter::Thread(to_wal) => {
                let _ = to_wal.send(WalCommand::Write(batch));
                None
            }
            LogWriter::Inline(wal) => Some(batch.write(wal)),
        }
    }

    pub(super) fn purge(&mut self, below: u64) -> Result<()> {
        match self {
            LogWriter::Thread(to_wal) => drop(to_wal.send(WalCommand::Purge(below))),
            LogWriter::Inline(wal) => drop(wal.purge(below)?),
        }
        Ok(())
    }

    pub(super) fn close(self) -> Result<()> {
        match self {
            LogWriter::Thread(_) => Ok(()),
            LogWriter::Inline(wal) => Ok(wal.close()?),
        }
    }
}

/// Runs until the raft loop has ended.
pub(super) fn run(
    mut wal: Wal,
    from_raft: &Receiver<WalCommand>,
    shared: &ServerState,
) -> Result<()> {
    let mut thread_trace = shared.trace.trace_thread(*LOG);
    while let Ok(wanted) = from_raft.recv() {
        thread_trace.end_step(StepKind::Idle);
        match wanted {
            WalCommand::Write(batch) => {
                let written = batch.write(&mut wal);
                thread_trace.end_step(StepKind::Disk);
                shared.raft_queue.push([ReplicaInput::WalWritten(written)]);
            }
            WalCommand::Purge(below) => drop(wal.purge(below)?),
        }
    }
    Ok(wal.close()?)
}
