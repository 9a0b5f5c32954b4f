//! The read paths of etcd's history, and ours: what is done under which lock.
//!
//! Each era is a few short programs in a file of its own: how a range is read, a write applied, the
//! backend committed, and the [background] work done. Locks have the names and the order of the
//! real code. What an era has in common with the one before it is in the file of the older one;
//! what all share is in [`cluster`](crate::cluster).

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
pub(crate) enum ReadMode {
    /// The read is an entry of the log, and the applier reads.
    Log,
    ReadIndex,
    /// ReadIndex, without a round where the reading member is alone or, with the leader, a quorum.
    ReadIndexWithShortcuts,
}

/// Whether a long response is read in pieces, while earlier pieces are sent. That needs a view that
/// does not change meanwhile.
pub(crate) fn reads_in_pieces(era: Era) -> bool {
    era == Era::Clearlane
}

/// A read of more records goes to the thread pool.
const AT_ONCE: u64 = 128;

pub(crate) fn read_mode(era: Era) -> ReadMode {
    match era {
        Era::V3_0 => ReadMode::Log,
        Era::V3_1 | Era::V3_2 | Era::V3_4 | Era::V3_5 => ReadMode::ReadIndex,
        Era::Clearlane => ReadMode::ReadIndexWithShortcuts,
    }
}

/// Eras that read under locks use the pool for all but single keys, ours for long reads.
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
        // On a thread of its own, under no lock of a request.
        Era::Clearlane => flush_pending(member, task).await,
    }
}
