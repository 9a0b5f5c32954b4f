//! What each era holds while it works in the background.

use clearlane_backend::Era;

use super::steps::notify_ns;
use super::{clearlane, concurrent, one_mutex, read_tx};
use crate::requests::{Missed, Write};
use crate::server::Member;
use crate::sim_task::SimTask;

/// How a compaction goes through the backend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batches {
    /// Per batch.
    pub(crate) revisions: u64,
    /// After each batch.
    pub(crate) pause_ns: u64,
    /// Whether it scans all revisions, or only those that are removed.
    pub(crate) of_all: bool,
}

/// Default number of entries between two snapshots; 0: there are none.
pub(crate) fn snapshot_count(era: Era) -> u64 {
    match era {
        Era::V3_0 | Era::V3_1 => 10_000,
        Era::V3_2 | Era::V3_4 | Era::V3_5 => 100_000,
        Era::Clearlane => 0,
    }
}

pub(crate) fn compaction_batches(era: Era) -> Batches {
    match era {
        Era::V3_0 | Era::V3_1 | Era::V3_2 => {
            Batches { revisions: 10_000, pause_ns: 100_000_000, of_all: true }
        }
        Era::V3_4 | Era::V3_5 => Batches { revisions: 1_000, pause_ns: 10_000_000, of_all: true },
        Era::Clearlane => Batches { revisions: 1_000, pause_ns: 10_000_000, of_all: false },
    }
}

/// Before 3.5 a password is checked with a lock held.
pub(crate) fn checks_passwords_inside(era: Era) -> bool {
    match era {
        Era::V3_0 | Era::V3_1 | Era::V3_2 | Era::V3_4 => true,
        Era::V3_5 | Era::Clearlane => false,
    }
}

pub(crate) async fn reads_what_was_missed(member: &Member, task: &mut SimTask, missed: Missed) {
    match member.build.era {
        Era::V3_0 | Era::V3_1 => one_mutex::reads_what_was_missed(member, task, missed).await,
        Era::V3_2 | Era::V3_4 | Era::V3_5 => {
            read_tx::reads_what_was_missed(member, task, missed).await;
        }
        Era::Clearlane => clearlane::reads_what_was_missed(member, task, missed).await,
    }
}

/// The other eras notify synced watchers during the write.
pub(crate) async fn tells_watchers_behind(member: &Member, task: &mut SimTask, write: Write) {
    if member.build.era == Era::Clearlane {
        task.run(notify_ns(member, write)).await;
    }
}

pub(crate) async fn begins_compaction(member: &Member, task: &mut SimTask) {
    match member.build.era {
        Era::V3_0 | Era::V3_1 => one_mutex::commit_for_the_applier(member, task).await,
        Era::V3_2 | Era::V3_4 | Era::V3_5 => read_tx::begins_compaction(member, task).await,
        // Part of the next commit.
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

pub(crate) async fn compacts_index(member: &Member, task: &mut SimTask, keys: u64) {
    match member.build.era {
        Era::V3_0 | Era::V3_1 => one_mutex::compacts_index(member, task, keys).await,
        Era::V3_2 => read_tx::compacts_index(member, task, keys).await,
        Era::V3_4 | Era::V3_5 => concurrent::compacts_index(member, task, keys).await,
        Era::Clearlane => clearlane::compacts_index(member, task, keys).await,
    }
}

/// Scans `all` revisions and removes `gone` of them.
pub(crate) async fn compacts_batch(member: &Member, task: &mut SimTask, all: u64, gone: u64) {
    match member.build.era {
        Era::V3_0 | Era::V3_1 => one_mutex::compacts_batch(member, task, all, gone).await,
        Era::V3_2 => read_tx::compacts_batch(member, task, all, gone).await,
        Era::V3_4 | Era::V3_5 => concurrent::compacts_batch(member, task, all, gone).await,
        Era::Clearlane => clearlane::compacts_batch(member, task, gone).await,
    }
}

/// Until 3.4 the permission is read through the write transaction.
pub(crate) async fn permits(member: &Member, task: &mut SimTask) {
    let lock = match member.build.era {
        Era::V3_0 | Era::V3_1 | Era::V3_2 | Era::V3_4 => {
            Some(task.write(&member.locks.batch_tx).await)
        }
        Era::V3_5 => Some(task.read(&member.locks.read_tx).await),
        Era::Clearlane => None,
    };
    task.run(member.build.costs.permission_ns).await;
    drop(lock);
}

/// The user is read through the write transaction, which is kept for the check if `inside`.
pub(crate) async fn checks_password(
    member: &Member,
    task: &mut SimTask,
    bcrypt_ns: u64,
    inside: bool,
) {
    if member.build.era == Era::Clearlane {
        return task.run(member.build.costs.record_ns + bcrypt_ns).await;
    }
    let batch_tx = task.write(&member.locks.batch_tx).await;
    task.run(member.build.costs.record_ns).await;
    if inside {
        task.run(bcrypt_ns).await;
        drop(batch_tx);
    } else {
        drop(batch_tx);
        task.run(bcrypt_ns).await;
    }
}
