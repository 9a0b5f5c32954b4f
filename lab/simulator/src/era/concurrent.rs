//! etcd 3.4 on: a read holds `readTx` only for as long as it takes to copy what is pending.
//!
//! So a slow read does not delay the end of a write. It still holds `store`, which only compactions
//! and snapshots take exclusively, and the index while it walks. From 3.5 on reads share a copy, as
//! long as nothing was written since it was made.

use clearlane_backend::Era;

use super::steps::{records_ns, walk_ns};
use crate::requests::Range;
use crate::server::Member;
use crate::sim_task::SimTask;

/// From 3.5 on reads share a copy of the buffer; in 3.4 each makes its own.
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

/// The index is cloned in a moment, and then walked with the lock acquired anew for every few keys.
pub(super) async fn compact_index(member: &Member, task: &mut SimTask, keys: u64) {
    const AT_ONCE: u64 = 256;
    for begin in (0..keys).step_by(AT_ONCE as usize) {
        let tree_index = task.write(&member.locks.tree_index).await;
        task.run(member.build.costs.index_key_ns * AT_ONCE.min(keys - begin)).await;
        drop(tree_index);
    }
}
