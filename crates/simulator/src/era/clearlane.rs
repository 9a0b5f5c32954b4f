//! Ours: a read loads a pointer, and needs nothing else.
//!
//! What is behind it never changes. So there is no lock that a read could hold, and none that it
//! could wait for; what is left to wait for is a core. How many keys there are in a range the index
//! knows without a walk. What is done in the background has a view of its own, and is in no
//! request's way either.

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

/// Every 100 ms, on a thread of its own, which no request waits for.
pub(super) async fn commit(member: &Member, trip: &mut SimTask) {
    if member.pending.get() > 0 {
        trip.run(take_pending_ns(member)).await;
        trip.disk(member.commit_sync_ns()).await;
    }
}

/// As much as is given, and not a revision more.
pub(super) async fn reads_what_was_missed(member: &Member, trip: &mut SimTask, missed: Missed) {
    trip.run(scan_ns(member, missed.given, missed.record_bytes)).await;
}

pub(super) async fn compacts_index(member: &Member, trip: &mut SimTask, keys: u64) {
    trip.run(walk_ns(member, keys)).await;
}

/// What goes is removed with the next commit.
pub(super) async fn compacts_batch(member: &Member, trip: &mut SimTask, gone: u64) {
    trip.run(remove_ns(member, gone, gone)).await;
    commit(member, trip).await;
}
