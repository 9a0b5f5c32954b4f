//! etcd's metrics of the connections between members.
//!
//! A family has one sample for each other member. Some families omit members whose value is 0. Only
//! the sender counts failures. A receiver that cannot decode a message ends the stream, and counts
//! no failure. Raft sends the lost message again unless it is a proposal.

use super::MetricSources;
use super::page::{MetricsPage, PrometheusHistogram};

pub(super) fn write(page: &mut MetricsPage, sources: &MetricSources<'_>) {
    let node = sources.server.threads();
    let local = format!("{:x}", node.metadata().node_id);
    let traffic = node.peer_clients().map(|others| others.traffic()).unwrap_or_default();
    if traffic.is_empty() {
        return;
    }
    let ids: Vec<String> = traffic.iter().map(|of| format!("{:x}", of.id)).collect();
    let all = || ids.iter().zip(&traffic);
    let help = "The current number of active peer connections.";
    let mut family = page.family("etcd_network_active_peers", "gauge", help);
    for (id, of) in all().filter(|(_, of)| of.is_active) {
        family.sample(&[("Local", &local), ("Remote", id)], u8::from(of.is_active));
    }
    let help = "The total number of disconnected peers.";
    let mut family = page.family("etcd_network_disconnected_peers_total", "counter", help);
    for (id, of) in all().filter(|(_, of)| of.disconnects > 0) {
        family.sample(&[("Local", &local), ("Remote", id)], of.disconnects);
    }
    let help = "The total number of bytes sent to peers.";
    let mut family = page.family("etcd_network_peer_sent_bytes_total", "counter", help);
    for (id, of) in all() {
        family.sample(&[("To", id)], of.sent_bytes);
    }
    let help = "The total number of bytes received from peers.";
    let mut family = page.family("etcd_network_peer_received_bytes_total", "counter", help);
    for (id, of) in all() {
        family.sample(&[("From", id)], of.received_bytes);
    }
    let help = "The total number of send failures from peers.";
    let mut family = page.family("etcd_network_peer_sent_failures_total", "counter", help);
    for (id, of) in all().filter(|(_, of)| of.dropped_messages > 0) {
        family.sample(&[("To", id)], of.dropped_messages);
    }
    let help = "Total number of successful snapshot sends";
    let mut family = page.family("etcd_network_snapshot_send_success", "counter", help);
    for (id, of) in all().filter(|(_, of)| of.raft_snapshots_sent > 0) {
        family.sample(&[("To", id)], of.raft_snapshots_sent);
    }
    let help = "Round-Trip-Time histogram between peers";
    let name = "etcd_network_peer_round_trip_time_seconds";
    let mut family = page.family(name, "histogram", help);
    for (id, of) in all() {
        family.histogram(&[("To", id)], &PrometheusHistogram::merge([&*of.round_trips]));
    }
}
