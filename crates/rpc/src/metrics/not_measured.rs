//! Metrics of etcd that this server does not measure.
//!
//! Some belong to parts that a member does not have, such as the gRPC proxy. Others belong to parts
//! that a member has but does not measure in this way, such as the steps of a commit. The page
//! shows them with the value zero, so that queries find them: see `docs/clearlane-and-etcd.md`.

use super::page::{MetricsPage, PrometheusHistogram, doubling};

/// Metrics of etcd's version 2 store and of the gRPC proxy.
const COUNTERS: [(&str, &str); 3] = [
    ("etcd_debugging_store_expires_total", "Total number of expired keys"),
    ("etcd_debugging_store_watch_requests_total", "Total number of incoming watch requests"),
    ("etcd_grpc_proxy_events_coalescing_total", "Total number of events coalescing"),
];

const GAUGES: [(&str, &str); 7] = [
    ("etcd_debugging_store_watchers", "Count of currently active watchers"),
    ("etcd_grpc_proxy_cache_hits_total", "Total number of cache hits"),
    ("etcd_grpc_proxy_cache_keys_total", "Total number of keys/ranges cached"),
    ("etcd_grpc_proxy_cache_misses_total", "Total number of cache misses"),
    ("etcd_grpc_proxy_watchers_coalescing_total", "Total number of current watchers coalescing"),
    ("etcd_mvcc_db_open_read_transactions", "The number of currently open read transactions"),
    ("etcd_server_snapshot_apply_in_progress_total", "1 if the server is applying a snapshot"),
];

/// Histograms with 14 bounds, the first at one millisecond. Names and help texts alternate.
const HISTOGRAMS: [&str; 22] = [
    "etcd_debugging_disk_backend_commit_rebalance_duration_seconds",
    "The latency distributions of commit.rebalance called by bboltdb backend.",
    "etcd_debugging_disk_backend_commit_spill_duration_seconds",
    "The latency distributions of commit.spill called by bboltdb backend.",
    "etcd_debugging_disk_backend_commit_write_duration_seconds",
    "The latency distributions of commit.write called by bboltdb backend.",
    "etcd_debugging_server_watch_send_loop_control_stream_duration_seconds",
    "Time to run through the send loop for a control response.",
    "etcd_debugging_server_watch_send_loop_progress_duration_seconds",
    "Time to run through the send loop for a progress response.",
    "etcd_debugging_server_watch_send_loop_watch_stream_duration_per_event_seconds",
    "Time to run through the send loop for a watch response, by event.",
    "etcd_debugging_server_watch_send_loop_watch_stream_duration_seconds",
    "Time to run through the send loop for a watch response.",
    "etcd_debugging_snap_save_marshalling_duration_seconds",
    "The marshalling cost distributions of save called by snapshot.",
    "etcd_debugging_snap_save_total_duration_seconds",
    "The total latency distributions of save called by snapshot.",
    "etcd_snap_db_fsync_duration_seconds",
    "The latency distributions of fsyncing .snap.db file.",
    "etcd_snap_fsync_duration_seconds",
    "The latency of fsync called by snap.",
];

pub(super) fn write(page: &mut MetricsPage) {
    for (name, help) in COUNTERS {
        page.counter(name, help, 0);
    }
    for (name, help) in GAUGES {
        page.gauge(name, help, 0);
    }
    let mut write_histogram = |name, help, first_bound, bounds| {
        let empty = PrometheusHistogram::rounded_up(doubling(first_bound, bounds), [], 0.0);
        page.family(name, "histogram", help).histogram(&[], &empty);
    };
    for [name, help] in HISTOGRAMS.as_chunks().0 {
        write_histogram(name, help, 0.001, 14);
    }
    let help = "Bucketed histogram of index compaction pause duration.";
    let name = "etcd_debugging_mvcc_index_compaction_pause_duration_milliseconds";
    write_histogram(name, help, 0.5, 14);
    let help = "The total latency distributions of v3 snapshot save.";
    write_histogram("etcd_snap_db_save_total_duration_seconds", help, 0.1, 10);
}
