//! The thread of the write-ahead log: takes a batch, writes it with one sync, says so.

use std::sync::mpsc::Receiver;

use clearlane_raft_log::wal::Wal;
use clearlane_raft_log::wal::group::Batch;

use super::Shared;
use crate::actors::LOG;
use crate::core::Input;
use crate::error::Result;
use crate::recording::Doing;

/// What the raft loop wants of the log.
#[derive(Debug)]
pub(super) enum ToWal {
    Write(Batch),
    /// Segments below this index may go.
    Purge(u64),
}

/// Works until the raft loop has gone.
pub(super) fn run(mut wal: Wal, from_raft: &Receiver<ToWal>, shared: &Shared) -> Result<()> {
    let mut shift = shared.recording.shift(*LOG);
    while let Ok(wanted) = from_raft.recv() {
        shift.over(Doing::Nothing);
        match wanted {
            ToWal::Write(batch) => {
                let written = batch.write(&mut wal);
                shift.over(Doing::Disk);
                shared.inbox.push([Input::Written(written)]);
            }
            ToWal::Purge(below) => drop(wal.purge(below)?),
        }
    }
    Ok(wal.close()?)
}
