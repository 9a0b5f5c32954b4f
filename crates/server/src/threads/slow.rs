//! Logs and counts entries that took long to apply, with etcd's log line.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::metrics::Metrics;
use crate::replica::SlowEntry;

pub(super) fn log_slow_entries(entries: &[SlowEntry], limit: Duration, figures: &Metrics) {
    for SlowEntry { took, stages, request, outcome } in entries {
        figures.slow_applies.fetch_add(1, Relaxed);
        let size = outcome.as_ref().and_then(|outcome| outcome.as_ref().ok());
        let response = size.map_or_else(String::new, |size| format!("size:{size}"));
        let error = outcome.as_ref().and_then(|outcome| outcome.as_ref().err());
        tracing::warn!(
            ?took,
            "expected-duration" = ?limit,
            prefix = "",
            %request,
            response,
            error = error.map(String::as_str),
            stages,
            "apply request took too long"
        );
    }
}
