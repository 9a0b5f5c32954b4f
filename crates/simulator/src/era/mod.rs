//! The read paths of etcd's history, and ours: what is done under which lock.
//!
//! Each era is a few short programs, in a file of its own: how a range is read, how a write is
//! applied, how the backend commits, and what is done in the [background]. Their steps bear the
//! names of the locks in the code, and are in its order. What is the same in all of them, from the
//! socket to the applier, is in [`cluster`](crate::cluster).
//!
//! What an era has in common with the one before it is in the file of the older one.

mod background;
mod clearlane;
mod concurrent;
mod one_mutex;
mod read_tx;
mod through_the_log;

pub use clearlane_backend::Era;

pub(crate) use self::background::EraBackground;
use self::concurrent::BufferCopy;
use crate::costs::times;
use crate::server::Member;
use crate::sim_task::SimTask;

/// What a range reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    /// Keys in it. To count them, the old eras walk over all, whatever the limit.
    pub(crate) keys: u64,
    /// Keys whose records are read.
    pub(crate) sent: u64,
    pub(crate) record_bytes: u64,
}

/// A longer answer is taken while it is sent.
const LONG_BYTES: u64 = 256 << 10;

/// More records are not read on a network thread.
const AT_ONCE: u64 = 128;

impl Range {
    /// Of the records that are sent.
    pub(crate) fn bytes(&self) -> u64 {
        self.sent * self.record_bytes
    }

    pub(crate) fn is_long(&self) -> bool {
        self.bytes() > LONG_BYTES
    }
}

/// What watchers that are behind have missed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Missed {
    /// Revisions since the first that one of them waits for.
    pub(crate) since_oldest: u64,
    /// The most that one of them is given now.
    pub(crate) given: u64,
    pub(crate) record_bytes: u64,
}

/// How a compaction goes through the backend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batches {
    /// In one batch.
    pub(crate) revisions: u64,
    /// After it.
    pub(crate) pause_ns: u64,
    /// It goes through all revisions, also those that stay.
    pub(crate) of_all: bool,
}

/// What an entry of the log writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub(crate) keys: u64,
    pub(crate) record_bytes: u64,
}

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
pub fn reads_in_pieces(era: Era) -> bool {
    era == Era::Clearlane
}

/// What an era does for a request. What it does in the background is [`EraBackground`].
pub(crate) trait SimulatedEra {
    /// How a linearizable read becomes one.
    fn read_mode(self) -> ReadMode;

    /// Whether it is read by a thread of the pool. Eras that read with locks in hand do so unless it
    /// is a single key; ours, if it is much.
    fn reads_in_the_pool(self, range: Range) -> bool;

    async fn range(self, member: &Member, trip: &mut SimTask, range: Range);

    async fn write(self, member: &Member, trip: &mut SimTask, write: Write);

    async fn commit(self, member: &Member, trip: &mut SimTask);
}

impl SimulatedEra for Era {
    fn read_mode(self) -> ReadMode {
        match self {
            Era::V3_0 => ReadMode::Log,
            Era::V3_1 | Era::V3_2 | Era::V3_4 | Era::V3_5 => ReadMode::ReadIndex,
            Era::Clearlane => ReadMode::ReadIndexWithShortcuts,
        }
    }

    fn reads_in_the_pool(self, range: Range) -> bool {
        match reads_in_pieces(self) {
            true => range.sent > AT_ONCE || range.is_long(),
            false => range.keys > 1,
        }
    }

    async fn range(self, member: &Member, trip: &mut SimTask, range: Range) {
        match self {
            Era::V3_0 => through_the_log::range(member, trip, range).await,
            Era::V3_1 => one_mutex::range(member, trip, range).await,
            Era::V3_2 => read_tx::range(member, trip, range).await,
            Era::V3_4 => concurrent::range(member, trip, range, BufferCopy::Own).await,
            Era::V3_5 => concurrent::range(member, trip, range, BufferCopy::Shared).await,
            Era::Clearlane => clearlane::range(member, trip, range).await,
        }
    }

    async fn write(self, member: &Member, trip: &mut SimTask, write: Write) {
        match self {
            Era::V3_0 => through_the_log::write(member, trip, write).await,
            Era::V3_1 => one_mutex::write(member, trip, write).await,
            Era::V3_2 | Era::V3_4 | Era::V3_5 => read_tx::write(member, trip, write).await,
            Era::Clearlane => clearlane::write(member, trip, write).await,
        }
    }

    async fn commit(self, member: &Member, trip: &mut SimTask) {
        match self {
            Era::V3_0 | Era::V3_1 => one_mutex::commit(member, trip).await,
            Era::V3_2 => read_tx::commit(member, trip, read_tx::When::Always).await,
            Era::V3_4 | Era::V3_5 => read_tx::commit(member, trip, read_tx::When::Pending).await,
            Era::Clearlane => clearlane::commit(member, trip).await,
        }
    }
}

/// A walk over so many keys.
fn walk_ns(member: &Member, keys: u64) -> u64 {
    let costs = &member.build.costs;
    costs.index_seek_ns + costs.index_key_ns * keys
}

/// The records that are sent.
fn records_ns(member: &Member, range: Range) -> u64 {
    let costs = &member.build.costs;
    costs.record_ns * range.sent + times(range.sent * range.record_bytes, costs.record_byte_ns)
}

/// What a write puts into the index.
fn index_ns(member: &Member, write: Write) -> u64 {
    member.build.costs.index_seek_ns * write.keys
}

/// And into the backend.
fn apply_ns(member: &Member, write: Write) -> u64 {
    let costs = &member.build.costs;
    costs.apply_ns * write.keys + times(write.keys * write.record_bytes, costs.record_byte_ns)
}

/// What a commit computes. Nothing is pending behind it.
fn take_pending_ns(member: &Member) -> u64 {
    let (costs, bytes) = (&member.build.costs, member.pending_bytes.take());
    let ops_ns = member.pending.take() * costs.commit_op_ns;
    costs.commit_ns + ops_ns + times(bytes, costs.commit_byte_ns)
}

/// Revisions one after the other.
fn scan_ns(member: &Member, revisions: u64, record_bytes: u64) -> u64 {
    let costs = &member.build.costs;
    costs.scan_revision_ns * revisions + times(revisions * record_bytes, costs.record_byte_ns)
}

/// A batch of a compaction: so many are looked through, and so many go.
fn remove_ns(member: &Member, all: u64, gone: u64) -> u64 {
    member.pending.set(member.pending.get() + gone);
    let costs = &member.build.costs;
    costs.scan_revision_ns * all + costs.remove_revision_ns * gone
}

/// The file is copied.
fn copy_ns(member: &Member, bytes: u64) -> u64 {
    times(bytes, member.build.costs.copy_byte_ns)
}

/// Watchers that are not behind are notified of a write.
fn notify_ns(member: &Member, write: Write) -> u64 {
    member.build.costs.notify_ns * member.model.watchers.synced * write.keys
}

fn more_pending(member: &Member, write: Write) -> u64 {
    let pending = member.pending.get() + write.keys;
    member.pending.set(pending);
    let bytes = write.keys * write.record_bytes;
    member.pending_bytes.set(member.pending_bytes.get() + bytes);
    member.revisions.set(member.revisions.get() + write.keys);
    pending
}
