//! Pings from clients and to members, and the pages over HTTP/1.1.

use std::time::Duration;

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{PutRequest, WatchCreateRequest};
use clearlane_proxy::pages::ProfilePages;
use clearlane_proxy::serve::ProxyConfig;
use clearlane_proxy::upstream::{PingConfig, UpstreamConfig};
use http::Response;
use http_body_util::Full;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tonic::body::Body;

use crate::member::Member;
use crate::running::{RunningProxy, TIMEOUT, WatchStream, config};

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(crate) const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
pub(crate) const PING: &[u8] = &[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

/// Sends five pings at once. Returns what the proxy sends until it closes the connection, or until
/// it has answered all pings.
async fn ping(proxy: &RunningProxy) -> Vec<u8> {
    let mut stream = TcpStream::connect(proxy.address).await.unwrap();
    stream.write_all(&[PREFACE, SETTINGS, &PING.repeat(5)].concat()).await.unwrap();
    let mut received = Vec::new();
    let answered = async {
        let answers =
            |received: &[u8]| received.windows(8).filter(|bytes| *bytes == &PING[9..]).count();
        while answers(&received) < 5 && stream.read_buf(&mut received).await.unwrap_or(0) > 0 {}
    };
    timeout(TIMEOUT, answered).await.unwrap();
    received
}

#[tokio::test]
async fn a_client_may_not_ping_too_often() {
    let member = Member::start().await;
    for (interval, is_closed) in [(Duration::from_secs(5), true), (Duration::ZERO, false)] {
        let config = ProxyConfig { ping_interval_min: interval, ..config(&member) };
        let received = ping(&RunningProxy::start(config, None).await).await;
        let reason = b"too_many_pings";
        assert_eq!(received.windows(reason.len()).any(|bytes| bytes == reason), is_closed);
    }
}

/// The types of HTTP/2 frames, a setting, and a flag.
const SETTINGS_FRAME: u8 = 4;
const PING_FRAME: u8 = 6;
const CONCURRENT_STREAMS_MAX: u16 = 3;
const IS_ACK: u8 = 1;

/// Returns the type, the flags and the payload of each frame.
fn frames(mut bytes: &[u8]) -> Vec<(u8, u8, &[u8])> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some((payload, rest)) = rest.split_at_checked(length) else { break };
        frames.push((head[3], head[4], payload));
        bytes = rest;
    }
    frames
}

#[tokio::test]
async fn zero_means_the_default() {
    let member = Member::start().await;
    let config = ProxyConfig {
        ping_interval_min: Duration::ZERO,
        keep_alive_interval: Duration::ZERO,
        keep_alive_timeout: Duration::ZERO,
        concurrent_streams_max: 0,
        request_bytes_max: 0,
        ..config(&member)
    };
    let proxy = RunningProxy::start(config, None).await;
    let received = ping(&proxy).await;
    let frames = frames(&received);
    let pings = frames.iter().filter(|(kind, _, _)| *kind == PING_FRAME);
    let pings: Vec<u8> = pings.map(|(_, flags, _)| flags & IS_ACK).collect();
    assert_eq!(pings, [IS_ACK; 5], "{frames:?}");
    for (_, _, settings) in frames.iter().filter(|(kind, _, _)| *kind == SETTINGS_FRAME) {
        for setting in settings.chunks_exact(6) {
            let name = u16::from_be_bytes([setting[0], setting[1]]);
            assert!(name != CONCURRENT_STREAMS_MAX || setting[2..] != [0; 4], "{frames:?}");
        }
    }
    let mut client = KvClient::new(proxy.connect().await);
    let put = PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() };
    client.put(put).await.unwrap();
}

#[tokio::test]
async fn a_member_that_answers_no_ping_loses_its_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let pings = PingConfig {
        interval: Duration::from_millis(20),
        timeout: Duration::from_millis(50),
        without_calls: true,
    };
    let endpoints = vec![listener.local_addr().unwrap().to_string()];
    let upstream = UpstreamConfig { endpoints, pings: Some(pings), ..UpstreamConfig::default() };
    let config = ProxyConfig { upstream, ..ProxyConfig::default() };
    let _proxy = RunningProxy::start(config, None).await;
    let (mut stream, _) = listener.accept().await.unwrap();
    stream.write_all(SETTINGS).await.unwrap();
    let mut received = Vec::new();
    timeout(TIMEOUT, stream.read_to_end(&mut received)).await.unwrap().unwrap();
    let head = &PING[..9];
    assert!(received.windows(head.len()).any(|bytes| bytes == head));
}

async fn page(proxy: &RunningProxy, path: &str) -> String {
    let mut stream = TcpStream::connect(proxy.address).await.unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: proxy\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut page = String::new();
    timeout(TIMEOUT, stream.read_to_string(&mut page)).await.unwrap().unwrap();
    page
}

#[tokio::test]
async fn profiles_are_served_if_they_are_enabled() {
    let member = Member::start().await;
    let proxy = RunningProxy::start(config(&member), None).await;
    assert!(page(&proxy, "/debug/pprof/heap").await.starts_with("HTTP/1.1 404 "));
    let pages = ProfilePages::new(|name, query| {
        Box::pin(async move { Response::new(Body::new(Full::from(format!("{name} {query}")))) })
    });
    let config = ProxyConfig { profiles: Some(pages), ..config(&member) };
    let proxy = RunningProxy::start(config, None).await;
    assert!(page(&proxy, "/debug/pprof/heap?a=1").await.ends_with("heap a=1"));
    assert!(page(&proxy, "/health").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn events_that_many_watches_share_are_counted() {
    let member = Member::start().await;
    let mut config = config(&member);
    config.cache.prefixes = vec![b"/a/".to_vec()];
    let proxy = RunningProxy::start(config, None).await;
    let mut watches = Vec::new();
    for _ in 0..3 {
        let mut watch = WatchStream::open(proxy.connect().await).await;
        let create = WatchCreateRequest { key: "/a/k".into(), ..WatchCreateRequest::default() };
        watch.send(RequestUnion::CreateRequest(create)).await;
        assert!(watch.next().await.created);
        watches.push(watch);
    }
    member.store("/a/k", b"v");
    for watch in &mut watches {
        assert_eq!(watch.next().await.events.len(), 1);
    }
    let page = page(&proxy, "/proxy/metrics").await;
    assert!(page.contains("\netcd_grpc_proxy_events_coalescing_total 2\n"), "{page}");
    assert!(page.contains("\netcd_grpc_proxy_watchers_coalescing_total 3\n"), "{page}");
}
