//! Monitors the free space on the disk. This member raises the alarm NOSPACE before the disk is
//! full, and its log waits while the disk is full (`docs/maintenance.md`).
//!
//! The commit thread compares the free space with the needs of the next commit. A commit needs 4
//! MiB, and twice the bytes that the log has received since the last commit; at most 80 MiB of
//! these bytes are counted. The picture shows the disk of the store. If the log is on another disk,
//! the member is also considered low on space if that disk has less free space than the left limit
//! in the picture.
//!
//! ```text
//!   free   ────────────────────────────────────────────────────────────▶ 0
//!               12 MiB more than a commit needs        what a commit needs
//!      all is well    │   low: NOSPACE, writes are       │  no commit is started; applied entries
//!                     │   rejected, deletes are not      │  stay in memory, and in the log
//! ```
//!
//! A low disk has recovered when twice the left limit is free. Then the member proposes to disarm
//! its alarm, unless the quota is exceeded or the alarm was raised before a restart. Writes are
//! accepted again when no member has the alarm NOSPACE.
//!
//! The thread that writes the log [waits](DiskSpace::retry_while_full) while the disk is full, and
//! tries again every 200 ms. If the waiting member leads, it transfers leadership, because a leader
//! that cannot write blocks all members. At each check of a low disk, unless a transfer is in
//! progress, the raft loop starts a transfer to the other voter with the highest acknowledged
//! index. That voter need not be prompt in its acknowledgements. In addition, the log stalls if it
//! waits for one election time-out. Then the rules in `crates/replica/src/state_machines/stall.rs`
//! apply, and the leader may step down.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clearlane_wal::files::is_out_of_space;
use parking_lot::{Condvar, Mutex};

use super::ServerState;
use super::raft_loop_queue::RaftLoopEvent;

/// Bytes that a commit needs in addition to its data.
const COMMIT_RESERVE_BYTES: u64 = 4 << 20;
/// Number of free bytes, in addition to the bytes that a commit needs, below which the disk is low.
const LOW_SPACE_MARGIN_BYTES: u64 = 12 << 20;
/// Maximum number of log bytes that are counted as pending. If the log has received more bytes
/// since the last commit, the entries above this maximum were usually rejected when they were
/// applied, or are not applied yet. A batch of large puts can exceed this maximum, because the
/// limit of [`clearlane_backend::Config`] is checked before a transaction and not during it.
const PENDING_BYTES_MAX: u64 = 80 << 20;
/// Number of free bytes that a compaction step needs for each removed record. Each removed record
/// may need a separate page.
const REMOVED_RECORD_BYTES_MAX: u64 = 16 << 10;
/// Time between two checks of the free space.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(50);
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
pub(super) struct DiskSpace {
    is_low: AtomicBool,
    pub(super) are_commits_forbidden: AtomicBool,
    pub(super) is_wal_waiting: AtomicBool,
    /// If true, this member has proposed NOSPACE because of the disk, and has not disarmed it.
    pub(super) has_raised_alarm: AtomicBool,
    phase: Mutex<MonitorPhase>,
    changed: Condvar,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum MonitorPhase {
    /// The member is starting. On a full disk it reports an error instead of waiting.
    #[default]
    Starting,
    Running,
    Stopping,
}

impl DiskSpace {
    pub(super) fn is_low(&self) -> bool {
        self.is_low.load(Ordering::Relaxed)
    }

    pub(super) fn start(&self) {
        *self.phase.lock() = MonitorPhase::Running;
    }

    /// Ends all waits for space.
    pub(super) fn stop(&self) {
        *self.phase.lock() = MonitorPhase::Stopping;
        self.changed.notify_all();
    }

    /// Retries a write every 200 ms while the disk is full, until the member stops. During startup
    /// the error is returned immediately. The write must not depend on the effects of a failed
    /// attempt. A request that waits for the write times out. Reads need neither the log nor a
    /// commit, and continue; a linearizable read waits only if it must see an entry that waits
    /// here.
    pub(super) fn retry_while_full(
        &self,
        mut write: impl FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let mut has_told = false;
        loop {
            match write() {
                Err(error) if is_out_of_space(&error) && self.wait_to_retry() => {
                    if !std::mem::replace(&mut has_told, true) {
                        tracing::error!(%error, "the log waits for free disk space");
                        self.is_wal_waiting.store(true, Ordering::Relaxed);
                    }
                }
                done => {
                    if has_told {
                        self.is_wal_waiting.store(false, Ordering::Relaxed);
                    }
                    return done;
                }
            }
        }
    }

    /// Waits before a retry. Returns false during startup, and once the member stops.
    fn wait_to_retry(&self) -> bool {
        let mut phase = self.phase.lock();
        if *phase == MonitorPhase::Running {
            self.changed.wait_for(&mut phase, RETRY_INTERVAL);
        }
        *phase == MonitorPhase::Running
    }
}

/// The commit thread's view of the disk. Only that thread uses it.
#[derive(Debug)]
pub(super) struct DiskSpaceMonitor {
    last_check: Option<Instant>,
    replay_bytes: u64,
    /// Bytes written to the log as of the last check. `committed_bytes` is the part of these bytes
    /// whose entries are committed to the store.
    log_bytes: u64,
    committed_bytes: u64,
    has_space_for_commit: bool,
}

impl DiskSpaceMonitor {
    /// Creates a monitor. `behind` is the number of bytes that are in the log and not in the
    /// durable store; their entries are applied again.
    pub(super) fn new(behind: u64) -> DiskSpaceMonitor {
        DiskSpaceMonitor {
            last_check: None,
            replay_bytes: behind,
            log_bytes: 0,
            committed_bytes: 0,
            has_space_for_commit: true,
        }
    }

    /// Returns the maximum number of records that a compaction step may remove. While the disk is
    /// low, the number depends on the free space, which this function checks again.
    pub(super) fn compaction_batch_max(&mut self, shared: &ServerState, batch: usize) -> usize {
        if !shared.disk_space.is_low() {
            return batch;
        }
        let spare = shared.store_dir.free_space().saturating_sub(self.commit_bytes_needed());
        batch.min(usize::try_from(spare / REMOVED_RECORD_BYTES_MAX).unwrap_or(usize::MAX))
    }

    fn commit_bytes_needed(&self) -> u64 {
        2 * self.log_bytes.saturating_sub(self.committed_bytes).min(PENDING_BYTES_MAX)
            + COMMIT_RESERVE_BYTES
    }

    /// Returns whether the disk has space for a commit, as of the last check. The check is repeated
    /// after [`CHECK_INTERVAL`].
    pub(super) fn has_space_for_commit(&mut self, shared: &ServerState) -> bool {
        if self.last_check.is_some_and(|looked| looked.elapsed() < CHECK_INTERVAL) {
            self.has_space_for_commit
        } else {
            self.check(shared)
        }
    }

    /// Checks the free space, and publishes the result. Returns whether a commit may start now.
    pub(super) fn check(&mut self, shared: &ServerState) -> bool {
        self.last_check = Some(Instant::now());
        self.log_bytes = self.replay_bytes + shared.metrics.log_bytes.load(Ordering::Relaxed);
        if shared.store.load().sizes().is_ok_and(|sizes| sizes.pending_ops == 0) {
            self.record_commit();
        }
        let needed = self.commit_bytes_needed();
        let free = shared.store_dir.free_space();
        publish_low_space(
            shared,
            free.min(shared.files.free_space(&shared.wal_dir)),
            needed + LOW_SPACE_MARGIN_BYTES,
        );
        self.has_space_for_commit = free >= needed;
        let are_forbidden = &shared.disk_space.are_commits_forbidden;
        are_forbidden.store(!self.has_space_for_commit, Ordering::Relaxed);
        self.has_space_for_commit
    }

    /// Records a commit. After this call, all bytes that the log had at the last check are
    /// considered committed. The last of these entries may not be applied yet, but their bytes are
    /// few.
    pub(super) fn record_commit(&mut self) {
        self.committed_bytes = self.log_bytes;
    }
}

/// Publishes whether the disk is low. A disk with fewer than `least` free bytes is low. A low disk
/// has recovered when at least twice `least` bytes are free.
fn publish_low_space(shared: &ServerState, free: u64, least: u64) {
    let disk = &shared.disk_space;
    let was_low = disk.is_low();
    let least = if was_low { 2 * least } else { least };
    let is_low = free < least;
    disk.is_low.store(is_low, Ordering::Relaxed);
    if is_low && !was_low {
        tracing::error!(free, least, "the disk is nearly full: writes are rejected");
    } else if was_low && !is_low {
        tracing::info!(free, "the disk has free space again");
    }
    if is_low || was_low || disk.has_raised_alarm.load(Ordering::Relaxed) {
        shared.raft_queue.push([RaftLoopEvent::DiskSpace]);
    }
}
