//! When to compact, if no client asks: etcd's two policies, without a clock.
//!
//! *periodic* keeps what a reader could have seen within the retention, *revision* keeps a number
//! of revisions. The owner calls [`check`](AutoCompaction::check) at
//! [`next_check`](AutoCompaction::next_check) or later. It proposes the compaction that comes back,
//! and reports [`compacted`](AutoCompaction::compacted) or [`failed`](AutoCompaction::failed).
//! Members that do not lead are [paused](AutoCompaction::pause), but go on taking notes.
//!
//! Invariants:
//! * Until the outcome is known, no other compaction is asked for.
//! * No revision is asked for that is known to be compacted.
//! * periodic: what is asked for was current a retention ago, or before. If checks come late, more
//!   is kept and not less.
//!
//! In etcd: `v3compactor`; what it does otherwise is in `docs/mvcc.md`.

mod periodic;
mod retention;

use std::time::Duration;

use crate::error::{Error, Result};
use periodic::Periodic;
pub use retention::nanoseconds;

const REVISION_POLICY_INTERVAL: Duration = Duration::from_mins(5);

/// Time counts from any fixed point and does not go back.
#[derive(Debug)]
pub struct AutoCompaction {
    policy: Policy,
    /// `None` before the first check.
    next_check: Option<Duration>,
    paused: bool,
    /// The revision that was asked for, and when.
    pending: Option<(i64, Duration)>,
    compacted: i64,
}

#[derive(Debug)]
enum Policy {
    Periodic(Periodic),
    Revision { keep: i64 },
}

impl AutoCompaction {
    /// `None` if the retention is 0.
    pub fn parse(mode: &str, retention: &str) -> Result<Option<AutoCompaction>> {
        let policy = match mode {
            "periodic" => {
                let kept = retention::time(retention)?;
                (!kept.is_zero()).then(|| Policy::Periodic(Periodic::new(kept)))
            }
            "revision" => {
                let keep = retention::revisions(retention)?;
                (keep > 0).then_some(Policy::Revision { keep })
            }
            other => return Err(Error::CompactionMode(other.to_owned())),
        };
        let new = |policy| AutoCompaction {
            policy,
            next_check: None,
            paused: false,
            pending: None,
            compacted: 0,
        };
        Ok(policy.map(new))
    }

    /// 0 before the first check, which is due at once.
    pub fn next_check(&self) -> Duration {
        self.next_check.unwrap_or_default()
    }

    /// Whether it is time, and at which revision to compact. A check before
    /// [`next_check`](AutoCompaction::next_check) does nothing.
    pub fn check(&mut self, now: Duration, current_revision: i64) -> Option<i64> {
        if self.next_check.is_some_and(|next| now < next) {
            return None;
        }
        let first = self.next_check.replace(now.saturating_add(self.interval())).is_none();
        let due = match &mut self.policy {
            Policy::Periodic(periodic) => periodic.sample(now, current_revision),
            Policy::Revision { .. } if first => None,
            Policy::Revision { keep } => Some(current_revision.saturating_sub(*keep)),
        };
        let revision = due.filter(|revision| *revision > self.compacted)?;
        if self.paused || self.pending.is_some() {
            return None;
        }
        self.pending = Some((revision, now));
        Some(revision)
    }

    /// Whichever request asked for the compaction.
    pub fn compacted(&mut self, revision: i64) {
        self.compacted = self.compacted.max(revision);
        if let Some((_, proposed_at)) = self.pending.take_if(|(asked, _)| *asked <= revision)
            && let Policy::Periodic(periodic) = &mut self.policy
        {
            periodic.last_success = Some(proposed_at);
        }
    }

    pub fn failed(&mut self) {
        self.pending = None;
    }

    /// Asks for nothing from now on: another member leads. An outcome that is open is awaited no
    /// more; if it is reported all the same it counts.
    pub fn pause(&mut self) {
        self.paused = true;
        self.pending = None;
    }

    /// Takes effect with the next check.
    pub fn resume(&mut self) {
        self.paused = false;
    }

    fn interval(&self) -> Duration {
        match &self.policy {
            Policy::Periodic(periodic) => periodic.sample_interval(),
            Policy::Revision { .. } => REVISION_POLICY_INTERVAL,
        }
    }
}

#[cfg(test)]
mod tests;
