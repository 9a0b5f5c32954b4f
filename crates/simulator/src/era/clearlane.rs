//! Ours: a read loads a pointer to a state that does not change, so it holds no lock and waits for
//! a core only.
//!
//! The index knows the number of keys in a range without a walk. Background work has a view of its
//! own.

use super::steps::{
    apply_ns, index_ns, more_pending, records_ns, remove_ns, scan_ns, take_pending_ns, walk_ns,
};
use crate::requests::{Missed, Range, Write};
use crate::server::Member;
use crate::sim_task::SimTask;

pub(super) async fn range(member: &Member, task: &mut SimTask, range: Range) {
    task.run(walk_ns(member, range.sent)).await;
    task.run(records_ns(member, range)).await;
}

pub(super) async fn write(member: &Member, task: &mut SimTask, write: Write) {
    task.run(index_ns(member, write) + apply_ns(member, write)).await;
    more_pending(member, write);
}

/// Every 100 ms, on a thread of its own, under no lock of a request.
pub(super) async fn commit(member: &Member, task: &mut SimTask) {
    if member.pending.get() > 0 {
        task.run(take_pending_ns(member)).await;
        task.disk(member.commit_syncs.next_ns()).await;
    }
}

/// Reads only the revisions that are delivered.
pub(super) async fn reads_what_was_missed(member: &Member, task: &mut SimTask, missed: Missed) {
    task.run(scan_ns(member, missed.given, missed.record_bytes)).await;
}

pub(super) async fn compacts_index(member: &Member, task: &mut SimTask, keys: u64) {
    task.run(walk_ns(member, keys)).await;
}

/// The removals are part of the next commit.
pub(super) async fn compacts_batch(member: &Member, task: &mut SimTask, gone: u64) {
    task.run(remove_ns(member, gone, gone)).await;
    commit(member, task).await;
}
