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

pub(super) async fn range(member: &Member, trip: &mut SimTask, range: Range) {
    trip.run(walk_ns(member, range.sent)).await;
    trip.run(records_ns(member, range)).await;
}

pub(super) async fn write(member: &Member, trip: &mut SimTask, write: Write) {
    trip.run(index_ns(member, write) + apply_ns(member, write)).await;
    more_pending(member, write);
}

/// Every 100 ms, on a thread of its own, under no lock of a request.
pub(super) async fn commit(member: &Member, trip: &mut SimTask) {
    if member.pending.get() > 0 {
        trip.run(take_pending_ns(member)).await;
        trip.disk(member.commit_sync_ns()).await;
    }
}

/// Reads only the revisions that are delivered.
pub(super) async fn reads_what_was_missed(member: &Member, trip: &mut SimTask, missed: Missed) {
    trip.run(scan_ns(member, missed.given, missed.record_bytes)).await;
}

pub(super) async fn compacts_index(member: &Member, trip: &mut SimTask, keys: u64) {
    trip.run(walk_ns(member, keys)).await;
}

/// The removals are part of the next commit.
pub(super) async fn compacts_batch(member: &Member, trip: &mut SimTask, gone: u64) {
    trip.run(remove_ns(member, gone, gone)).await;
    commit(member, trip).await;
}
