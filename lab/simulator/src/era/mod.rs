//! The read paths of etcd's history, and of Clearlane: each step, and the lock under which it runs.
//!
//! The files `one_mutex`, `read_tx`, `concurrent` and `clearlane` have short programs, such as how
//! an era reads a range, applies a write, or commits the backend. If several eras share a program
//! in these files, it is in the file of the oldest of these eras. The module [background] selects
//! the programs of background work. Locks have the names and the order of the real code. Code that
//! all eras share is in [`cluster`](crate::cluster).

pub(crate) mod background;
mod clearlane;
mod concurrent;
mod one_mutex;
mod read_tx;
mod steps;

pub use clearlane_backend::Era;

use self::steps::flush_pending;
use crate::requests::{Range, Write};
use crate::server::Member;
use crate::sim_task::SimTask;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinearizableMode {
    /// The read is an entry of the log, and the applier reads.
    Log,
    ReadIndex,
    /// ReadIndex without heartbeats if the reading member is the only member, or if it and the
    /// leader are a quorum.
    ReadIndexWithShortcuts,
}

/// Returns whether a long response is read in pieces, while earlier pieces are being sent. This
/// needs a snapshot that does not change during the read.
pub(crate) fn reads_in_pieces(era: Era) -> bool {
    era == Era::Clearlane
}

/// In the era `clearlane`, reads of more records than this run in the thread pool.
const AT_ONCE: u64 = 128;

pub(crate) fn linearizable_mode(era: Era) -> LinearizableMode {
    match era {
        Era::V3_0 => LinearizableMode::Log,
        Era::V3_1 | Era::V3_2 | Era::V3_4 | Era::V3_5 => LinearizableMode::ReadIndex,
        Era::Clearlane => LinearizableMode::ReadIndexWithShortcuts,
    }
}

/// Eras that read under locks use the pool for all reads except reads of a single key. The era
/// `clearlane` uses it only for reads of more than [`AT_ONCE`] records, and for long responses.
pub(crate) fn reads_in_the_pool(era: Era, range: Range) -> bool {
    match reads_in_pieces(era) {
        true => range.sent > AT_ONCE || range.is_long(),
        false => range.keys > 1,
    }
}

pub(crate) async fn range(member: &Member, task: &mut SimTask, range: Range) {
    match member.build.era {
        Era::V3_0 | Era::V3_1 => one_mutex::range(member, task, range).await,
        Era::V3_2 => read_tx::range(member, task, range).await,
        Era::V3_4 | Era::V3_5 => concurrent::range(member, task, range).await,
        Era::Clearlane => clearlane::range(member, task, range).await,
    }
}

pub(crate) async fn write(member: &Member, task: &mut SimTask, write: Write) {
    match member.build.era {
        Era::V3_0 | Era::V3_1 => one_mutex::write(member, task, write).await,
        Era::V3_2 | Era::V3_4 | Era::V3_5 => read_tx::write(member, task, write).await,
        Era::Clearlane => clearlane::write(member, task, write).await,
    }
}

pub(crate) async fn commit(member: &Member, task: &mut SimTask) {
    match member.build.era {
        Era::V3_0 | Era::V3_1 => one_mutex::commit(member, task).await,
        Era::V3_4 | Era::V3_5 if member.pending.get() == 0 => {}
        Era::V3_2 | Era::V3_4 | Era::V3_5 => read_tx::commit(member, task).await,
        // The commit runs on a separate thread, and holds no lock that a request needs.
        Era::Clearlane => flush_pending(member, task).await,
    }
}
