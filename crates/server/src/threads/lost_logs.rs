//! Logs and counts rejections of entries by members that had acknowledged the same entries to this
//! leader.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use clearlane_raft::{LostLog, LostLogReports};

use super::ServerState;

/// Shortest time between two log lines. A member that has lost its log rejects an append with each
/// heartbeat.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct LostLogLogger {
    /// Number of reports at the time of the last log line.
    logged: u64,
    /// The time of the last log line, counted from the start of the member. `None` before the first
    /// line.
    logged_at: Option<Duration>,
}

impl LostLogLogger {
    pub(super) fn report(&mut self, reports: LostLogReports, state: &ServerState) {
        let LostLogReports { count, last: Some(lost) } = reports else { return };
        state.metrics.lost_log_reports.store(count, Relaxed);
        let now = state.start.elapsed();
        let is_silent = self.logged_at.is_some_and(|at| now < at + LOG_INTERVAL);
        if count == self.logged || is_silent {
            return;
        }
        (self.logged, self.logged_at) = (count, Some(now));
        let LostLog { member, acknowledged, found } = lost;
        tracing::error!(
            member = format!("{member:x}"),
            acknowledged,
            found,
            reports = count,
            "a member has rejected entries that it acknowledged: it has lost its log, or this \
             response is late; if this repeats, remove the member with `member remove`, and add \
             it again with `member add` and an empty data directory"
        );
    }
}
