//! etcd 3.1: reads and writes take the same two mutexes, for their whole length.
//!
//! Reads go through the engine's only transaction, too. So a request inside excludes all others: a
//! read, a write, the timer's commit with its sync, and the pass over unsynced watchers.

use super::steps::{
    apply_ns, flush_pending, index_ns, more_pending, notify_ns, records_ns, scan_ns, walk_ns,
};
use crate::requests::{Missed, Range, Write};
use crate::server::Member;
use crate::sim_task::SimTask;

pub(super) async fn range(member: &Member, task: &mut SimTask, range: Range) {
    let store = task.write(&member.locks.store).await;
    let batch_tx = task.write(&member.locks.batch_tx).await;
    read_under_locks(member, task, range).await;
    drop((batch_tx, store));
}

pub(super) async fn read_under_locks(member: &Member, task: &mut SimTask, range: Range) {
    let tree_index = task.read(&member.locks.tree_index).await;
    task.run(walk_ns(member, range.keys)).await;
    drop(tree_index);
    task.run(records_ns(member, range)).await;
}

pub(super) async fn write(member: &Member, task: &mut SimTask, write: Write) {
    let watchable = task.write(&member.locks.watchable).await;
    let store = task.write(&member.locks.store).await;
    let batch_tx = task.write(&member.locks.batch_tx).await;
    write_under_locks(member, task, write).await;
    drop((batch_tx, store, watchable));
}

pub(super) async fn write_under_locks(member: &Member, task: &mut SimTask, write: Write) {
    let tree_index = task.write(&member.locks.tree_index).await;
    task.run(index_ns(member, write)).await;
    drop(tree_index);
    task.run(apply_ns(member, write) + notify_ns(member, write)).await;
    if more_pending(member, write) >= member.model.batch_limit {
        flush_pending(member, task).await;
    }
}

/// Every 100 ms; requests wait for the disk meanwhile.
pub(super) async fn commit(member: &Member, task: &mut SimTask) {
    let batch_tx = task.write(&member.locks.batch_tx).await;
    flush_pending(member, task).await;
    drop(batch_tx);
}

/// Takes all three locks: "blocks the entire kv", as its author says.
pub(super) async fn read_missed(member: &Member, task: &mut SimTask, missed: Missed) {
    let watchable = task.write(&member.locks.watchable).await;
    let store = task.write(&member.locks.store).await;
    let batch_tx = task.write(&member.locks.batch_tx).await;
    task.run(scan_ns(member, missed.since_oldest, missed.record_bytes)).await;
    drop((batch_tx, store, watchable));
}

/// Beginning of a compaction, or the applier's snapshot: what is pending is committed.
pub(super) async fn commit_for_the_applier(member: &Member, task: &mut SimTask) {
    let store = task.write(&member.locks.store).await;
    commit(member, task).await;
    drop(store);
}
