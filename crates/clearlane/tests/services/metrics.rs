//! Tests of the metrics page: it has all names that dashboards use, in a format that a strict
//! parser accepts.

use crate::http_support;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::http_support::{Running, Whole};
use clearlane_proto::Message;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::{PutRequest, RangeRequest};
use tonic::transport::Endpoint;

/// The type of a metric, and the labels and value of each sample.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

/// Parses a page with the grammar of the format. Fails in all cases that a scraper may reject:
/// samples without help and type, a metric whose type occurs twice, samples of one metric in
/// several places, repeated samples, or text after a value.
fn parse(page: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    let mut helped = None;
    let mut seen = BTreeSet::new();
    assert!(page.ends_with('\n'));
    for line in page.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, text) = help.split_once(' ').unwrap();
            assert!(!text.is_empty(), "{line}");
            helped = Some(name.to_owned());
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(helped.take().as_deref(), Some(name), "a type behind its help");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            let family = Family { kind: kind.to_owned(), samples: Vec::new() };
            assert!(families.insert(name.to_owned(), family).is_none(), "{name} twice");
            current = name.to_owned();
        } else {
            let (name, labels, value) = sample(line);
            let family = families.get_mut(&current).unwrap();
            let ending = name.strip_prefix(&current[..]).unwrap_or_else(|| panic!("{line}"));
            let endings: &[&str] = match &family.kind[..] {
                "histogram" => &["_bucket", "_sum", "_count"],
                _ => &[""],
            };
            assert!(endings.contains(&ending), "{line}");
            assert!(seen.insert((name.clone(), labels.clone())), "twice: {line}");
            family.samples.push((ending.to_owned(), labels, value));
        }
    }
    families
}

fn sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let is_name = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let end = line.find(['{', ' ']).unwrap();
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, value) = rest.split_once("=\"").unwrap();
            assert!(is_name(label), "{line}");
            // No label value of Clearlane needs escaping.
            let (value, behind) = value.split_once('"').unwrap();
            assert!(!value.contains('\\'), "{line}");
            assert!(labels.insert(label.to_owned(), value.to_owned()).is_none(), "{line}");
            rest = behind.strip_prefix(',').unwrap_or(behind);
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("{line}"));
    (name.to_owned(), labels, value.parse().unwrap_or_else(|_| panic!("{line}")))
}

/// Returns the value of the only sample with these labels.
fn value(families: &BTreeMap<String, Family>, name: &str, labels: &[(&str, &str)]) -> f64 {
    let has = |have: &BTreeMap<String, String>| {
        labels.iter().all(|(label, value)| have.get(*label).is_some_and(|have| have == value))
    };
    let samples = families[name].samples.iter();
    let found: Vec<f64> = samples.filter(|sample| has(&sample.1)).map(|sample| sample.2).collect();
    assert_eq!(found.len(), 1, "{name} {labels:?}: {found:?}");
    found[0]
}

fn histograms_make_sense(families: &BTreeMap<String, Family>) {
    for (name, family) in families.iter().filter(|(_, family)| family.kind == "histogram") {
        let mut below: BTreeMap<BTreeMap<String, String>, (f64, f64)> = BTreeMap::new();
        for (ending, labels, value) in &family.samples {
            let mut labels = labels.clone();
            let bound = labels.remove("le");
            match &ending[..] {
                "_bucket" => {
                    let bound: f64 = bound.unwrap().replace("+Inf", "inf").parse().unwrap();
                    let last = below.entry(labels).or_insert((0.0, 0.0));
                    assert!(bound > last.0 && *value >= last.1, "{name}: {bound} {value}");
                    *last = (bound, *value);
                }
                "_count" => {
                    assert_eq!(below[&labels], (f64::INFINITY, *value), "{name} {labels:?}")
                }
                _ => assert!(*value >= 0.0 && bound.is_none()),
            }
        }
    }
}

#[test]
fn every_name_of_etcds_is_there_with_its_type_and_labels() {
    let running = Running::start();
    let reply = running.ask("GET /metrics", "", "");
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let families = parse(&reply.body);
    histograms_make_sense(&families);
    for line in include_str!("../metrics_names.txt").lines() {
        let (name, kind) = line.split_once(' ').unwrap();
        let (name, labels) = name.split_once('{').unwrap_or((name, "}"));
        let Some(family) = families.get(name) else { panic!("{name} is missing") };
        assert_eq!(family.kind, kind, "{name}");
        let labels: BTreeSet<&str> =
            labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty()).collect();
        // The version of a cluster is shown once it is decided.
        assert!(!family.samples.is_empty() || name == "etcd_cluster_version", "{name}");
        for (_, have, _) in &family.samples {
            let have: BTreeSet<&str> =
                have.keys().map(|label| &label[..]).filter(|label| *label != "le").collect();
            assert_eq!(have, labels, "{name}");
        }
    }
}

/// Returns the page after all changes are counted. The apply loop responds to a request before it
/// counts the change.
fn settled(running: &Running) -> BTreeMap<String, Family> {
    let begin = Instant::now();
    loop {
        let families = parse(&running.ask("GET /metrics", "", "").body);
        if value(&families, "etcd_mvcc_delete_total", &[]) > 0.0
            && value(&families, "etcd_server_proposals_pending", &[]) == 0.0
        {
            return families;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "the deletion is not counted");
    }
}

#[test]
fn what_is_done_is_counted() {
    let running = Running::start();
    for body in [r#"{"key":"YQ==","value":"MQ=="}"#, r#"{"key":"Yg=="}"#, r#"{"key":"YQ=="}"#] {
        assert_eq!(running.ask("POST /v3/kv/put", "", body).status, 200);
    }
    assert_eq!(running.ask("POST /v3/kv/put", "", "{}").status, 400);
    assert_eq!(running.ask("POST /v3/kv/range", "", r#"{"key":"YQ=="}"#).status, 200);
    assert_eq!(running.ask("POST /v3/kv/deleterange", "", r#"{"key":"Yg=="}"#).status, 200);
    let stream = running.ask("POST /v3/lease/keepalive", "", r#"{"ID":1}{"ID":2}{"ID":13}"#);
    assert_eq!(stream.status, 200);
    running.ask("GET /health", "", "");
    let families = settled(&running);
    histograms_make_sense(&families);
    let put = ("grpc_method", "Put");
    type Labels<'a> = &'a [(&'a str, &'a str)];
    let expected: &[(&str, Labels<'_>, f64)] = &[
        ("etcd_mvcc_put_total", &[], 3.0),
        ("etcd_mvcc_delete_total", &[], 1.0),
        ("etcd_mvcc_range_total", &[], 1.0),
        ("etcd_mvcc_txn_total", &[], 0.0),
        ("etcd_debugging_mvcc_keys_total", &[], 1.0),
        ("etcd_debugging_mvcc_total_put_size_in_bytes", &[], 4.0),
        ("etcd_debugging_mvcc_current_revision", &[], 5.0),
        ("etcd_server_has_leader", &[], 1.0),
        ("etcd_server_is_leader", &[], 1.0),
        ("etcd_server_is_learner", &[], 0.0),
        ("etcd_server_leader_changes_seen_total", &[], 1.0),
        ("etcd_server_health_success", &[], 1.0),
        ("etcd_server_proposals_pending", &[], 0.0),
        ("etcd_server_version", &[("server_version", "3.7.1")], 1.0),
        ("etcd_server_id", &[("server_id", "8e9e05c52164694d")], 1.0),
        ("clearlane_era", &[("era", "clearlane")], 1.0),
        ("grpc_server_started_total", &[put], 4.0),
        ("grpc_server_handled_total", &[put, ("grpc_code", "OK")], 3.0),
        ("grpc_server_handled_total", &[put, ("grpc_code", "InvalidArgument")], 1.0),
        ("grpc_server_msg_received_total", &[put], 4.0),
        ("grpc_server_msg_sent_total", &[put], 3.0),
        ("grpc_server_started_total", &[("grpc_method", "LeaseKeepAlive")], 1.0),
        ("grpc_server_msg_received_total", &[("grpc_method", "LeaseKeepAlive")], 3.0),
        ("grpc_server_msg_sent_total", &[("grpc_method", "LeaseKeepAlive")], 2.0),
        (
            "grpc_server_handled_total",
            &[("grpc_method", "LeaseKeepAlive"), ("grpc_code", "NotFound")],
            1.0,
        ),
        (
            "grpc_server_started_total",
            &[("grpc_method", "Watch"), ("grpc_service", "etcdserverpb.Watch")],
            0.0,
        ),
        ("etcd_server_client_requests_total", &[("type", "unary")], 6.0),
        ("etcd_server_client_requests_total", &[("type", "stream")], 1.0),
    ];
    for (name, labels, expected) in expected {
        assert_eq!(value(&families, name, labels), *expected, "{name} {labels:?}");
    }
    let handled = |name: &str, labels: &[(&str, &str)]| {
        let family = &families[name];
        let of_labels = |have: &&(String, BTreeMap<String, String>, f64)| {
            have.0 == "_count" && labels.iter().all(|(label, value)| have.1[*label] == *value)
        };
        family.samples.iter().filter(of_labels).map(|(_, _, value)| value).sum::<f64>()
    };
    let puts = [("type", "put"), ("success", "true")];
    assert_eq!(handled("etcd_server_request_duration_seconds", &puts), 3.0);
    assert_eq!(handled("etcd_server_range_duration_seconds", &[("success", "true")]), 1.0);
    assert!(handled("etcd_server_apply_duration_seconds", &[]) >= 5.0);
    assert!(handled("etcd_disk_wal_fsync_duration_seconds", &[]) >= 1.0);
    assert_eq!(handled("grpc_server_handling_seconds", &[("grpc_method", "Put")]), 4.0);
}

/// Tests that the clients' port counts and answers two kinds of requests: gRPC calls that bypass
/// tonic, and HTTP requests.
#[test]
fn the_clients_port_counts_and_answers_both() {
    let whole = Whole::start();
    let address = whole.address;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let mut client = KvClient::new(endpoint.connect().await.unwrap());
        let put = PutRequest { key: "a".into(), value: "1".into(), ..PutRequest::default() };
        let sent = put.encoded_len();
        let answer = client.put(put).await.unwrap().into_inner();
        client.put(PutRequest::default()).await.unwrap_err();
        let all = RangeRequest { key: "a".into(), ..RangeRequest::default() };
        let found = client.range(all.clone()).await.unwrap().into_inner();
        let page = parse(&http_support::ask(address, "GET /metrics", "", "").body);
        histograms_make_sense(&page);
        let expected = sent + all.encoded_len();
        let received = value(&page, "etcd_network_client_grpc_received_bytes_total", &[]);
        assert_eq!(received, expected as f64, "the second put is empty");
        let expected = answer.encoded_len() + found.encoded_len();
        let sent = value(&page, "etcd_network_client_grpc_sent_bytes_total", &[]);
        assert_eq!(sent, expected as f64);
        let of = |name, method, code| {
            value(&page, name, &[("grpc_method", method), ("grpc_code", code)])
        };
        assert_eq!(of("grpc_server_handled_total", "Put", "OK"), 1.0);
        assert_eq!(of("grpc_server_handled_total", "Put", "InvalidArgument"), 1.0);
        assert_eq!(of("grpc_server_handled_total", "Range", "OK"), 1.0);
        let started = value(&page, "grpc_server_started_total", &[("grpc_method", "Put")]);
        assert_eq!(started, 2.0);
    });
    let put = http_support::ask(address, "POST /v3/kv/put", "", r#"{"key":"Yg=="}"#);
    assert_eq!(put.status, 200, "{put:?}");
    assert_eq!(http_support::ask(address, "GET /readyz", "", "").body, "ok\n");
    drop(runtime);
}
