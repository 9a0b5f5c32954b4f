//! Decides when to compact without a request from a client. The two policies are etcd's. They read
//! no clock: the caller passes the time.
//!
//! The policy *periodic* keeps everything that a reader could have seen within the retention time.
//! The policy *revision* keeps a number of revisions. The owner calls
//! [`check`](AutoCompaction::check) at the time [`next_check`](AutoCompaction::next_check) or
//! later. If `check` returns a revision, the owner proposes a compaction at this revision, and
//! reports [`compacted`](AutoCompaction::compacted) or [`failed`](AutoCompaction::failed). On a
//! member that is not the leader, the owner [pauses](AutoCompaction::pause) the policy. A paused
//! policy still takes samples.
//!
//! Invariants:
//! * While a request is pending, no other compaction is requested. The request is pending until it
//!   has failed, a compaction at its revision or above is reported, or the policy is paused.
//! * A revision that is known to be compacted is never requested.
//! * periodic: the requested revision was current one retention time ago or earlier. If checks are
//!   late, more history is kept, never less.
//!
//! In etcd: `v3compactor`. `docs/mvcc.md` lists the differences.

mod periodic;
mod retention;

use std::time::Duration;

use crate::error::{Error, Result};
use periodic::Periodic;
pub use retention::nanoseconds;

const REVISION_POLICY_INTERVAL: Duration = Duration::from_mins(5);

/// An auto-compaction policy. The times that the caller passes count from any fixed point and must
/// not go back.
#[derive(Debug)]
pub struct AutoCompaction {
    policy: Policy,
    /// The time of the next check. `None` before the first check.
    next_check: Option<Duration>,
    paused: bool,
    /// The requested revision, and the time of the request. `None` if no result is awaited.
    pending: Option<(i64, Duration)>,
    compacted: i64,
}

#[derive(Debug)]
enum Policy {
    Periodic(Periodic),
    Revision { keep: i64 },
}

impl AutoCompaction {
    /// Creates a policy. Returns `None` if the retention is 0. Fails if the mode is unknown, or if
    /// the retention cannot be parsed.
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

    /// Returns the time of the next check. It is 0 before the first check, which is due
    /// immediately.
    pub fn next_check(&self) -> Duration {
        self.next_check.unwrap_or_default()
    }

    /// Returns the revision to compact at. Returns `None` if no compaction is due, the policy is
    /// paused, or a request is pending. A check before [`next_check`](AutoCompaction::next_check)
    /// does nothing and returns `None`.
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

    /// Reports a compaction, whether or not this policy requested it. If a request at or below
    /// `revision` is pending, this request has succeeded.
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

    /// Stops all requests until [`resume`](AutoCompaction::resume) is called, because another
    /// member is the leader. The result of a pending request is no longer awaited. If it is
    /// reported later, its revision is still recorded as compacted.
    pub fn pause(&mut self) {
        self.paused = true;
        self.pending = None;
    }

    /// Ends a pause. The next check can request a compaction again.
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
