//! The era `clearlane`. A read loads a pointer to a state that does not change. So the read holds
//! no lock, and waits only for a core.
//!
//! The index counts the keys in a range without walking over them. Background work has its own
//! snapshot.

use super::steps::{apply_ns, index_ns, more_pending, records_ns, scan_ns, walk_ns};
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

/// Reads only the revisions that are delivered.
pub(super) async fn read_missed(member: &Member, task: &mut SimTask, missed: Missed) {
    task.run(scan_ns(member, missed.given, missed.record_bytes)).await;
}
