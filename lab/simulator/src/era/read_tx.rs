//! etcd 3.2 and 3.3: reads share `readTx`, and hold it to their ends.
//!
//! Reads no longer wait for each other, nor for a write that is under way. But the end of each
//! write takes `readTx` exclusively for a moment. It waits for the slowest reader, and a request
//! that comes behind it waits for it: the convoy.

use super::steps::{
    apply_ns, flush_pending, index_ns, more_pending, notify_ns, records_ns, scan_ns, walk_ns,
};
use crate::requests::{Missed, Range, Write};
use crate::server::Member;
use crate::sim_task::SimTask;

pub(super) async fn range(member: &Member, task: &mut SimTask, range: Range) {
    let store = task.read(&member.locks.store).await;
    let rev_mu = task.read(&member.locks.rev_mu).await;
    let read_tx = task.read(&member.locks.read_tx).await;
    drop(rev_mu);
    let tree_index = task.read(&member.locks.tree_index).await;
    task.run(walk_ns(member, range.keys)).await;
    drop(tree_index);
    task.run(records_ns(member, range)).await;
    drop((read_tx, store));
}

/// Also of 3.4 and 3.5, which differ in how long readers hold `readTx`.
pub(super) async fn write(member: &Member, task: &mut SimTask, write: Write) {
    let store = task.read(&member.locks.store).await;
    let batch_tx = task.write(&member.locks.batch_tx).await;
    let tree_index = task.write(&member.locks.tree_index).await;
    task.run(index_ns(member, write)).await;
    drop(tree_index);
    task.run(apply_ns(member, write)).await;
    // The end of the write: watchers are notified, and the write becomes visible.
    let watchable = task.write(&member.locks.watchable).await;
    task.run(notify_ns(member, write)).await;
    let rev_mu = task.write(&member.locks.rev_mu).await;
    let read_tx = task.write(&member.locks.read_tx).await;
    member.buffer_version.set(member.buffer_version.get() + 1);
    task.run(member.build.costs.buffer_op_ns * write.keys).await;
    drop(read_tx);
    if more_pending(member, write) >= member.model.batch_limit {
        commit_under_locks(member, task).await;
    }
    drop((batch_tx, rev_mu, watchable, store));
}

/// The timer takes `readTx` even if nothing is pending.
pub(super) async fn commit(member: &Member, task: &mut SimTask) {
    let batch_tx = task.write(&member.locks.batch_tx).await;
    commit_under_locks(member, task).await;
    drop(batch_tx);
}

/// New readers wait for the disk, and the applier for `batchTx`.
pub(super) async fn commit_under_locks(member: &Member, task: &mut SimTask) {
    let read_tx = task.write(&member.locks.read_tx).await;
    flush_pending(member, task).await;
    member.buffer_version.set(member.buffer_version.get() + 1);
    drop(read_tx);
}

/// From 3.2 to this day, unsynced watchers delay the end of every write.
pub(super) async fn read_missed(member: &Member, task: &mut SimTask, missed: Missed) {
    let watchable = task.write(&member.locks.watchable).await;
    let rev_mu = task.read(&member.locks.rev_mu).await;
    let read_tx = task.read(&member.locks.read_tx).await;
    task.run(scan_ns(member, missed.since_oldest, missed.record_bytes)).await;
    drop((read_tx, rev_mu, watchable));
}

/// Takes `store` exclusively, so it waits for every open read, in 3.4 and later, too.
pub(super) async fn begin_compaction(member: &Member, task: &mut SimTask) {
    let store = task.write(&member.locks.store).await;
    let rev_mu = task.write(&member.locks.rev_mu).await;
    commit(member, task).await;
    drop((rev_mu, store));
}

/// Takes `store` exclusively, too.
pub(super) async fn disk_snapshot(member: &Member, task: &mut SimTask) {
    let store = task.write(&member.locks.store).await;
    commit(member, task).await;
    drop(store);
}
