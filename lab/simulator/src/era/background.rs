//! The locks that each era holds while it works in the background.

use clearlane_backend::Era;

use super::steps::{flush_pending, notify_ns, remove_ns, walk_ns};
use super::{clearlane, concurrent, one_mutex, read_tx};
use crate::requests::{Missed, Write};
use crate::server::Member;
use crate::sim_task::SimTask;

/// The settings of background work that differ between the eras.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Default number of entries between two snapshots. If 0, there are no snapshots.
    pub(crate) snapshot_count: u64,
    /// Number of revisions in a batch of a compaction.
    pub(crate) batch_revisions: u64,
    /// Pause between two batches of a compaction.
    pub(crate) batch_pause_ns: u64,
    /// If true, a compaction scans all revisions. Otherwise it scans only the removed revisions.
    pub(crate) scans_all: bool,
    /// If true, a password is checked with a lock held.
    pub(crate) checks_passwords_inside: bool,
}

pub(crate) fn settings(era: Era) -> Settings {
    Settings {
        snapshot_count: match era {
            Era::V3_0 | Era::V3_1 => 10_000,
            Era::V3_2 | Era::V3_4 | Era::V3_5 => 100_000,
            Era::Clearlane => 0,
        },
        batch_revisions: if era < Era::V3_4 { 10_000 } else { 1_000 },
        batch_pause_ns: if era < Era::V3_4 { 100_000_000 } else { 10_000_000 },
        scans_all: era < Era::Clearlane,
        checks_passwords_inside: era < Era::V3_5,
    }
}

pub(crate) async fn read_missed(member: &Member, task: &mut SimTask, missed: Missed) {
    match member.build.era {
        Era::V3_0 | Era::V3_1 => one_mutex::read_missed(member, task, missed).await,
        Era::V3_2 | Era::V3_4 | Era::V3_5 => {
            read_tx::read_missed(member, task, missed).await;
        }
        Era::Clearlane => clearlane::read_missed(member, task, missed).await,
    }
}

/// In the era `clearlane`, notifies synced watchers after the write. The other eras notify them
/// during the write.
pub(crate) async fn notify_after_write(member: &Member, task: &mut SimTask, write: Write) {
    if member.build.era == Era::Clearlane {
        task.run(notify_ns(member, write)).await;
    }
}

pub(crate) async fn begin_compaction(member: &Member, task: &mut SimTask) {
    match member.build.era {
        Era::V3_0 | Era::V3_1 => one_mutex::commit_for_the_applier(member, task).await,
        Era::V3_2 | Era::V3_4 | Era::V3_5 => read_tx::begin_compaction(member, task).await,
        // The start of a compaction commits nothing. Each batch is committed separately.
        Era::Clearlane => {}
    }
}

pub(crate) async fn disk_snapshot(member: &Member, task: &mut SimTask) {
    match member.build.era {
        Era::V3_0 | Era::V3_1 => one_mutex::commit_for_the_applier(member, task).await,
        Era::V3_2 | Era::V3_4 | Era::V3_5 => read_tx::disk_snapshot(member, task).await,
        // The position of the last commit is known without a commit.
        Era::Clearlane => {}
    }
}

pub(crate) async fn compact_index(member: &Member, task: &mut SimTask, keys: u64) {
    match member.build.era {
        // Lookups of keys wait until the walk over the whole index ends.
        Era::V3_0 | Era::V3_1 | Era::V3_2 => {
            let tree_index = task.write(&member.locks.tree_index).await;
            task.run(walk_ns(member, keys)).await;
            drop(tree_index);
        }
        Era::V3_4 | Era::V3_5 => concurrent::compact_index(member, task, keys).await,
        Era::Clearlane => task.run(walk_ns(member, keys)).await,
    }
}

/// Scans `all` revisions and removes `gone` of them. In the era `clearlane`, scans only the removed
/// revisions. Up to 3.2, a commit follows only if enough operations are pending. From 3.4 on, a
/// commit follows each batch, and batches are smaller. So requests of 3.4 and 3.5 are blocked more
/// often and for shorter times.
pub(crate) async fn compact_batch(member: &Member, task: &mut SimTask, all: u64, gone: u64) {
    let era = member.build.era;
    if era == Era::Clearlane {
        // The batch is committed immediately, without a lock.
        task.run(remove_ns(member, gone, gone)).await;
        return flush_pending(member, task).await;
    }
    let batch_tx = task.write(&member.locks.batch_tx).await;
    task.run(remove_ns(member, all, gone)).await;
    if era >= Era::V3_4 || member.pending.get() >= member.model.batch_limit {
        match era {
            Era::V3_0 | Era::V3_1 => flush_pending(member, task).await,
            _ => read_tx::commit_under_locks(member, task).await,
        }
    }
    drop(batch_tx);
}

/// Checks the permission of a request. Up to 3.4, the request's user is looked up in the store,
/// with `batchTx` held.
pub(crate) async fn check_permission(member: &Member, task: &mut SimTask) {
    let is_locked = member.build.era < Era::V3_5;
    let lock = if is_locked { Some(task.write(&member.locks.batch_tx).await) } else { None };
    task.run(member.build.costs.permission_ns).await;
    drop(lock);
}

/// Checks the permission of an entry. In every era, the entry's user is looked up in memory.
pub(crate) async fn check_entry_permission(member: &Member, task: &mut SimTask) {
    task.run(member.build.costs.permission_ns).await;
}

/// Checks a password. If `inside` is true, `batchTx` is held during the check. Otherwise the check
/// runs in a pool of low priority. The era `clearlane` has no such lock and always uses the pool.
pub(crate) async fn check_password(
    member: &Member,
    task: &mut SimTask,
    bcrypt_ns: u64,
    inside: bool,
) {
    if inside && member.build.era != Era::Clearlane {
        let batch_tx = task.write(&member.locks.batch_tx).await;
        task.run(member.build.costs.record_ns + bcrypt_ns).await;
        drop(batch_tx);
        return;
    }
    task.wait_for_place(&member.password_pool, "a password thread").await;
    task.runs_in_background = true;
    task.run(bcrypt_ns).await;
    task.runs_in_background = false;
    member.password_pool.give_back();
}
