//! Tests of `clearlane grpc-proxy start --timeline`.

use std::path::Path;

use clearlane_contention::timeline::{Activity, Span, Timeline, TimelineHeader, lane_class};
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::watch_client::WatchClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{RangeRequest, WatchCreateRequest, WatchRequest};
use nix::sys::signal::Signal;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::program::{RunningProgram, failure, member, program};
use crate::support::{block_on, connect, get, http_get, put};

fn start_proxy(member: &str, more: &[&str]) -> (RunningProgram, String) {
    let endpoints = format!("--endpoints={member}");
    let arguments = ["grpc-proxy", "start", "--listen-addr=127.0.0.1:0", &endpoints];
    let mut proxy = RunningProgram::start(program(&arguments).args(more));
    let address = proxy.address("started gRPC proxy");
    (proxy, address)
}

fn recording(file: &Path) -> Timeline {
    let text = std::fs::read_to_string(file).unwrap();
    let header = TimelineHeader::of(&text).unwrap().unwrap();
    assert_eq!(header.recorded, "a gRPC proxy");
    text.parse().unwrap()
}

/// Returns the spans of a lane of this class: the last lane of the recording.
fn last_of<'t>(timeline: &'t Timeline, class: &str) -> Vec<&'t Span> {
    let last = timeline.spans.iter().rfind(|span| lane_class(&span.lane) == class);
    let last = last.unwrap_or_else(|| panic!("no {class} in {timeline}"));
    timeline.spans.iter().filter(|span| span.lane == last.lane).collect()
}

/// Returns what the lane does, in order of its spans, which must not overlap.
fn activities(spans: &[&Span]) -> Vec<String> {
    assert!(spans.is_sorted_by(|one, next| one.to_ns <= next.from_ns), "{spans:?}");
    let name = |span: &&Span| match &span.activity {
        Activity::Wait { resource, .. } => resource.clone(),
        other => format!("{other:?}"),
    };
    spans.iter().map(name).collect()
}

fn blocker<'t>(spans: &[&'t Span], resource: &str) -> &'t str {
    let mut blockers = spans.iter().filter_map(|span| match &span.activity {
        Activity::Wait { resource: of, blocker: Some(blocker) } if of == resource => Some(blocker),
        _ => None,
    });
    blockers.next().unwrap_or_else(|| panic!("no {resource} in {spans:?}"))
}

/// Reads the range until the proxy has answered from its cache, and then once more: the first read
/// that was answered from the cache may have waited until the copy was complete.
async fn read_from_cache(address: &str, client: &mut KvClient<tonic::transport::Channel>) {
    let all = RangeRequest { range_end: "a0".into(), ..get("a/") };
    loop {
        let found = client.range(all.clone()).await.unwrap().into_inner();
        assert_eq!(found.kvs[0].value, "1");
        let page = http_get(address, "/proxy/metrics");
        if !page.contains("\netcd_grpc_proxy_cache_hits_total 0\n") {
            break;
        }
    }
    client.range(all).await.unwrap();
}

/// Puts a key after the creation of a watch. Returns the revision when the watch has the event.
async fn put_and_watch(address: &str, client: &mut KvClient<tonic::transport::Channel>) -> i64 {
    let create = WatchCreateRequest { key: "a/2".into(), ..WatchCreateRequest::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let (requests, receiver) = mpsc::channel(1);
    requests.send(create).await.unwrap();
    let mut watches = WatchClient::new(connect(address).await);
    let mut responses = watches.watch(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    assert!(responses.message().await.unwrap().unwrap().created);
    client.put(put("a/2", "2")).await.unwrap();
    let response = responses.message().await.unwrap().unwrap();
    response.events[0].kv.as_ref().unwrap().mod_revision
}

#[test]
fn a_recording_shows_what_requests_and_events_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = RunningProgram::start(&mut member(&dir.path().join("data"), &[]));
    let member = server.ready();
    let file = dir.path().join("timeline");
    let flag = format!("--timeline={}", file.display());
    let (mut proxy, address) = start_proxy(&member, &["--cache-prefix=a/", &flag]);
    let revision = block_on(async {
        let mut client = KvClient::new(connect(&address).await);
        client.put(put("a/1", "1")).await.unwrap();
        read_from_cache(&address, &mut client).await;
        put_and_watch(&address, &mut client).await
    });
    proxy.signal(Signal::SIGUSR1);
    proxy.line("wrote the timeline");
    let timeline = recording(&file);

    let read = last_of(&timeline, "cached range");
    assert_eq!(activities(&read), ["Run", "a probe", "the copy", "Run"]);
    assert_eq!(blocker(&read, "the copy"), "feed a/");
    // The probe of a read starts after the read has arrived. Otherwise the read may be stale.
    let probe = blocker(&read, "a probe");
    let probe = timeline.spans.iter().find(|span| span.lane == probe).unwrap();
    assert_eq!(probe.activity, Activity::Network);
    assert!(read[0].from_ns <= probe.from_ns && probe.to_ns <= read[1].to_ns, "{read:?} {probe:?}");

    let written = last_of(&timeline, "put");
    assert_eq!(activities(&written)[..2], ["Run", "a member"]);

    let is_event = |span: &&Span| span.lane.ends_with(&format!(".0 event #{revision}"));
    let event: Vec<_> = timeline.spans.iter().filter(is_event).collect();
    let mut waits = activities(&event);
    // A stream may take the event before the feed has ended its turn.
    waits.retain(|wait| wait != "the queue");
    assert_eq!(waits, ["the feed", "the connection"], "revision {revision}: {timeline}");
    assert_eq!(blocker(&event, "the feed"), "feed a/");
    // The event's lane starts when the event arrives at the feed.
    let feed = last_of(&timeline, "feed a/");
    assert!(feed.iter().any(|span| span.from_ns == event[0].from_ns), "{timeline}");

    // The second recording has only its own requests, and is written when the proxy ends.
    proxy.signal(Signal::SIGUSR1);
    proxy.line("recording a timeline");
    block_on(async {
        let mut client = KvClient::new(connect(&address).await);
        client.put(put("a/3", "3")).await.unwrap();
    });
    proxy.signal(Signal::SIGTERM);
    let (status, said) = proxy.end();
    assert_eq!(status.code(), Some(0), "{said:#?}");
    let timeline = recording(&file);
    assert_eq!(activities(&last_of(&timeline, "put"))[..2], ["Run", "a member"]);
    let has_read = timeline.spans.iter().any(|span| lane_class(&span.lane) == "cached range");
    assert!(!has_read, "{timeline}");
}

#[test]
fn without_a_file_the_signal_does_no_harm() {
    let (mut proxy, _) = start_proxy("127.0.0.1:1", &[]);
    proxy.signal(Signal::SIGUSR1);
    proxy.line("without --timeline there is nothing to record");
}

#[test]
fn a_file_that_cannot_be_written_is_reported_first() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nowhere").join("timeline");
    let flag = format!("--timeline={}", file.display());
    let error = failure(&mut program(&["grpc-proxy", "start", "--listen-addr=wrong", &flag]));
    assert!(error.contains(&format!("--timeline {}: No such file", file.display())), "{error}");
}
