//! etcd's metrics. Their values are read from the parts of the server that count them.
//! `docs/http.md` lists the metrics that are measured differently than in etcd.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use clearlane_engine::Bucket;
use clearlane_mvcc::ReadTxn;
use clearlane_server::threads::{DurationHistogram, Metrics};
use tonic::Code;

use super::MetricSources;
use super::page::{MetricsPage, PrometheusHistogram, doubling};
use super::rpcs::{RPCS, RpcInfo, RpcMethod};
use super::thread::{CODES, GlobalCounters, RpcCounters};
use crate::maintenance::ETCD_VERSION;

pub(super) fn write(page: &mut MetricsPage, sources: &MetricSources<'_>) {
    let store = sources.server.threads().store();
    write_state(page, &*store.begin_read());
    let sizes = sources.server.threads().sizes();
    let help = "Total size of the underlying database physically allocated in bytes.";
    page.gauge("etcd_mvcc_db_total_size_in_bytes", help, sizes.size());
    let help = "Total size of the underlying database logically in use in bytes.";
    page.gauge("etcd_mvcc_db_total_size_in_use_in_bytes", help, sizes.in_use());
    write_member(page, sources);
    write_thread_metrics(page, sources.server.threads().metrics());
    write_mvcc(page, sources);
    write_disk(page, sources);
    write_clients(page, sources);
    write_calls(page, sources);
    write_rpcs(page, sources);
}

fn write_state(page: &mut MetricsPage, state: &dyn ReadTxn) {
    let help = "The current revision of store.";
    page.gauge("etcd_debugging_mvcc_current_revision", help, state.revision());
    let help = "The revision of the last compaction in store.";
    page.gauge("etcd_debugging_mvcc_compact_revision", help, state.compact_revision());
    let auth = state.get(Bucket::Auth, b"authRevision").ok().flatten();
    let auth = auth.and_then(|bytes| Some(u64::from_be_bytes(bytes[..].try_into().ok()?)));
    let help = "The current revision of auth store.";
    page.gauge("etcd_debugging_auth_revision", help, auth.unwrap_or(1));
    let help =
        "Which version is running. 1 for 'cluster_version' label with current cluster version";
    let mut family = page.family("etcd_cluster_version", "gauge", help);
    if let Ok(Some(version)) = state.get(Bucket::Cluster, b"clusterVersion") {
        let version = String::from_utf8_lossy(&version);
        let mut parts = version.split('.');
        if let (Some(major), Some(minor)) = (parts.next(), parts.next()) {
            family.sample(&[("cluster_version", &format!("{major}.{minor}"))], 1);
        }
    }
}

fn write_member(page: &mut MetricsPage, sources: &MetricSources<'_>) {
    let node = sources.server.threads();
    let (id, leader) = (node.metadata().node_id, node.status().leader());
    let hex = |id: u64| format!("{id:x}");
    let gauge = |is: bool| u8::from(is);
    let help = "Whether or not a leader exists. 1 is existence, 0 is not.";
    page.gauge("etcd_server_has_leader", help, gauge(leader != 0));
    let help = "Whether or not this member is a leader. 1 if is, 0 otherwise.";
    page.gauge("etcd_server_is_leader", help, gauge(leader == id));
    let help =
        "Server or member ID in hexadecimal format. 1 for 'server_id' label with current ID.";
    page.family("etcd_server_id", "gauge", help).sample(&[("server_id", &hex(id))], 1);
    let help = "Which version is running. 1 for 'server_version' label with current version.";
    let version = [("server_version", ETCD_VERSION)];
    page.family("etcd_server_version", "gauge", help).sample(&version, 1);
    let help = "Which Go version server is running with. 1 for 'server_go_version' label.";
    let version = [("server_go_version", "none")];
    page.family("etcd_server_go_version", "gauge", help).sample(&version, 1);
    let help = "Current backend storage quota size in bytes.";
    page.gauge("etcd_server_quota_backend_bytes", help, node.quota().bytes());
    let members = node.members();
    let is_learner = node.status().is_learner();
    let help = "Whether or not this member is a learner. 1 if is, 0 otherwise.";
    page.gauge("etcd_server_is_learner", help, gauge(is_learner));
    let help = "The current number of known peers.";
    let mut family = page.family("etcd_network_known_peers", "gauge", help);
    for member in members.iter() {
        family.sample(&[("Local", &hex(id)), ("Remote", &hex(member.id))], 1);
    }
    let help = "Alarms for every member in cluster.";
    let mut family = page.family("etcd_debugging_server_alarms", "gauge", help);
    for alarm in node.alarms().iter() {
        let labels =
            [("alarm_type", alarm.alarm().as_str_name()), ("server_id", &hex(alarm.member_id))];
        family.sample(&labels, 1);
    }
    let help = "The total number of consensus proposals committed.";
    page.gauge("etcd_server_proposals_committed_total", help, node.status().committed());
    let help = "The total number of consensus proposals applied.";
    page.gauge("etcd_server_proposals_applied_total", help, node.status().applied());
}

fn write_thread_metrics(page: &mut MetricsPage, figures: &Metrics) {
    let help = "The current number of pending proposals to commit.";
    page.gauge("etcd_server_proposals_pending", help, load(&figures.proposals_pending));
    let help = "The number of leader changes seen.";
    page.counter("etcd_server_leader_changes_seen_total", help, load(&figures.leader_changes));
    let help = "The total number of failed proposals seen.";
    page.counter("etcd_server_proposals_failed_total", help, load(&figures.proposals_failed));
    let help = "The total number of failed read indexes seen.";
    page.counter("etcd_server_read_indexes_failed_total", help, load(&figures.reads_failed));
    let help = "The total number of pending read indexes not in sync with leader's or timed out \
                read index requests.";
    page.counter("etcd_server_slow_read_indexes_total", help, load(&figures.slow_read_indexes));
    let help =
        "The total number of leader heartbeat send failures (likely overloaded from slow disk).";
    page.counter("etcd_server_heartbeat_send_failures_total", help, load(&figures.late_heartbeats));
    let help = "Total number of puts seen by this member.";
    page.counter("etcd_mvcc_put_total", help, load(&figures.puts));
    let help = "Total number of deletes seen by this member.";
    page.counter("etcd_mvcc_delete_total", help, load(&figures.deletes));
    let help = "Total number of txns seen by this member.";
    page.counter("etcd_mvcc_txn_total", help, load(&figures.txns));
    let help = "The total size of put kv pairs seen by this member.";
    page.gauge("etcd_debugging_mvcc_total_put_size_in_bytes", help, load(&figures.put_bytes));
    let help = "Total number of keys.";
    page.gauge("etcd_debugging_mvcc_keys_total", help, figures.keys.load(Relaxed));
    let help = "The unix time of the last db compaction. Resets to 0 on start.";
    page.gauge("etcd_debugging_mvcc_db_compaction_last", help, load(&figures.compacted_at));
    let help = "The latency distributions of apply called by backend.";
    let labels = [("op", "entry"), ("success", "true"), ("version", "v3")];
    page.family("etcd_server_apply_duration_seconds", "histogram", help)
        .histogram(&labels, &PrometheusHistogram::merge([&figures.applies]));
    let help = "The total number of slow apply requests (likely overloaded from slow disk).";
    page.counter("etcd_server_slow_apply_total", help, load(&figures.slow_applies));
}

fn write_mvcc(page: &mut MetricsPage, sources: &MetricSources<'_>) {
    let ranges =
        sources.started("/etcdserverpb.KV/Range") + sources.started("/etcdserverpb.KV/RangeStream");
    page.counter("etcd_mvcc_range_total", "Total number of ranges seen by this member.", ranges);
    let watch = "/etcdserverpb.Watch/Watch";
    let help = "Total number of watch streams.";
    page.gauge("etcd_debugging_mvcc_watch_stream_total", help, sources.in_flight(watch));
    let watching = sources.server.threads().watch_server().metrics();
    let help = "Total number of watchers.";
    page.gauge("etcd_debugging_mvcc_watcher_total", help, watching.watchers);
    let help = "Total number of unsynced slow watchers.";
    page.gauge("etcd_debugging_mvcc_slow_watcher_total", help, watching.unsynced);
    let help = "Total number of pending events to be sent.";
    page.gauge("etcd_debugging_mvcc_pending_events_total", help, watching.queued);
    let sent = sources.sum_for_path(watch, |row| load(&row.sent));
    let help = "Total number of events sent by this member.";
    page.counter("etcd_debugging_mvcc_events_total", help, sent);
    let help = "The total number of granted leases.";
    let granted = sources.ok_count("/etcdserverpb.Lease/LeaseGrant");
    page.counter("etcd_debugging_lease_granted_total", help, granted);
    let help = "The total number of revoked leases.";
    let revoked = sources.ok_count("/etcdserverpb.Lease/LeaseRevoke");
    page.counter("etcd_debugging_lease_revoked_total", help, revoked);
    let figures = sources.server.threads().metrics();
    let help = "The total number of expired leases.";
    page.counter("etcd_debugging_server_lease_expired_total", help, load(&figures.leases_expired));
    let help = "Bucketed histogram of lease TTLs.";
    page.seconds("etcd_debugging_lease_ttl_total", help, &figures.lease_ttls);
    let renewed = sources.sum_for_path("/etcdserverpb.Lease/LeaseKeepAlive", |row| load(&row.sent));
    let help = "The number of renewed leases seen by the leader.";
    page.counter("etcd_debugging_lease_renewed_total", help, renewed);
}

fn write_disk(page: &mut MetricsPage, sources: &MetricSources<'_>) {
    let figures = sources.server.threads().metrics();
    let help = "The latency distributions of fsync called by WAL.";
    page.seconds("etcd_disk_wal_fsync_duration_seconds", help, &figures.log_syncs);
    let help = "The latency distributions of write called by WAL.";
    page.seconds("etcd_disk_wal_write_duration_seconds", help, &figures.log_writes);
    let help = "Total number of bytes written in WAL.";
    page.gauge("etcd_disk_wal_write_bytes_total", help, load(&figures.log_bytes));
    let help = "The latency distributions of commit called by backend.";
    page.seconds("etcd_disk_backend_commit_duration_seconds", help, &figures.commits);
    let help = "Bucketed histogram of db compaction pause duration.";
    let name = "etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds";
    let pauses = in_millis(&figures.compaction_steps, doubling(1.0, 13));
    page.family(name, "histogram", help).histogram(&[], &pauses);
    let help = "Bucketed histogram of db compaction total duration.";
    let name = "etcd_debugging_mvcc_db_compaction_total_duration_milliseconds";
    let whole = in_millis(&figures.compactions, doubling(100.0, 14));
    page.family(name, "histogram", help).histogram(&[], &whole);
    let help = "Total number of db keys compacted.";
    let removed = load(&figures.compacted_records);
    page.counter("etcd_debugging_mvcc_db_compaction_keys_total", help, removed);
    let defragment = "/etcdserverpb.Maintenance/Defragment";
    let help = "Whether or not defrag is active on the member. 1 means active, 0 means not.";
    let is_under_way = u8::from(sources.in_flight(defragment) > 0);
    page.gauge("etcd_disk_defrag_inflight", help, is_under_way);
    let mut write_call = |name, what, call, first, bounds| {
        let method = RpcMethod::named(&format!("/etcdserverpb.Maintenance/{call}"));
        let took = sources.durations_by_success(method, true);
        let sums =
            PrometheusHistogram::rounded_up(doubling(first, bounds), took.values(), took.sum);
        let help = format!("The latency distribution of {what}.");
        page.family(name, "histogram", &help).histogram(&[], &sums);
    };
    let name = "etcd_disk_backend_defrag_duration_seconds";
    write_call(name, "backend defragmentation", "Defragment", 0.1, 13);
    let name = "etcd_disk_backend_snapshot_duration_seconds";
    write_call(name, "backend snapshots", "Snapshot", 0.01, 17);
    write_call("etcd_mvcc_hash_duration_seconds", "storage hash operation", "Hash", 0.01, 15);
    let name = "etcd_mvcc_hash_rev_duration_seconds";
    write_call(name, "storage hash by revision", "HashKV", 0.01, 15);
}

/// Converts a histogram of durations to milliseconds, the unit of some old metrics of etcd.
fn in_millis(
    buckets: &DurationHistogram,
    bounds: impl Iterator<Item = f64>,
) -> PrometheusHistogram {
    let sums = PrometheusHistogram::merge([buckets]);
    let values = sums.values().map(|(seconds, count)| (seconds * 1000.0, count));
    PrometheusHistogram::rounded_up(bounds, values, sums.sum * 1000.0)
}

fn write_clients(page: &mut MetricsPage, sources: &MetricSources<'_>) {
    let sum = |counter: fn(&GlobalCounters) -> &AtomicU64| -> u64 {
        sources.threads.iter().map(|thread| load(counter(&thread.global))).sum()
    };
    let help = "The total number of bytes received from grpc clients.";
    let received = sum(|counters| &counters.received_bytes);
    page.counter("etcd_network_client_grpc_received_bytes_total", help, received);
    let help = "The total number of bytes sent to grpc clients.";
    let sent = sum(|counters| &counters.sent_bytes);
    page.counter("etcd_network_client_grpc_sent_bytes_total", help, sent);
    let help = "The total number of successful health checks";
    page.counter("etcd_server_health_success", help, sum(|counters| &counters.health_success));
    let help = "The total number of failed health checks";
    page.counter("etcd_server_health_failures", help, sum(|counters| &counters.health_failures));
    let started = |is_unary: bool| -> u64 {
        let of_kind = |(_, rpc): &(RpcMethod, &RpcInfo)| (rpc.kind == "unary") == is_unary;
        let started = |(method, _)| sources.sum_for(method, |row| load(&row.started));
        all().filter(of_kind).map(started).sum()
    };
    let help = "The total number of client requests per client version.";
    let mut family = page.family("etcd_server_client_requests_total", "counter", help);
    for (kind, is_unary) in [("unary", true), ("stream", false)] {
        let labels = [("client_api_version", "unknown"), ("type", kind)];
        family.sample(&labels, started(is_unary));
    }
    let help = "The total number of successful learner promotions while this member is leader.";
    let promoted = sources.ok_count("/etcdserverpb.Cluster/MemberPromote");
    page.counter("etcd_server_learner_promote_successes", help, promoted);
}

fn write_calls(page: &mut MetricsPage, sources: &MetricSources<'_>) {
    let help = "Response latency distribution in seconds for each type.";
    let mut family = page.family("etcd_server_request_duration_seconds", "histogram", help);
    for (method, rpc) in all() {
        let Some(request) = rpc.request else { continue };
        for (success, text) in [(true, "true"), (false, "false")] {
            let sums = sources.durations_by_success(method, success);
            family.histogram(&[("success", text), ("type", request)], &sums);
        }
    }
    let range = RpcMethod::named("/etcdserverpb.KV/Range");
    let help = "The latency distributions of txn.Range.";
    let mut family = page.family("etcd_server_range_duration_seconds", "histogram", help);
    for (success, text) in [(true, "true"), (false, "false")] {
        family.histogram(&[("success", text)], &sources.durations_by_success(range, success));
    }
    if sources.is_extensive {
        let help = "Histogram of response latency of RPCs handled by the server.";
        let mut family = page.family("grpc_server_handling_seconds", "histogram", help);
        for (method, rpc) in all() {
            family.histogram(&rpc.labels(), &sources.all_durations(method));
        }
    }
}

fn write_rpcs(page: &mut MetricsPage, sources: &MetricSources<'_>) {
    let help = "Total number of RPCs completed on the server, regardless of success or failure.";
    let codes: [String; CODES] = std::array::from_fn(|number| code_name(Code::from(number as i32)));
    let mut family = page.family("grpc_server_handled_total", "counter", help);
    for (method, rpc) in all() {
        for (number, code) in codes.iter().enumerate() {
            let [name, service, kind] = rpc.labels();
            let labels = [("grpc_code", &code[..]), name, service, kind];
            family.sample(&labels, sources.sum_for(method, |row| load(&row.handled[number])));
        }
    }
    let mut write_counts = |name, help, read: fn(&RpcCounters) -> &AtomicU64| {
        let mut family = page.family(name, "counter", help);
        for (method, rpc) in all() {
            family.sample(&rpc.labels(), sources.sum_for(method, |row| load(read(row))));
        }
    };
    let help = "Total number of RPC stream messages received on the server.";
    write_counts("grpc_server_msg_received_total", help, |row| &row.received);
    let help = "Total number of gRPC stream messages sent by the server.";
    write_counts("grpc_server_msg_sent_total", help, |row| &row.sent);
    let help = "Total number of RPCs started on the server.";
    write_counts("grpc_server_started_total", help, |row| &row.started);
}

/// Returns the name of the code as Go writes it.
fn code_name(code: Code) -> String {
    match code {
        Code::Ok => "OK".to_owned(),
        Code::Cancelled => "Canceled".to_owned(),
        code => format!("{code:?}"),
    }
}

fn load(cell: &AtomicU64) -> u64 {
    cell.load(Relaxed)
}

fn all() -> impl Iterator<Item = (RpcMethod, &'static RpcInfo)> {
    RPCS.all.iter().enumerate().map(|(number, rpc)| (RpcMethod(number as u16), rpc))
}

impl RpcInfo {
    fn labels(&self) -> [(&str, &str); 3] {
        let method = self.descriptor.name();
        [("grpc_method", method), ("grpc_service", self.service), ("grpc_type", self.kind)]
    }
}

/// Methods that add up the counters of all network threads.
impl MetricSources<'_> {
    fn counters(&self, method: RpcMethod) -> impl Iterator<Item = &RpcCounters> {
        self.threads.iter().map(move |cells| &cells.rpcs[usize::from(method.0)])
    }

    fn sum_for(&self, method: RpcMethod, read: impl Fn(&RpcCounters) -> u64) -> u64 {
        self.counters(method).map(read).sum()
    }

    fn sum_for_path(&self, path: &str, read: impl Fn(&RpcCounters) -> u64) -> u64 {
        self.sum_for(RpcMethod::named(path), read)
    }

    fn started(&self, path: &str) -> u64 {
        self.sum_for_path(path, |row| load(&row.started))
    }

    fn ok_count(&self, path: &str) -> u64 {
        self.sum_for_path(path, |row| load(&row.handled[Code::Ok as usize]))
    }

    fn in_flight(&self, path: &str) -> u64 {
        let ended = self.sum_for_path(path, |row| row.handled.iter().map(load).sum());
        self.started(path).saturating_sub(ended)
    }

    fn durations_by_success(&self, method: RpcMethod, is_well: bool) -> PrometheusHistogram {
        PrometheusHistogram::merge(
            self.counters(method).filter_map(|row| row.durations[usize::from(is_well)].get()),
        )
    }

    fn all_durations(&self, method: RpcMethod) -> PrometheusHistogram {
        PrometheusHistogram::merge(
            self.counters(method)
                .flat_map(|row| row.durations.iter().filter_map(|took| took.get())),
        )
    }
}
