//! The apply loop: applies what the raft loop hands over, publishes it, and completes the requests that wait for it.
//!
//! It is the only thread that writes to the store, and may wait as long as the store takes: for locks in the old
//! eras, for the committer when too much is pending. Neither delays a tick or a message of raft. etcd's
//! counterpart is the goroutine of `EtcdServer.run` that calls `applyAll`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use clearlane_backend::Retired;
use clearlane_mvcc::{Change, CompactionJob};

use super::commit_thread::ToCommit;
use super::completions::Sorted;
use super::{Shared, slow};
use crate::actors::{APPLIER, RAFT};
use crate::core::{Applied, Applier, ApplyEffects, Completions, NewStore, Outcome, Slow, ToApply};
use crate::error::Result;
use crate::recording::Doing;

/// Old states that go together to the thread that drops them, which need not be woken for each.
const RETIRED_MAX: usize = 256;
/// Fewer wait for others no longer than this: each keeps records in memory that no reader needs any more.
const RETIRED_WAIT: Duration = Duration::from_millis(100);

/// Carries out what the apply half says. A thread that has gone has failed, and said so.
struct Effects<'s> {
    shared: &'s Shared,
    to_commit: Sender<ToCommit>,
    sorted: Sorted,
    /// Old states, for the commit thread to drop.
    retired: Vec<Retired>,
    /// When the last ones went there.
    dropped_at: Duration,
    slow_limit: Duration,
}

/// Works until the raft loop has gone, and all that it has handed over is applied.
pub(super) fn run(
    mut applier: Applier,
    work: &Receiver<ToApply>,
    to_commit: Sender<ToCommit>,
    shared: &Shared,
) -> Result<()> {
    let _watching = EndsWithMe(shared);
    let _as = APPLIER.enter();
    let mut shift = shared.recording.shift(*APPLIER);
    let (sorted, retired, dropped_at) = Default::default();
    let slow_limit = applier.slow_limit();
    let mut effects = Effects { shared, to_commit, sorted, retired, dropped_at, slow_limit };
    // What the start has found.
    applier.step()?.carry_out(&mut effects);
    loop {
        if !applier.has_work() {
            let next = match effects.retired.is_empty() {
                true => work.recv().map_err(RecvTimeoutError::from),
                false => work.recv_timeout(effects.retired_wait()),
            };
            shift.over(if shared.wait.is_empty() {
                Doing::Nothing
            } else {
                Doing::WaitsFor(*RAFT)
            });
            match next {
                Ok(next) => applier.give(next),
                Err(RecvTimeoutError::Timeout) => effects.drop_retired(),
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
        work.try_iter().for_each(|next| applier.give(next));
        let (before, begin) = (applier.progress().index, shared.begin.elapsed());
        let outputs = applier.step()?;
        let entries = applier.progress().index.saturating_sub(before);
        if entries > 0 && outputs.replaced.is_none() {
            shared.figures.applied(entries, shared.begin.elapsed().saturating_sub(begin));
        }
        let is_replaced = outputs.replaced.is_some();
        outputs.carry_out(&mut effects);
        if is_replaced {
            shared.figures.keys_are(&**applier.store())?;
        }
        if effects.retired_wait().is_zero() {
            effects.drop_retired();
        }
        shift.over(Doing::Running);
    }
}

/// The threads that tell watchers end with this one, which is the one that wakes them, also if it panics.
struct EndsWithMe<'s>(&'s Shared);

impl Drop for EndsWithMe<'_> {
    fn drop(&mut self) {
        self.0.watching.end();
    }
}

impl Effects<'_> {
    /// How long old states may wait for others.
    fn retired_wait(&self) -> Duration {
        (self.dropped_at + RETIRED_WAIT).saturating_sub(self.shared.begin.elapsed())
    }

    fn drop_retired(&mut self) {
        self.dropped_at = self.shared.begin.elapsed();
        if !self.retired.is_empty() {
            let _ = self.to_commit.send(ToCommit::Drop(std::mem::take(&mut self.retired)));
        }
    }
}

impl ApplyEffects for Effects<'_> {
    fn replace(&mut self, new: NewStore) {
        self.shared.store.store(Arc::new(Arc::clone(&new.store)));
        self.shared.watching.replace(&new.store);
        let _ = self.to_commit.send(ToCommit::Replaced(new));
    }

    fn applied(&mut self, applied: Applied) {
        self.shared.show(&applied);
        self.shared.inbox.push_applied(applied);
    }

    fn granted(&mut self, leases: Vec<i64>) {
        let now = self.shared.begin.elapsed();
        leases.into_iter().for_each(|lease| self.shared.leases.begin(lease, now));
    }

    fn slow(&mut self, slow: Vec<Slow>) {
        slow::tell(&slow, self.slow_limit, &self.shared.figures);
    }

    fn complete(&mut self, completions: Completions) {
        for (_, outcome) in &completions {
            if let Outcome::Applied(answer) = outcome {
                self.shared.figures.answered(answer);
            }
        }
        self.sorted.hand_out(completions, self.shared);
        self.shared.figures.proposals_pending.store(self.shared.wait.len() as u64, Relaxed);
    }

    fn publish(&mut self, changes: Vec<(i64, Vec<Change>)>) {
        for (_, changes) in &changes {
            self.shared.figures.changed(changes);
        }
        self.shared.watching.publish(changes);
    }

    fn retire(&mut self, retired: Vec<Retired>) {
        self.retired.extend(retired);
        if self.retired.len() >= RETIRED_MAX {
            self.drop_retired();
        }
    }

    fn compact(&mut self, job: CompactionJob) {
        let _ = self.to_commit.send(ToCommit::Compact(job));
    }

    fn commit(&mut self) {
        let _ = self.to_commit.send(ToCommit::Now);
    }
}
