//! What the steps of a read path cost, whatever is held meanwhile: nanoseconds of one core.

use crate::costs::times;
use crate::requests::{Range, Write};
use crate::server::Member;

/// A walk over so many keys.
pub(super) fn walk_ns(member: &Member, keys: u64) -> u64 {
    let costs = &member.build.costs;
    costs.index_seek_ns + costs.index_key_ns * keys
}

/// The records that are sent.
pub(super) fn records_ns(member: &Member, range: Range) -> u64 {
    let costs = &member.build.costs;
    costs.record_ns * range.sent + times(range.sent * range.record_bytes, costs.record_byte_ns)
}

/// What a write puts into the index.
pub(super) fn index_ns(member: &Member, write: Write) -> u64 {
    member.build.costs.index_seek_ns * write.keys
}

/// And into the backend.
pub(super) fn apply_ns(member: &Member, write: Write) -> u64 {
    let costs = &member.build.costs;
    costs.apply_ns * write.keys + times(write.keys * write.record_bytes, costs.record_byte_ns)
}

/// What a commit computes. Nothing is pending behind it.
pub(super) fn take_pending_ns(member: &Member) -> u64 {
    let (costs, bytes) = (&member.build.costs, member.pending_bytes.take());
    let ops_ns = member.pending.take() * costs.commit_op_ns;
    costs.commit_ns + ops_ns + times(bytes, costs.commit_byte_ns)
}

/// Revisions one after the other.
pub(super) fn scan_ns(member: &Member, revisions: u64, record_bytes: u64) -> u64 {
    let costs = &member.build.costs;
    costs.scan_revision_ns * revisions + times(revisions * record_bytes, costs.record_byte_ns)
}

/// A batch of a compaction: so many are looked through, and so many go.
pub(super) fn remove_ns(member: &Member, all: u64, gone: u64) -> u64 {
    member.pending.set(member.pending.get() + gone);
    let costs = &member.build.costs;
    costs.scan_revision_ns * all + costs.remove_revision_ns * gone
}

/// Watchers that are not behind are notified of a write.
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
