//! The thread of the write-ahead log: takes a batch, writes it with one sync, says so.

use std::sync::mpsc::Receiver;

use clearlane_wal::Wal;
use clearlane_wal::group_commit::Batch;

use super::ServerState;
use crate::error::Result;
use crate::replica::ReplicaInput;
use crate::task_labels::LOG;
use crate::trace::StepKind;

/// What the raft loop wants of the log.
#[derive(Debug)]
pub(super) enum WalCommand {
    Write(Batch),
    /// Segments below this index may go.
    Purge(u64),
}

/// Works until the raft loop has gone.
pub(super) fn run(
    mut wal: Wal,
    from_raft: &Receiver<WalCommand>,
    shared: &ServerState,
) -> Result<()> {
    let mut shift = shared.trace.trace_thread(*LOG);
    while let Ok(wanted) = from_raft.recv() {
        shift.end_step(StepKind::Idle);
        match wanted {
            WalCommand::Write(batch) => {
                let written = batch.write(&mut wal);
                shift.end_step(StepKind::Disk);
                shared.raft_queue.push([ReplicaInput::WalWritten(written)]);
            }
            WalCommand::Purge(below) => drop(wal.purge(below)?),
        }
    }
    Ok(wal.close()?)
}
