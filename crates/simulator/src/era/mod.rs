//! The read paths of etcd's history, and ours: what is done under which lock.
//!
//! Each era is a few short programs, in a file of its own: how a range is read, how a write is
//! applied, how the backend commits, and what is done in the [background]. Their steps bear the
//! names of the locks in the code, and are in its order. What is the same in all of them, from the
//! socket to the applier, is in [`cluster`](crate::cluster).
//!
//! What an era has in common with the one before it is in the file of the older one.

pub(crate) mod background;
mod clearlane;
mod concurrent;
mod one_mutex;
mod read_tx;
mod steps;
mod through_the_log;

pub use clearlane_backend::Era;

use self::concurrent::BufferCopy;
use crate::requests::{Range, Write};
use crate::server::Member;
use crate::sim_task::SimTask;

/// How a linearizable read comes to know that it is not late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadMode {
    /// It is an entry of the log like a write, and the applier reads.
    Log,
    /// A round of the members.
    ReadIndex,
    /// A round, but not for the only member, and less of one for a member that asks the leader.
    ReadIndexWithShortcuts,
}

/// Whether a long answer is read piece by piece, while what was read is sent: what is read needs to
/// stand still for so long.
pub(crate) fn reads_in_pieces(era: Era) -> bool {
    era == Era::Clearlane
}

/// More records are not read on a network thread.
const AT_ONCE: u64 = 128;

/// How a linearizable read becomes one.
pub(crate) fn read_mode(era: Era) -> ReadMode {
    match era {
        Era::V3_0 => ReadMode::Log,
        Era::V3_1 | Era::V3_2 | Era::V3_4 | Era::V3_5 => ReadMode::ReadIndex,
        Era::Clearlane => ReadMode::ReadIndexWithShortcuts,
    }
}

/// Whether it is read by a thread of the pool. Eras that read with locks in hand do so unless it is
/// a single key; ours, if it is much.
pub(crate) fn reads_in_the_pool(era: Era, range: Range) -> bool {
    match reads_in_pieces(era) {
        true => range.sent > AT_ONCE || range.is_long(),
        false => range.keys > 1,
    }
}

/// A range is read.
pub(crate) async fn range(member: &Member, trip: &mut SimTask, range: Range) {
    match member.build.era {
        Era::V3_0 => through_the_log::range(member, trip, range).await,
        Era::V3_1 => one_mutex::range(member, trip, range).await,
        Era::V3_2 => read_tx::range(member, trip, range).await,
        Era::V3_4 => concurrent::range(member, trip, range, BufferCopy::Own).await,
        Era::V3_5 => concurrent::range(member, trip, range, BufferCopy::Shared).await,
        Era::Clearlane => clearlane::range(member, trip, range).await,
    }
}

/// A write is applied.
pub(crate) async fn write(member: &Member, trip: &mut SimTask, write: Write) {
    match member.build.era {
        Era::V3_0 => through_the_log::write(member, trip, write).await,
        Era::V3_1 => one_mutex::write(member, trip, write).await,
        Era::V3_2 | Era::V3_4 | Era::V3_5 => read_tx::write(member, trip, write).await,
        Era::Clearlane => clearlane::write(member, trip, write).await,
    }
}

/// The backend commits.
pub(crate) async fn commit(member: &Member, trip: &mut SimTask) {
    match member.build.era {
        Era::V3_0 | Era::V3_1 => one_mutex::commit(member, trip).await,
        Era::V3_2 => read_tx::commit(member, trip, read_tx::When::Always).await,
        Era::V3_4 | Era::V3_5 => read_tx::commit(member, trip, read_tx::When::Pending).await,
        Era::Clearlane => clearlane::commit(member, trip).await,
    }
}
