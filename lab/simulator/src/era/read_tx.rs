//! etcd 3.2 and 3.3: reads share `readTx`, and hold it until they end.
//!
//! Reads no longer wait for each other, nor for a write in progress. But the end of each write
//! takes `readTx` exclusively for a short time. The write waits for the slowest reader, and each
//! request that arrives later waits for the write. This is the convoy.

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

/// Applies a write. The eras 3.4 and 3.5 also use this function. Only their readers differ: they
/// hold `readTx` for a shorter time.
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

/// Commits when the timer fires, a compaction starts, or the applier makes a snapshot. Takes
/// `readTx` even if nothing is pending.
pub(super) async fn commit(member: &Member, task: &mut SimTask) {
    let batch_tx = task.write(&member.locks.batch_tx).await;
    commit_under_locks(member, task).await;
    drop(batch_tx);
}

/// Commits with `readTx` held. The caller must hold `batchTx`. New readers wait for the disk, and
/// the applier waits for `batchTx`.
pub(super) async fn commit_under_locks(member: &Member, task: &mut SimTask) {
    let read_tx = task.write(&member.locks.read_tx).await;
    flush_pending(member, task).await;
    member.buffer_version.set(member.buffer_version.get() + 1);
    drop(read_tx);
}

/// Reads the events that unsynced watchers have missed. In all versions of etcd since 3.2, this
/// read delays the end of every write.
pub(super) async fn read_missed(member: &Member, task: &mut SimTask, missed: Missed) {
    let watchable = task.write(&member.locks.watchable).await;
    let rev_mu = task.read(&member.locks.rev_mu).await;
    let read_tx = task.read(&member.locks.read_tx).await;
    task.run(scan_ns(member, missed.since_oldest, missed.record_bytes)).await;
    drop((read_tx, rev_mu, watchable));
}

/// Starts a compaction. Takes `store` exclusively, so the compaction waits for every open read. The
/// eras 3.4 and 3.5 also use this function.
pub(super) async fn begin_compaction(member: &Member, task: &mut SimTask) {
    let store = task.write(&member.locks.store).await;
    let rev_mu = task.write(&member.locks.rev_mu).await;
    commit(member, task).await;
    drop((rev_mu, store));
}

/// Commits for the applier's snapshot. Takes `store` exclusively, like [`begin_compaction`].
pub(super) async fn disk_snapshot(member: &Member, task: &mut SimTask) {
    let store = task.write(&member.locks.store).await;
    commit(member, task).await;
    drop(store);
}
