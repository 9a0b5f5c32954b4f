//! Free space on the disk: NOSPACE before it is gone, waiting when it is (`docs/maintenance.md`).
//!
//! The commit thread compares what is free with what the next commit needs: twice what has come
//! through the log since the last one, and 4 MiB.
//!
//! ```text
//!   free   ────────────────────────────────────────────────────────────▶ 0
//!               12 MiB more than a commit needs        what a commit needs
//!      all is well    │   low: NOSPACE, writes are       │  no commit is begun; what is applied
//!                     │   refused, deletes are not       │  stays in memory, and in the log
//! ```
//!
//! The log's thread [waits](DiskSpace::retry_while_full) on a full disk, and writes again.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clearlane_wal::files::is_out_of_space;
use parking_lot::{Condvar, Mutex};

use super::ServerState;
use super::raft_loop_queue::RaftLoopEvent;

/// Bytes that a commit needs beside its data.
const COMMIT_RESERVE_BYTES: u64 = 4 << 20;
/// Below this much more than a commit needs the disk is low.
const LOW_SPACE_MARGIN_BYTES: u64 = 12 << 20;
/// Bound on the pending bytes, with one transaction: [`clearlane_backend::Config`]. Anything beyond
/// that the log has taken was refused when it was applied.
const PENDING_BYTES_MAX: u64 = 80 << 20;
/// A removed record may cost a compaction step a page of its own.
const REMOVED_RECORD_BYTES_MAX: u64 = 16 << 10;
/// Between two checks of the free space.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(50);
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
pub(super) struct DiskSpace {
    is_low: AtomicBool,
    pub(super) are_commits_forbidden: AtomicBool,
    pub(super) is_wal_waiting: AtomicBool,
    /// This member has proposed NOSPACE because of the disk, and has not disarmed it.
    pub(super) has_raised_alarm: AtomicBool,
    phase: Mutex<MonitorPhase>,
    changed: Condvar,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum MonitorPhase {
    /// A member that starts on a full disk reports an error instead of waiting.
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

    /// Ends all waits for room.
    pub(super) fn stop(&self) {
        *self.phase.lock() = MonitorPhase::Stopping;
        self.changed.notify_all();
    }

    /// Retries a write while the disk is full; it must not depend on what a failed attempt has
    /// left. A request that waits for it times out; reads need neither the log nor a commit, and go
    /// on.
    pub(super) fn retry_while_full(
        &self,
        mut write: impl FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let mut has_told = false;
        loop {
            match write() {
                Err(error) if is_out_of_space(&error) && self.wait_to_retry() => {
                    if !std::mem::replace(&mut has_told, true) {
                        tracing::error!(%error, "the log waits for room on the disk");
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

    /// Returns false once the member stops.
    fn wait_to_retry(&self) -> bool {
        let mut phase = self.phase.lock();
        if *phase == MonitorPhase::Running {
            self.changed.wait_for(&mut phase, RETRY_INTERVAL);
        }
        *phase == MonitorPhase::Running
    }
}

/// Owned by the commit thread.
#[derive(Debug)]
pub(super) struct DiskSpaceMonitor {
    last_check: Option<Instant>,
    replay_bytes: u64,
    /// Bytes written to the log as of the last check, and how many of them are committed.
    log_bytes: u64,
    committed_bytes: u64,
    has_space_for_commit: bool,
}

impl DiskSpaceMonitor {
    /// `behind`: bytes in the log and not in the durable store, which are applied again.
    pub(super) fn new(behind: u64) -> DiskSpaceMonitor {
        DiskSpaceMonitor {
            last_check: None,
            replay_bytes: behind,
            log_bytes: 0,
            committed_bytes: 0,
            has_space_for_commit: true,
        }
    }

    /// Bound on the records that a compaction step removes, by a fresh look at the disk while it is
    /// low.
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

    /// As of the last check, which is repeated after [`CHECK_INTERVAL`].
    pub(super) fn has_space_for_commit(&mut self, shared: &ServerState) -> bool {
        if self.last_check.is_some_and(|looked| looked.elapsed() < CHECK_INTERVAL) {
            self.has_space_for_commit
        } else {
            self.check(shared)
        }
    }

    /// Returns whether a commit may begin now.
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

    /// Counts the log as of the last check as committed; what of it was not applied yet is little.
    pub(super) fn record_commit(&mut self) {
        self.committed_bytes = self.log_bytes;
    }
}

/// A disk that was low has room again when twice as much is free.
fn publish_low_space(shared: &ServerState, free: u64, least: u64) {
    let disk = &shared.disk_space;
    let was_low = disk.is_low();
    let least = if was_low { 2 * least } else { least };
    let is_low = free < least;
    disk.is_low.store(is_low, Ordering::Relaxed);
    if is_low && !was_low {
        tracing::error!(free, least, "the disk is nearly full: writes are refused");
    } else if was_low && !is_low {
        tracing::info!(free, "the disk has room again");
    }
    if is_low || was_low || disk.has_raised_alarm.load(Ordering::Relaxed) {
        shared.raft_queue.push([RaftLoopEvent::DiskSpace]);
    }
}
