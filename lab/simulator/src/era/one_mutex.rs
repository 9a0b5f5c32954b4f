//! etcd 3.0 and 3.1: reads and writes take the same two mutexes, for their whole length.
//!
//! Reads go through the engine's only transaction, too. So a request inside excludes all others: a
//! read, a write, the timer's commit with its sync, and the pass over unsynced watchers.
//!
//! In 3.0 a linearizable read is an entry of the log. It waits for the disks of a quorum and for
//! every write before it, and delays every write behind it. A request that begins writes the
//! consistent index, though it only reads, so there is something to commit even without writes.

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

/// In 3.0: one small record in the backend.
async fn write_consistent_index(member: &Member, task: &mut SimTask) {
    if member.build.era == Era::V3_0 {
        task.run(member.build.costs.buffer_op_ns).await;
        member.pending.set(member.pending.get() + 1);
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
