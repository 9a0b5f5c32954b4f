//! etcd since 3.4: a read holds `readTx` only while it copies the pending operations.
//!
//! So a slow read does not delay the end of a write. But it still holds two other locks: `store`,
//! which only compactions and snapshots take exclusively, and `treeIndex` during its walk over the
//! index. From 3.5 on, reads share a copy until the next write or commit.

use clearlane_backend::Era;

use super::steps::{records_ns, walk_ns};
use crate::requests::Range;
use crate::server::Member;
use crate::sim_task::SimTask;

/// Reads a range. From 3.5 on, reads share a copy of the buffer. In 3.4 each read makes its own
/// copy.
pub(super) async fn range(member: &Member, task: &mut SimTask, range: Range) {
    let store = task.read(&member.locks.store).await;
    let rev_mu = task.read(&member.locks.rev_mu).await;
    let read_tx = task.read(&member.locks.read_tx).await;
    let version = member.buffer_version.get();
    if member.build.era == Era::V3_4 || member.copied_version.get() != Some(version) {
        member.copied_version.set(Some(version));
        task.run(member.pending.get() * member.build.costs.buffer_op_ns).await;
    }
    drop((read_tx, rev_mu));
    let tree_index = task.read(&member.locks.tree_index).await;
    task.run(walk_ns(member, range.keys)).await;
    drop(tree_index);
    task.run(records_ns(member, range)).await;
    drop(store);
}

/// The index is cloned in a very short time and then walked. The walk acquires the lock again for
/// every 256 keys.
pub(super) async fn compact_index(member: &Member, task: &mut SimTask, keys: u64) {
    const AT_ONCE: u64 = 256;
    for begin in (0..keys).step_by(AT_ONCE as usize) {
        let tree_index = task.write(&member.locks.tree_index).await;
        task.run(member.build.costs.index_key_ns * AT_ONCE.min(keys - begin)).await;
        drop(tree_index);
    }
}
