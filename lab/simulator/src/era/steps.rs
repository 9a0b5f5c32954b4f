//! The steps of a read path, with their costs in nanoseconds. They do not depend on the locks that
//! are held.

use crate::costs::times;
use crate::requests::{Range, Write};
use crate::server::Member;
use crate::sim_task::SimTask;

pub(super) fn walk_ns(member: &Member, keys: u64) -> u64 {
    let costs = &member.build.costs;
    costs.index_seek_ns + costs.index_key_ns * keys
}

pub(super) fn records_ns(member: &Member, range: Range) -> u64 {
    let costs = &member.build.costs;
    costs.record_ns * range.sent + times(range.sent * range.record_bytes, costs.record_byte_ns)
}

/// Returns the cost of the index part of a write.
pub(super) fn index_ns(member: &Member, write: Write) -> u64 {
    member.build.costs.index_seek_ns * write.keys
}

/// Returns the cost of the backend part of a write.
pub(super) fn apply_ns(member: &Member, write: Write) -> u64 {
    let costs = &member.build.costs;
    costs.apply_ns * write.keys + times(write.keys * write.record_bytes, costs.record_byte_ns)
}

/// Commits the pending operations, if there are any, under the locks that the caller holds.
pub(super) async fn flush_pending(member: &Member, task: &mut SimTask) {
    if member.pending.get() > 0 {
        let (costs, bytes) = (&member.build.costs, member.pending_bytes.take());
        let ops_ns = member.pending.take() * costs.commit_op_ns;
        task.run(costs.commit_ns + ops_ns + times(bytes, costs.commit_byte_ns)).await;
        task.disk(member.commit_syncs.next_ns()).await;
    }
}

/// Returns the cost of a scan in order of revisions.
pub(super) fn scan_ns(member: &Member, revisions: u64, record_bytes: u64) -> u64 {
    let costs = &member.build.costs;
    costs.scan_revision_ns * revisions + times(revisions * record_bytes, costs.record_byte_ns)
}

/// Returns the cost of a batch of a compaction. Also adds the batch's removals to the pending
/// operations.
pub(super) fn remove_ns(member: &Member, all: u64, gone: u64) -> u64 {
    member.pending.set(member.pending.get() + gone);
    let costs = &member.build.costs;
    costs.scan_revision_ns * all + costs.remove_revision_ns * gone
}

pub(super) fn notify_ns(member: &Member, write: Write) -> u64 {
    member.build.costs.notify_ns * member.model.watchers.synced * write.keys
}

pub(super) fn more_pending(member: &Member, write: Write) -> u64 {
    let pending = member.pending.get() + write.keys;
    member.pending.set(pending);
    let bytes = write.keys * write.record_bytes;
    member.pending_bytes.set(member.pending_bytes.get() + bytes);
    member.revisions.set(member.revisions.get() + write.keys);
    pending
}
