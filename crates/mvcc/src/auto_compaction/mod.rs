//! When to compact, if no client asks: etcd's two policies, without a clock.
//!
//! # The problem
//!
//! A store that is never compacted grows with every write, and most people want the same of it:
//! keep the past of so many hours, or so many revisions, and drop what is older. A member does that
//! by itself if it was told to (`--auto-compaction-mode`, `--auto-compaction-retention`).
//!
//! # The two policies
//!
//! * **periodic** keeps what a reader could have seen within the retention. The time of a
//!   revision is not known afterwards, so the policy notes the current revision every tenth of an hour, or every
//!   tenth of the retention if that is shorter. Once the notes reach back far enough it compacts at
//!   what was current a retention ago, every hour or every retention.
//! * **revision** keeps so many revisions. Every five minutes it compacts at the current one minus
//!   that number.
//!
//! ```text
//!   periodic, 30m: a note every 3m, a compaction every 30m
//!
//!   minutes    0    3    6  ...  30    33  ...  60
//!   revision   1    4    4       17    18       40
//!                                 │              │
//!                                 └▶ compact 1   └▶ compact 17
//! ```
//!
//! # How it is run
//!
//! The owner calls [`check`](AutoCompaction::check) at [`next_check`](AutoCompaction::next_check) or
//! later. If a revision comes back, it proposes a compaction there, and reports
//! [`compacted`](AutoCompaction::compacted) or [`failed`](AutoCompaction::failed) whenever it
//! knows. That another request has compacted at that revision or later counts as a success.
//!
//! Only the leader should compact, or each member of a cluster would propose the same. The others are
//! [paused](AutoCompaction::pause): they go on taking notes, so that the member that becomes the leader knows
//! the past and can go on at once.
//!
//! # Invariants
//!
//! * Until the outcome is known, no other compaction is asked for.
//! * No revision is asked for that is known to be compacted, so a store that rests is left alone.
//! * periodic: what is asked for was current a retention ago, or before. If ticks come late, more
//!   is kept and never less.
//! * After a failure the next tick asks again.
//!
//! # What etcd does here
//!
//! Each policy is a goroutine that sleeps. Its periodic one counts its notes instead of dating them:
//! it looks back eleven notes where ten would do, and an hour in which the process was stopped is
//! one note like any other. Its flags let retentions through that make no sense: a duration below
//! zero, or one for the policy `revision`, which becomes its nanoseconds. Here they are refused.

mod periodic;
mod retention;

use std::time::Duration;

use crate::error::{Error, Result};
use periodic::Periodic;

/// How often the policy `revision` looks.
const REVISION_POLICY_INTERVAL: Duration = Duration::from_mins(5);

/// A policy, and where it stands. Time counts from any fixed moment and never goes back.
#[derive(Debug)]
pub struct AutoCompaction {
    policy: Policy,
    /// When to look again; `None` before the first tick.
    next_check: Option<Duration>,
    paused: bool,
    pending: Option<PendingCompaction>,
    /// Known to be compacted up to here.
    compacted: i64,
}

#[derive(Debug)]
enum Policy {
    Periodic(Periodic),
    Revision { keep: i64 },
}

/// A compaction of which the outcome is not known yet.
#[derive(Clone, Copy, Debug)]
struct PendingCompaction {
    revision: i64,
    proposed_at: Duration,
}

impl AutoCompaction {
    /// The policy that the two flags name; `None` if the retention is 0.
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
        let begin = |policy| AutoCompaction {
            policy,
            next_check: None,
            paused: false,
            pending: None,
            compacted: 0,
        };
        Ok(policy.map(begin))
    }

    /// When to call [`check`](AutoCompaction::check) again; the first time at once.
    pub fn next_check(&self) -> Duration {
        self.next_check.unwrap_or_default()
    }

    /// Looks whether it is time, and at which revision to compact. A tick before
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
        self.pending = Some(PendingCompaction { revision, proposed_at: now });
        Some(revision)
    }

    /// The store is compacted up to there, whichever request asked for it.
    pub fn compacted(&mut self, revision: i64) {
        self.compacted = self.compacted.max(revision);
        if let Some(asked) = self.pending.take_if(|asked| asked.revision <= revision)
            && let Policy::Periodic(periodic) = &mut self.policy
        {
            periodic.succeeded(asked.proposed_at);
        }
    }

    /// The compaction that was asked for did not come about.
    pub fn failed(&mut self) {
        self.pending = None;
    }

    /// Asks for nothing from now on: another member leads. An outcome that is open is awaited no more;
    /// if it comes in all the same it is heard.
    pub fn pause(&mut self) {
        self.paused = true;
        self.pending = None;
    }

    /// Asks again, from the next tick on.
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
