//! The policy *periodic*: it keeps everything that a reader could have seen within the retention
//! time. To find the oldest revision to keep, it samples which revision is current.
//!
//! A sample is stored only if the revision has changed, so an idle store costs nothing. Of the
//! samples that are as old as the retention or older, only the newest is kept:
//!
//! ```text
//!               retention
//!             ◀──────────▶ now
//!   samples  2 │  5   9  12
//!            │ └─ the samples right of this line are younger than the retention
//!            └─ the newest sample that is old enough: revision 2 was current then
//! ```

use std::collections::VecDeque;
use std::time::Duration;

/// Maximum length of the interval, which is the minimum time between the requests of two successful
/// compactions. If the retention is shorter, the interval is as long as the retention.
const INTERVAL_MAX: Duration = Duration::from_hours(1);
const SAMPLES_PER_INTERVAL: u32 = 10;
/// The shortest time between two checks. It keeps the thread from spinning if the retention is
/// short.
const SAMPLE_INTERVAL_MIN: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct Periodic {
    retention: Duration,
    /// The sampled revisions, each with the time of its first sample, oldest first.
    samples: VecDeque<(Duration, i64)>,
    /// The time at which the last successful compaction was requested. `None` if no compaction has
    /// succeeded yet.
    pub(super) last_success: Option<Duration>,
}

impl Periodic {
    pub(super) fn new(retention: Duration) -> Periodic {
        Periodic { retention, samples: VecDeque::new(), last_success: None }
    }

    fn interval(&self) -> Duration {
        self.retention.min(INTERVAL_MAX)
    }

    pub(super) fn sample_interval(&self) -> Duration {
        (self.interval() / SAMPLES_PER_INTERVAL).max(SAMPLE_INTERVAL_MIN)
    }

    /// Samples the current revision. Returns the revision to compact at, or `None` if no compaction
    /// is due.
    pub(super) fn sample(&mut self, now: Duration, current_revision: i64) -> Option<i64> {
        if self.samples.back().is_none_or(|(_, newest)| *newest != current_revision) {
            self.samples.push_back((now, current_revision));
        }
        let old_enough = |since: Duration| now.saturating_sub(since) >= self.retention;
        while self.samples.get(1).is_some_and(|(since, _)| old_enough(*since)) {
            self.samples.pop_front();
        }
        let (since, revision) = *self.samples.front()?;
        let waited = |last: Duration| now.saturating_sub(last) >= self.interval();
        (old_enough(since) && self.last_success.is_none_or(waited)).then_some(revision)
    }
}
