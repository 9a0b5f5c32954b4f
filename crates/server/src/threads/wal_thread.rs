//! The thread of the write-ahead log: writes a batch with one sync, and reports the result.

use std::sync::mpsc::Receiver;

use clearlane_wal::Wal;
use clearlane_wal::group_commit::Batch;

use super::ServerState;
use crate::error::Result;
use crate::replica::ReplicaInput;
use crate::task_labels::LOG;
use crate::trace::StepKind;

#[derive(Debug)]
pub(super) enum WalCommand {
    Write(Batch),
    /// Segments below this index may be removed.
    Purge(u64),
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
