//! etcd 3.0 and 3.1: reads and writes hold the same two mutexes from their start to their end.
//!
//! Reads also use the engine's only transaction. So a request that holds the mutexes excludes all
//! others: a read, a write, the timer's commit with its sync, and the pass over unsynced watchers.
//!
//! In 3.0 a linearizable read is an entry of the log. It waits for the disks of a quorum and for
//! every write before it, and it delays every later write. In 3.0 each request also writes the
//! consistent index when it starts, even if it only reads. So there is something to commit even
//! without writes.

use clearlane_backend::Era;

use super::steps::{
    apply_ns, flush_pending, index_ns, more_pending, notify_ns, records_ns, scan_ns, walk_ns,
};
use crate::requests::{Missed, Range, Write};
use crate::server::Member;
use crate::sim_task::SimTask;

pub(super) async fn range(member: &Member, task: &mut SimTask, range: Range) {
    let store = task.write(&member.locks.store).await;
    let batch_tx = task.write(&member.locks.batch_tx).await;
    write_consistent_index(member, task).await;
    let tree_index = task.read(&member.locks.tree_index).await;
    task.run(walk_ns(member, range.keys)).await;
    drop(tree_index);
    task.run(records_ns(member, range)).await;
    drop((batch_tx, store));
}

pub(super) async fn write(member: &Member, task: &mut SimTask, write: Write) {
    let watchable = task.write(&member.locks.watchable).await;
    let store = task.write(&member.locks.store).await;
    let batch_tx = task.write(&member.locks.batch_tx).await;
    write_consistent_index(member, task).await;
    let tree_index = task.write(&member.locks.tree_index).await;
    task.run(index_ns(member, write)).await;
    drop(tree_index);
    task.run(apply_ns(member, write) + notify_ns(member, write)).await;
    if more_pending(member, write) >= member.model.batch_limit {
        flush_pending(member, task).await;
    }
    drop((batch_tx, store, watchable));
}

/// In 3.0, writes one small record in the backend. In 3.1, does nothing.
async fn write_consistent_index(member: &Member, task: &mut SimTask) {
    if member.build.era == Era::V3_0 {
        task.run(member.build.costs.buffer_op_ns).await;
        member.pending.set(member.pending.get() + 1);
    }
}

/// Commits the pending operations. Called when the timer fires, by default every 100 ms, and by
/// [`commit_for_the_applier`]. During the commit, requests wait for the disk.
pub(super) async fn commit(member: &Member, task: &mut SimTask) {
    let batch_tx = task.write(&member.locks.batch_tx).await;
    flush_pending(member, task).await;
    drop(batch_tx);
}

/// Reads the events that unsynced watchers have missed. The locks `watchable`, `store` and
/// `batchTx` are held, so no request continues: in the words of etcd's author, it "blocks the
/// entire kv".
pub(super) async fn read_missed(member: &Member, task: &mut SimTask, missed: Missed) {
    let watchable = task.write(&member.locks.watchable).await;
    let store = task.write(&member.locks.store).await;
    let batch_tx = task.write(&member.locks.batch_tx).await;
    task.run(scan_ns(member, missed.since_oldest, missed.record_bytes)).await;
    drop((batch_tx, store, watchable));
}

/// Commits the pending operations, at the start of a compaction or for the applier's snapshot.
pub(super) async fn commit_for_the_applier(member: &Member, task: &mut SimTask) {
    let store = task.write(&member.locks.store).await;
    commit(member, task).await;
    drop(store);
}
