//! The policy that keeps the past of a time: samples of which revision was current when.
//!
//! A sample is noted only when the revision has changed, so a store that rests costs nothing, and
//! one sample is kept that is as old as the retention or older:
//!
//! ```text
//!            retention
//!          ◀──────────▶ now
//!   samples  │  2 │  5   9  12
//!            │    └─ younger
//!            └─ the newest that is old enough: revision 2 was current then
//! ```

use std::collections::VecDeque;
use std::time::Duration;

/// The longest time from one compaction to the next.
const INTERVAL_MAX: Duration = Duration::from_hours(1);
const SAMPLES_PER_INTERVAL: u32 = 10;
/// However short the retention, the thread that checks must not spin.
const SAMPLE_INTERVAL_MIN: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct Periodic {
    retention: Duration,
    /// Since when each revision was current, oldest first.
    samples: VecDeque<(Duration, i64)>,
    /// When the last compaction that succeeded was asked for.
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

    /// Notes the current revision. Returns the revision at which a compaction is due.
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
