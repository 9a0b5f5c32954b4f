//! etcd 3.0: a linearizable read is an entry of the log, and all reads write.
//!
//! Such a read waits for the disks of a quorum and for every write before it, and delays every
//! write behind it. A serializable read does not.
//!
//! All take the same two mutexes for their whole length, as in [3.1](super::one_mutex). A request
//! that begins writes the consistent index, though it only reads, so the backend has something to
//! commit even without writes.

use super::one_mutex;
use crate::requests::{Range, Write};
use crate::server::Member;
use crate::sim_task::SimTask;

pub(super) async fn range(member: &Member, task: &mut SimTask, range: Range) {
    let store = task.write(&member.locks.store).await;
    let batch_tx = task.write(&member.locks.batch_tx).await;
    write_consistent_index(member, task).await;
    one_mutex::read_under_locks(member, task, range).await;
    drop((batch_tx, store));
}

pub(super) async fn write(member: &Member, task: &mut SimTask, write: Write) {
    let watchable = task.write(&member.locks.watchable).await;
    let store = task.write(&member.locks.store).await;
    let batch_tx = task.write(&member.locks.batch_tx).await;
    write_consistent_index(member, task).await;
    one_mutex::write_under_locks(member, task, write).await;
    drop((batch_tx, store, watchable));
}

/// Writes the consistent index, one small record in the backend.
async fn write_consistent_index(member: &Member, task: &mut SimTask) {
    task.run(member.build.costs.buffer_op_ns).await;
    member.pending.set(member.pending.get() + 1);
}
