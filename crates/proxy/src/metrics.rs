//! The metrics of the proxy, on `/proxy/metrics`, in the text format of Prometheus.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::services::Services;
use crate::upstream::MemberState;

#[derive(Debug, Default)]
pub struct Metrics {
    pub connections: AtomicU64,
}

pub(crate) fn page(services: &Services) -> String {
    let mut page = String::new();
    let mut add = |name: &str, kind: &str, help: &str, value: u64| {
        let _ = write!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
    };
    let cache = &services.cache;
    let scopes = cache.scopes();
    let sum = |of: &dyn Fn(&crate::cache::scope::Scope) -> usize| -> u64 {
        scopes.iter().map(|scope| of(scope) as u64).sum()
    };
    add(
        "etcd_grpc_proxy_cache_hits_total",
        "gauge",
        "Total number of cache hits",
        cache.metrics.hits.load(Ordering::Relaxed),
    );
    add(
        "etcd_grpc_proxy_cache_misses_total",
        "gauge",
        "Total number of cache misses",
        cache.metrics.misses.load(Ordering::Relaxed),
    );
    add(
        "etcd_grpc_proxy_cache_keys_total",
        "gauge",
        "Total number of keys/ranges cached",
        scopes.len() as u64,
    );
    add(
        "etcd_grpc_proxy_watchers_coalescing_total",
        "gauge",
        "Total number of current watchers coalescing",
        sum(&|scope| scope.watchers()),
    );
    add(
        "etcd_grpc_proxy_events_coalescing_total",
        "counter",
        "Total number of events coalescing",
        cache.metrics.coalesced.load(Ordering::Relaxed),
    );
    add(
        "clearlane_grpc_proxy_cache_bytes",
        "gauge",
        "Memory of the cached ranges and their history, estimated",
        sum(&|scope| scope.bytes()),
    );
    add(
        "clearlane_grpc_proxy_cache_dropped_total",
        "counter",
        "Cached ranges that were dropped because of --cache-bytes",
        cache.metrics.dropped.load(Ordering::Relaxed),
    );
    add(
        "clearlane_grpc_proxy_connections",
        "gauge",
        "Open connections of clients",
        services.metrics.connections.load(Ordering::Relaxed),
    );
    let members = services.upstream.members();
    let ready = members.iter().filter(|it| it.state() == MemberState::Ready).count();
    add(
        "clearlane_grpc_proxy_ready_members",
        "gauge",
        "Members of the cluster that answer probes",
        ready as u64,
    );
    page
}
