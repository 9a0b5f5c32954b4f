//! Which era does what in the background, and what it holds meanwhile.

use clearlane_backend::Era;

use super::steps::notify_ns;
use super::{clearlane, concurrent, one_mutex, read_tx};
use crate::requests::{Missed, Write};
use crate::server::Member;
use crate::sim_task::SimTask;

/// How a compaction goes through the backend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batches {
    /// In one batch.
    pub(crate) revisions: u64,
    /// After it.
    pub(crate) pause_ns: u64,
    /// It goes through all revisions, also those that stay.
    pub(crate) of_all: bool,
}

/// Entries between two snapshots that the applier makes, by default.
pub(crate) fn snapshot_count(era: Era) -> u64 {
    match era {
        Era::V3_0 | Era::V3_1 => 10_000,
        Era::V3_2 | Era::V3_4 | Era::V3_5 => 100_000,
        Era::Clearlane => 0,
    }
}

/// How a compaction goes through the backend.
pub(crate) fn compaction_batches(era: Era) -> Batches {
    match era {
        Era::V3_0 | Era::V3_1 | Era::V3_2 => {
            Batches { revisions: 10_000, pause_ns: 100_000_000, of_all: true }
        }
        Era::V3_4 | Era::V3_5 => Batches { revisions: 1_000, pause_ns: 10_000_000, of_all: true },
        Era::Clearlane => Batches { revisions: 1_000, pause_ns: 10_000_000, of_all: false },
    }
}

/// Whether a password is checked with a lock held: until 3.5, which let it go in between.
pub(crate) fn checks_passwords_inside(era: Era) -> bool {
    match era {
        Era::V3_0 | Era::V3_1 | Era::V3_2 | Era::V3_4 => true,
        Era::V3_5 | Era::Clearlane => false,
    }
}

/// Watchers that are behind are brought what they missed.
pub(crate) async fn reads_what_was_missed(member: &Member, trip: &mut SimTask, missed: Missed) {
    match member.build.era {
        Era::V3_0 | Era::V3_1 => one_mutex::reads_what_was_missed(member, trip, missed).await,
        Era::V3_2 | Era::V3_4 | Era::V3_5 => {
            read_tx::reads_what_was_missed(member, trip, missed).await;
        }
        Era::Clearlane => clearlane::reads_what_was_missed(member, trip, missed).await,
    }
}

/// Watchers that are not behind hear of a write: inside it, or when the writer has been answered.
pub(crate) async fn tells_watchers_behind(member: &Member, trip: &mut SimTask, write: Write) {
    if member.build.era == Era::Clearlane {
        trip.run(notify_ns(member, write)).await;
    }
}

/// The applier begins one.
pub(crate) async fn begins_compaction(member: &Member, trip: &mut SimTask) {
    match member.build.era {
        Era::V3_0 | Era::V3_1 => one_mutex::commit_for_the_applier(member, trip).await,
        Era::V3_2 | Era::V3_4 | Era::V3_5 => read_tx::begins_compaction(member, trip).await,
        // It is noted with the next commit.
        Era::Clearlane => {}
    }
}

/// The applier notes how far the backend is.
pub(crate) async fn disk_snapshot(member: &Member, trip: &mut SimTask) {
    match member.build.era {
        Era::V3_0 | Era::V3_1 => one_mutex::commit_for_the_applier(member, trip).await,
        Era::V3_2 | Era::V3_4 | Era::V3_5 => read_tx::disk_snapshot(member, trip).await,
        // What the last commit has written is known without asking it.
        Era::Clearlane => {}
    }
}

/// The index is walked to find what must stay.
pub(crate) async fn compacts_index(member: &Member, trip: &mut SimTask, keys: u64) {
    match member.build.era {
        Era::V3_0 | Era::V3_1 => one_mutex::compacts_index(member, trip, keys).await,
        Era::V3_2 => read_tx::compacts_index(member, trip, keys).await,
        Era::V3_4 | Era::V3_5 => concurrent::compacts_index(member, trip, keys).await,
        Era::Clearlane => clearlane::compacts_index(member, trip, keys).await,
    }
}

/// So many revisions are looked through, of which so many go.
pub(crate) async fn compacts_batch(member: &Member, trip: &mut SimTask, all: u64, gone: u64) {
    match member.build.era {
        Era::V3_0 | Era::V3_1 => one_mutex::compacts_batch(member, trip, all, gone).await,
        Era::V3_2 => read_tx::compacts_batch(member, trip, all, gone).await,
        Era::V3_4 | Era::V3_5 => concurrent::compacts_batch(member, trip, all, gone).await,
        Era::Clearlane => clearlane::compacts_batch(member, trip, gone).await,
    }
}

/// May this user do this? Until 3.4 that is asked through the transaction of the writer.
pub(crate) async fn permits(member: &Member, trip: &mut SimTask) {
    let lock = match member.build.era {
        Era::V3_0 | Era::V3_1 | Era::V3_2 | Era::V3_4 => {
            Some(trip.write(&member.locks.batch_tx).await)
        }
        Era::V3_5 => Some(trip.read(&member.locks.read_tx).await),
        Era::Clearlane => None,
    };
    trip.run(member.build.costs.permission_ns).await;
    drop(lock);
}

/// Is this the password? The user is looked up through the transaction of the writer, which an era
/// that checks inside keeps until it knows.
pub(crate) async fn checks_password(
    member: &Member,
    trip: &mut SimTask,
    bcrypt_ns: u64,
    inside: bool,
) {
    if member.build.era == Era::Clearlane {
        return trip.run(member.build.costs.record_ns + bcrypt_ns).await;
    }
    let batch_tx = trip.write(&member.locks.batch_tx).await;
    trip.run(member.build.costs.record_ns).await;
    if inside {
        trip.run(bcrypt_ns).await;
        drop(batch_tx);
    } else {
        drop(batch_tx);
        trip.run(bcrypt_ns).await;
    }
}
