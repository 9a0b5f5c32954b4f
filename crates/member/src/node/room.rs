//! Is there room on the disk, and what if there is none?
//!
//! # The problem
//!
//! A disk gets full while others write to it, or because nobody has looked. Then a commit of the store
//! fails in its middle, and an engine whose write has failed is of no use until it is opened again; the
//! log cannot take the alarm that would stop the cluster from growing.
//!
//! # The idea
//!
//! Look ahead. The thread that commits asks the file system how much is left, and compares it with what
//! the next commit needs: about twice what has come through the log since the last one.
//!
//! ```text
//!   free   ────────────────────────────────────────────────────────────▶ 0
//!               what a commit needs + 16 MiB      what it needs + 4 MiB
//!      all is well      │   low: NOSPACE, writes are  │  no commit is begun; what is applied stays
//!                       │   refused, room can be made │  in memory, and in the log
//! ```
//!
//! The alarm is the same as that of the [quota](crate::quota): puts are refused by every member, and
//! deletes and compactions are let through. It is taken back by the member that has raised it, when the
//! disk has twice the room; one that was raised before a restart, or for the quota, is taken back by a
//! person.
//!
//! The log keeps two megabytes for itself behind its end, so that what makes room can be written to it.
//! Should it meet the end of the disk all the same, its thread [waits](Room::patiently) and writes again:
//! nothing it was given is lost, and who waits for it is told after a while that it took too long. Reads
//! need neither the log nor a commit, and go on. If it leads, it hands over to a member that can write.
//!
//! # What it does not do
//!
//! Another process may take the last bytes in the middle of a commit. Then the member stops, and says
//! why; what was answered is in the log.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clearlane_raft_log::files::is_full;
use parking_lot::{Condvar, Mutex};

use super::Shared;
use super::inbox::ToRaft;

/// What is left behind a commit.
const LEFT: u64 = 4 << 20;
/// So much more, and the disk is not low.
const RESERVE: u64 = 12 << 20;
/// The store lets no more than this wait for a commit, and one transaction: [`clearlane_backend::Config`].
/// What the log has taken beside that was refused when it was applied.
const PENDING_MAX: u64 = 80 << 20;
/// What a removed record may cost in a compaction's step: a page of its own.
const REMOVAL: u64 = 16 << 10;
/// How often the file system is asked, and the log tries again.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(50);
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// What the threads know of the disk.
#[derive(Debug, Default)]
pub(super) struct Room {
    is_low: AtomicBool,
    no_commits: AtomicBool,
    log_waits: AtomicBool,
    /// This member has proposed an alarm because of it, and has not taken it back.
    pub(super) has_alarmed: AtomicBool,
    phase: Mutex<Phase>,
    changed: Condvar,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Who starts on a full disk should be told, and not wait.
    #[default]
    Starts,
    Runs,
    Ends,
}

impl Room {
    /// Whether the disk is nearly full.
    pub(super) fn is_low(&self) -> bool {
        self.is_low.load(Ordering::Relaxed)
    }

    /// Whether a commit might not fit.
    pub(super) fn forbids_commits(&self) -> bool {
        self.no_commits.load(Ordering::Relaxed)
    }

    /// Whether the log waits for room.
    pub(super) fn log_waits(&self) -> bool {
        self.log_waits.load(Ordering::Relaxed)
    }

    /// From now on the log waits for room.
    pub(super) fn begin(&self) {
        *self.phase.lock() = Phase::Runs;
    }

    /// From now on nobody waits.
    pub(super) fn end(&self) {
        *self.phase.lock() = Phase::Ends;
        self.changed.notify_all();
    }

    /// Writes, again and again while the disk is full. What is written must not depend on what an
    /// attempt before has left.
    pub(super) fn patiently(&self, mut write: impl FnMut() -> io::Result<()>) -> io::Result<()> {
        let mut has_told = false;
        loop {
            match write() {
                Err(error) if is_full(&error) && self.wait() => {
                    if !std::mem::replace(&mut has_told, true) {
                        tracing::error!(%error, "the log waits for room on the disk");
                        self.log_waits.store(true, Ordering::Relaxed);
                    }
                }
                done => {
                    if has_told {
                        self.log_waits.store(false, Ordering::Relaxed);
                    }
                    return done;
                }
            }
        }
    }

    /// Says whether to try again.
    fn wait(&self) -> bool {
        let mut phase = self.phase.lock();
        if *phase == Phase::Runs {
            self.changed.wait_for(&mut phase, RETRY_INTERVAL);
        }
        *phase == Phase::Runs
    }
}

/// The look of the thread that commits.
#[derive(Debug)]
pub(super) struct Lookout {
    looked: Option<Instant>,
    behind: u64,
    /// How many bytes the log had taken then, and how many of them are committed.
    log_bytes: u64,
    committed_bytes: u64,
    may_commit: bool,
}

impl Lookout {
    /// So many bytes are in the log and not in the store on disk: they are applied again.
    pub(super) fn new(behind: u64) -> Lookout {
        Lookout { looked: None, behind, log_bytes: 0, committed_bytes: 0, may_commit: true }
    }

    /// So many records a step of a compaction may remove: few while there is little room, after another
    /// look.
    pub(super) fn removals(&mut self, shared: &Shared, batch: usize) -> usize {
        if !shared.room.is_low() {
            return batch;
        }
        let spare = shared.vault.free_space().saturating_sub(self.needed());
        batch.min(usize::try_from(spare / REMOVAL).unwrap_or(usize::MAX))
    }

    /// What the next commit needs.
    fn needed(&self) -> u64 {
        2 * self.log_bytes.saturating_sub(self.committed_bytes).min(PENDING_MAX) + LEFT
    }

    /// Whether a commit might be begun, as of the last look; it looks again if that was long ago.
    pub(super) fn may_commit(&mut self, shared: &Shared) -> bool {
        match self.looked.is_some_and(|looked| looked.elapsed() < LOOK_INTERVAL) {
            true => self.may_commit,
            false => self.look(shared),
        }
    }

    /// Looks at the disk. Whether a commit may be begun at once.
    pub(super) fn look(&mut self, shared: &Shared) -> bool {
        self.looked = Some(Instant::now());
        self.log_bytes = self.behind + shared.figures.log_bytes.load(Ordering::Relaxed);
        if shared.store.load().sizes().is_ok_and(|sizes| sizes.pending_ops == 0) {
            self.committed();
        }
        let needed = self.needed();
        let free = shared.vault.free_space();
        let least = if shared.room.is_low() { 2 * (needed + RESERVE) } else { needed + RESERVE };
        self.tell(shared, free.min(shared.files.free_space(&shared.wal_dir)), least);
        self.may_commit = free >= needed;
        shared.room.no_commits.store(!self.may_commit, Ordering::Relaxed);
        self.may_commit
    }

    /// What the log had taken at the last look is committed, but for what was not applied yet, and that
    /// is little.
    pub(super) fn committed(&mut self) {
        self.committed_bytes = self.log_bytes;
    }

    fn tell(&self, shared: &Shared, free: u64, least: u64) {
        let is_low = free < least;
        let was_low = shared.room.is_low.swap(is_low, Ordering::Relaxed);
        if is_low && !was_low {
            tracing::error!(free, least, "the disk is nearly full: writes are refused");
        } else if was_low && !is_low {
            tracing::info!(free, "the disk has room again");
        }
        if is_low != was_low || shared.room.has_alarmed.load(Ordering::Relaxed) || is_low {
            shared.inbox.push([ToRaft::Room]);
        }
    }
}
